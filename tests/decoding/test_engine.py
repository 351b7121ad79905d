"""The engine in fp64: whatever is drafted, accepted, batched or refilled, the tokens are those of
plain decoding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import pytest
import torch
from fakes import Path, ScriptedDrafter
from torch import Tensor

from configs.schema import AdtSettings, MethodSettings
from decoding.engine import Engine
from decoding.graphs import TreeShape
from decoding.images import FinishedImage, Job, RoundStats, Speculation
from decoding.policies.adaptive import AdaptiveTree
from decoding.policies.base import TreePolicy
from decoding.policies.dynamic import DynamicTree
from decoding.policies.static import NAMED_TREES, StaticTree, rank_paths
from decoding.proposals import PROPOSALS
from decoding.sampling import SamplingDistribution
from decoding.verifiers.exact import Exact
from runs.methods import build_engine
from runs.session import Session

VOCAB, TOKENS = 24, 16
JOBS = [
    Job(str(i), "word " * (i % 4) + str(i), 100 + i) for i in range(7)
]  # prompts of four lengths
DISTRIBUTIONS = [
    SamplingDistribution(),
    SamplingDistribution(temperature=0.0),
    SamplingDistribution(cfg=1.0),
    SamplingDistribution(temperature=0.0, cfg=1.0),
    SamplingDistribution(temperature=0.9, top_k=5, top_p=0.8),
]
METHODS = {
    "static": MethodSettings(method="static"),
    "eagle2 topk": MethodSettings(method="eagle2", proposal="topk"),
    "small eagle2": MethodSettings(method="eagle2", depth=3, width=4, nodes=7),
    "adt": MethodSettings(method="adt"),
    "adt topk": MethodSettings(
        method="adt", proposal="topk", adt=AdtSettings(init="vertical", adapt="random")
    ),
    "jacobi": MethodSettings(method="jacobi", window=5),
    "jacobi from the left": MethodSettings(method="jacobi", window=9, guess="left"),
    "jacobi, drawn anew": MethodSettings(
        method="jacobi", proposal="sampled", window=5, guess="random"
    ),
    "recall": MethodSettings(method="recall", depth=4, width=3, nodes=12, window=5),
    "recall without a chain": MethodSettings(method="recall", depth=4, width=3, nodes=12, window=0),
    "recall of rank": MethodSettings(
        method="recall", proposal="topk", depth=3, width=2, nodes=7, window=4, guess="left"
    ),
    "eagle recall": MethodSettings(method="eagle_recall", depth=4, width=3, nodes=14, head_depth=2),
    "eagle recall, continued": MethodSettings(
        method="eagle_recall", depth=3, width=3, nodes=4, window=5
    ),
    "block": MethodSettings(method="block", depth=4, width=3, nodes=14, window=6),
    "block of rank": MethodSettings(
        method="block", proposal="topk", depth=2, width=2, nodes=7, window=3
    ),
    "block drawn anew": MethodSettings(method="block", proposal="sampled", depth=3, nodes=9),
}


def decode(engine: Engine, jobs: list[Job]) -> dict[str, FinishedImage]:
    return {image.job.id: image for step in engine.generate(jobs) for image in step.finished}


def codes(engine: Engine, jobs: list[Job]) -> dict[str, list[int]]:
    return {name: image.codes.tolist() for name, image in decode(engine, jobs).items()}


@pytest.fixture(scope="module")
def truth(session: Session) -> dict[SamplingDistribution, dict[str, list[int]]]:
    """The baseline's codes by distribution and job."""
    method = MethodSettings(method="ar")
    return {
        distribution: codes(build_engine(session.target, None, distribution, method, 1), JOBS)
        for distribution in DISTRIBUTIONS
    }


def scripted(
    session: Session,
    distribution: SamplingDistribution,
    policy: TreePolicy,
    log_q: Callable[[Path, int], Tensor],
    images: int,
):
    speculation = Speculation(ScriptedDrafter(log_q), policy, PROPOSALS["coupled"]())
    return Engine(session.target, distribution, Exact(), images, speculation)


def oracle(
    session: Session, baseline: dict[str, list[int]], right: bool
) -> Callable[[Path, int], Tensor]:
    """A drafter's distribution that is sure of the baseline's next token; or, with right=False,
    sure that it is another one.
    """
    known = {
        tuple(session.target.prompt(job.prompt, 1).ids[0].tolist()): baseline[job.id]
        for job in JOBS
    }

    def distribution(prompt: Path, position: int) -> Tensor:
        scores = torch.zeros(VOCAB, dtype=torch.float64)
        if position < TOKENS:
            scores[known[prompt][position]] = 60.0 if right else -torch.inf
        return scores.log_softmax(-1)

    return distribution


