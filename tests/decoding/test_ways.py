"""Which way of drafting is chosen: what trials, failures, interruptions and other images change."""

from __future__ import annotations

from collections import Counter

import pytest

from configs.methods import MethodSettings
from decoding.flight import Job
from decoding.policies.base import Outcome, Shape
from decoding.policies.ways import LONGEST_WAIT, SHARE, TRIAL, Prices, Way, Ways
from decoding.sampling import SamplingDistribution
from runs.methods import Tables, build_engine

LARGEST = Shape(depth=3, width=2, nodes=12, window=8)
TREE, ALL, HALF, NONE = (3, 8), (0, 8), (0, 4), (0, 0)  # depth and window
FLAT = Prices((1.0,) * 13, (0.0, 0.1, 0.2, 0.3))
REMAINING = 99


def run(ways: Ways, accepted: dict[tuple[int, int], int], rounds: int, images: int = 1) -> list:
    """Return the ways of some rounds; accepted: tokens by way, none where it is not named."""
    found = []
    for _ in range(rounds):
        shapes = {ways.shape(1, REMAINING) for _ in range(images)}
        assert len(shapes) == 1  # all images of a round go one way
        (shape,) = shapes
        way = shape.depth, shape.window
        took = accepted.get(way, 0)
        for _ in range(images):
            ways.observe(Outcome(1, took, 3, 0.5, nodes=shape.nodes, drafted=shape.depth))
        found.append(way)
    return found


@pytest.mark.parametrize(
    ("accepted", "best"),
    [({}, NONE), ({TREE: 3}, TREE), ({ALL: 2, TREE: 2}, ALL), ({HALF: 2, ALL: 1, TREE: 1}, HALF)],
)
def test_the_way_that_decides_most_per_millisecond_is_used(accepted, best) -> None:
    """A level costs a tenth, so trees must decide more than foreseen tokens alone."""
    dear = Prices((1.0, *(1.5,) * 12), FLAT.draft)
    used = Counter(run(Ways(LARGEST, dear), accepted, 600))
    assert used.most_common(1)[0][0] == best and used[best] > 480
    assert set(used) == {TREE, ALL, HALF, NONE} or best != NONE  # each was tried


@pytest.mark.parametrize("images", [1, 8])
def test_a_hopeless_trial_ends_at_once_and_trials_lose_a_small_share(images) -> None:
    dear = Prices((1.0, *(4.0,) * 12), FLAT.draft)
    flat = Prices((3.0, *(9.0,) * 12), (0.0, 6.0, 6.0, 6.0))
    for prices in (dear, flat):
        ways = Ways(LARGEST, prices)
        used = run(ways, {TREE: 1}, 4 * LONGEST_WAIT, images)
        trees = [at for at, way in enumerate(used) if way == TREE]
        starts = [at for at in trees if at - 1 not in trees]
        assert starts[0] == 0 and len(starts) > 2
        assert len(trees) <= 2 * len(starts)  # one round to begin with, one that counts
        lost = (
            2 * (prices.verify[1] + prices.draft[3]) - 2 * 2 * prices.verify[0]
        )  # it brings four tokens
        spent = (starts[-1] - starts[0]) * prices.verify[0]
        assert (len(starts) - 1) * lost == pytest.approx(
            SHARE / len(ways.ways[1:]) * spent, rel=0.02
        )


def test_a_way_that_gets_better_is_found_and_one_that_gets_worse_is_left() -> None:
    ways = Ways(LARGEST, Prices((1.0, *(1.5,) * 12), FLAT.draft))
    run(ways, {}, 200)
    assert Counter(run(ways, {ALL: 4}, 2 * LONGEST_WAIT)[-50:])[ALL] > 30
    assert Counter(run(ways, {}, 300)[-50:])[NONE] > 30


def test_rounds_count_with_their_time_where_it_is_asked_for_and_interruptions_do_not() -> None:
    """By price trees pay; by the clock they do not."""
    ways = Ways(LARGEST, Prices((1.0,) * 13, (0.0,) * 4, alone=False, timed=True))
    spent = {3: 9.0, 0: 1.0}
    found = []
    for _ in range(100):
        depth = ways.shape(1, REMAINING).depth
        ways.observe(Outcome(1, 2 if depth else 0, 3, 0.5, milliseconds=spent[depth]))
        found.append(depth)
    assert Counter(found)[0] > 80
    way = Way(LARGEST)
    for spent in (1.0, 1.0, 1000.0):
        way.count(2, spent)
    assert 2 / 2 < way.rate < 2


def test_images_that_share_it_go_one_way_and_shorten_its_trials() -> None:
    ways = Ways(LARGEST, FLAT)
    used = run(ways, {TREE: 3}, 40, images=8)
    assert used[:2] == [TREE, TREE] and used[2] == ALL  # one round uncounted, then eight at once
    assert TRIAL == 8


def test_a_chain_is_no_longer_than_the_budget_and_ends_with_the_image() -> None:
    ways = Ways(Shape(0, 1, 5, 8), FLAT)
    shape = ways.shape(1, REMAINING)
    assert (shape.depth, shape.window, shape.nodes) == (0, 8, 5)
    assert ways.shape(1, 3).window == 2
    alone = Ways(LARGEST, Prices(FLAT.verify, FLAT.draft, alone=False))
    assert [way.shape.depth for way in alone.ways] == [0, 3] and alone.ways[0].shape.reach == 0


METHODS = [
    MethodSettings("jacobi", window=6, size="priced"),
    MethodSettings("marginal", depth=3, width=3, nodes=9),
    MethodSettings("graft", nodes=9, window=5),
    MethodSettings("similar", depth=3, width=2, nodes=9, window=5, size="priced"),
    MethodSettings("graft_similar", depth=3, width=2, nodes=9, window=5),
    MethodSettings("block", depth=3, width=2, nodes=9, window=5, size="priced"),
]
DEAR = Tables(prices=Prices((1.0, *(9.0,) * 60), tuple(0.5 * n for n in range(65))))


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.method)
def test_where_trees_do_not_pay_rounds_have_none_and_images_stay(
    method, images, session, monkeypatch
) -> None:
    """Tokens decided without a tree are read by the drafter when it is asked again."""
    monkeypatch.setattr("decoding.policies.ways.LONGEST_WAIT", 12)
    monkeypatch.setattr(Way, "wait", 3)
    jobs = [Job(str(n), f"word {n}", n) for n in range(4)]
    parts = session.target, session.drafter, SamplingDistribution(1.0, 0, 1.0, 3.0)
    plain = build_engine(*parts, MethodSettings("ar"), 1)
    expected = {f.job.id: f.codes.tolist() for s in plain.generate(jobs) for f in s.finished}
    steps = list(build_engine(*parts, method, images, DEAR).generate(jobs))
    assert {f.job.id: f.codes.tolist() for s in steps for f in s.finished} == expected
    rounds = [line for step in steps for line in step.rounds]
    bare = sum(line.depth == 0 for line in rounds)
    assert bare > len(rounds) / 3 and any(line.depth for line in rounds[len(rounds) // 2 :])