def noisy(prompt: Path, position: int) -> Tensor:
    generator = torch.Generator().manual_seed(position * 1000 + sum(prompt))
    return torch.randn(VOCAB, generator=generator, dtype=torch.float64).log_softmax(-1)


def test_distributions_are_neither_flat_nor_certain(truth) -> None:
    """Otherwise the tests below would prove nothing."""
    for distribution, images in truth.items():
        assert len({tuple(image) for image in images.values()}) > (
            3 if distribution.greedy else 6
        ), distribution
        assert sum(len(set(image)) for image in images.values()) > 7 * 3, distribution


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_an_oracle_is_always_accepted(distribution, session, truth) -> None:
    """Every round decides depth + 1 tokens, as far as the image goes."""
    for policy in (DynamicTree(TreeShape(3, 2, 8)), StaticTree(rank_paths(NAMED_TREES["chain"]))):
        engine = scripted(
            session, distribution, policy, oracle(session, truth[distribution], True), 3
        )
        rounds = math.ceil((TOKENS - 1) / (policy.largest.depth + 1))
        for name, image in decode(engine, JOBS).items():
            assert image.codes.tolist() == truth[distribution][name]
            assert image.target_forwards == rounds + 1
            assert image.tau == (TOKENS - 1) / rounds


def test_adaptive_trees_grow_as_long_as_they_are_accepted(session, truth) -> None:
    policy = AdaptiveTree(AdtSettings(d_max=6, d_init=2, l_d=2), nodes=12, columns=4)
    engine = scripted(
        session, DISTRIBUTIONS[0], policy, oracle(session, truth[DISTRIBUTIONS[0]], True), 1
    )
    rounds = [step.rounds[0] for step in engine.generate(JOBS[:1])]
    assert [(r.position, r.depth, r.accepted) for r in rounds] == [(1, 2, 2), (4, 4, 4), (9, 6, 6)]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_a_drafter_that_is_never_right_costs_nothing_but_time(distribution, session, truth) -> None:
    for policy in (DynamicTree(TreeShape(3, 4, 8)), AdaptiveTree(AdtSettings(), 12, 4)):
        engine = scripted(
            session, distribution, policy, oracle(session, truth[distribution], False), 3
        )
        for name, image in decode(engine, JOBS[:4]).items():
            assert image.codes.tolist() == truth[distribution][name]
            assert image.tau == 1 and image.target_forwards == TOKENS


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_a_drafter_that_is_sometimes_right(distribution, images, session, truth) -> None:
    for policy in (
        DynamicTree(TreeShape(4, 5, 20)),
        StaticTree(rank_paths(NAMED_TREES["mc_sim_7b_63"])),
    ):
        found = decode(scripted(session, distribution, policy, noisy, images), JOBS)
        assert {name: image.codes.tolist() for name, image in found.items()} == truth[distribution]
        assert 1 < sum(image.tau for image in found.values()) / 7 < 5


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_plain_decoding_in_a_batch(distribution, session, truth) -> None:
    assert (
        codes(
            build_engine(session.target, None, distribution, MethodSettings(method="ar"), 3), JOBS
        )
        == truth[distribution]
    )


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_eagle_drafts_in_batches_and_in_any_order(method, session, truth) -> None:
    """Seven jobs through three rows; reversed; and the same engine again."""
    engine = build_engine(session.target, session.drafter, DISTRIBUTIONS[0], method, 3)
    assert codes(engine, JOBS) == truth[DISTRIBUTIONS[0]]
    assert codes(engine, JOBS[::-1]) == truth[DISTRIBUTIONS[0]]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS[1:], ids=str)
@pytest.mark.parametrize("name", ["jacobi", "recall", "eagle recall"])
def test_recalled_drafts_under_every_distribution(name, distribution, session, truth) -> None:
    engine = build_engine(session.target, session.drafter, distribution, METHODS[name], 2)
    found = decode(engine, JOBS)
    assert {job: image.codes.tolist() for job, image in found.items()} == truth[distribution]
    assert sum(image.tau for image in found.values()) > len(JOBS)


def rounds_of(engine: Engine, jobs: list[Job]) -> dict[str, list[RoundStats]]:
    found: dict[str, list[RoundStats]] = {}
    for step in engine.generate(jobs):
        for stats in step.rounds:
            found.setdefault(stats.id, []).append(stats)
    return found


def top1s(rounds: list[RoundStats]) -> list[float]:
    return [probability for stats in rounds for probability in stats.top1]


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_an_images_trees_do_not_depend_on_its_batch(method, session) -> None:
    """Not only the tokens: every round's position, shape, nodes and acceptance, hence tau."""
    alone = rounds_of(
        build_engine(session.target, session.drafter, DISTRIBUTIONS[0], method, 1), JOBS
    )
    batch = rounds_of(
        build_engine(session.target, session.drafter, DISTRIBUTIONS[0], method, 3), JOBS
    )
    for name, rounds in alone.items():
        assert [vars(stats) | {"top1": 0} for stats in rounds] == [
            vars(s) | {"top1": 0} for s in batch[name]
        ]
        assert top1s(rounds) == pytest.approx(top1s(batch[name]))


def test_top1_is_the_targets_own_at_every_position(session) -> None:
    """Plain decoding asks the target at one position after the other, a tree at several at once."""
    plain = rounds_of(
        build_engine(session.target, None, DISTRIBUTIONS[0], MethodSettings(method="ar"), 1), JOBS
    )
    trees = build_engine(
        session.target, session.drafter, DISTRIBUTIONS[0], METHODS["small eagle2"], 3
    )
    for name, rounds in rounds_of(trees, JOBS).items():
        assert len(rounds) < len(plain[name]) and top1s(rounds) == pytest.approx(top1s(plain[name]))


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_figures_agree_with_the_trace(method, session) -> None:
    engine = build_engine(session.target, session.drafter, DISTRIBUTIONS[0], method, 2)
    largest = engine.speculation.policy.largest
    images, traces = {}, {}
    for step in engine.generate(JOBS[:3]):
        for stats in step.rounds:
            traces.setdefault(stats.id, []).append(stats)
        images |= {image.job.id: image for image in step.finished}
    for name, image in images.items():
        rounds, position = traces[name], 1
        for number, stats in enumerate(rounds):
            assert (stats.round, stats.position) == (number, position)
            assert stats.accepted <= stats.depth <= largest.reach and stats.nodes <= largest.nodes
            assert len(stats.top1) == stats.accepted + 1 and all(
                0 < probability <= 1 for probability in stats.top1
            )
            position += stats.accepted + 1
        assert position == TOKENS == len(image.codes)
        assert image.target_forwards == len(rounds) + 1
        assert image.tau == (TOKENS - 1) / len(rounds)
        assert image.mean_nodes == pytest.approx(sum(stats.nodes for stats in rounds) / len(rounds))
        parts = (image.seconds_prefill, image.seconds_draft, image.seconds_verify)
        assert min(parts) > 0 and sum(parts) <= image.seconds


def test_jobs_are_drawn_when_places_become_free(session) -> None:
    drawn = []

    def source() -> Iterator[Job]:
        for job in JOBS[:4]:
            drawn.append(job.id)
            yield job

    engine = build_engine(session.target, None, DISTRIBUTIONS[0], MethodSettings(method="ar"), 2)
    finished = 0
    for step in engine.generate(source()):
        assert len(drawn) == min(finished + 2, 4)
        finished += len(step.finished)
    assert finished == 4


def test_few_jobs_or_none(session, truth) -> None:
    engine = build_engine(session.target, session.drafter, DISTRIBUTIONS[0], MethodSettings(), 5)
    assert list(engine.generate([])) == []
    assert codes(engine, JOBS[:2]) == {job.id: truth[DISTRIBUTIONS[0]][job.id] for job in JOBS[:2]}


def test_a_run_that_was_given_up_leaves_nothing_behind(session, truth) -> None:
    engine = build_engine(session.target, session.drafter, DISTRIBUTIONS[0], MethodSettings(), 2)
    abandoned = engine.generate(JOBS)
    for _ in range(3):
        next(abandoned)
    abandoned.close()
    assert codes(engine, JOBS[4:]) == {job.id: truth[DISTRIBUTIONS[0]][job.id] for job in JOBS[4:]}


def test_same_prompt_other_seed_is_another_image(session) -> None:
    engine = build_engine(session.target, session.drafter, DISTRIBUTIONS[0], MethodSettings(), 2)
    jobs = [Job("a", "cat", 1), Job("b", "cat", 2), Job("c", "cat", 1)]
    found = codes(engine, jobs)
    assert found["a"] == found["c"] != found["b"]


def test_at_temperature_0_the_seed_does_not_matter(session) -> None:
    engine = build_engine(session.target, session.drafter, DISTRIBUTIONS[1], MethodSettings(), 2)
    found = codes(engine, [Job("a", "cat", 1), Job("b", "cat", 2)])
    assert found["a"] == found["b"]


def test_a_target_without_numbers_is_reported(session, monkeypatch) -> None:
    engine = build_engine(session.target, None, DISTRIBUTIONS[0], MethodSettings(method="ar"), 1)
    monkeypatch.setattr(
        type(session.target), "score", lambda self, features: features[..., :VOCAB] * torch.nan
    )
    with pytest.raises(FloatingPointError, match="the target: expected probabilities"):
        list(engine.generate(JOBS[:1]))
