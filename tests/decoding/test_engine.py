"""Whatever is drafted, accepted, batched or refilled, in fp64 tokens are plain decoding's."""

import math
import weakref
from collections.abc import Callable, Iterator
from unittest.mock import Mock

import pytest
import torch
from fakes import Path, ScriptedDrafter, codes, finished
from torch import Tensor

from configs.methods import TREES, AdtSettings, MethodSettings
from configs.rules import PROPOSALS, loaded
from decoding.engine import Engine
from decoding.images import FinishedImage, Job, RoundStats, Speculation
from decoding.policies.adaptive import AdaptiveTree
from decoding.policies.base import FixedController, TreePolicy
from decoding.policies.dynamic import DynamicTree
from decoding.policies.static import StaticTree, rank_paths
from decoding.round import ImageRound, TreeShape
from decoding.sampling import SamplingDistribution
from decoding.verifiers.exact import Exact
from models.base import ImageGrid
from runs.methods import build_engine
from runs.session import Session

VOCAB, TOKENS = 24, 16
PLAIN = MethodSettings("ar")
# prompts of four lengths
JOBS = [Job(str(i), "word " * (i % 4) + str(i), 100 + i) for i in range(7)]
DISTRIBUTIONS = [
    SamplingDistribution(),
    SamplingDistribution(temperature=0.0),
    SamplingDistribution(cfg=1.0),
    SamplingDistribution(temperature=0.0, cfg=1.0),
    SamplingDistribution(temperature=0.9, top_k=5, top_p=0.8),
]
METHODS = {
    "small eagle2": MethodSettings("eagle2", depth=3, width=4, nodes=7),
    "adt": MethodSettings("adt"),
    "jacobi": MethodSettings("jacobi", window=5),
    "eagle recall": MethodSettings("eagle_recall", depth=4, width=3, nodes=14, head_depth=2),
    "block": MethodSettings("block", depth=4, width=3, nodes=14),
}


def engine_of(
    session: Session,
    method: MethodSettings = METHODS["adt"],
    images: int = 2,
    distribution: SamplingDistribution = DISTRIBUTIONS[0],
) -> Engine:
    return build_engine(session.target, session.drafter, distribution, method, images)


@pytest.fixture(scope="module")
def truth(session: Session) -> dict[SamplingDistribution, dict[str, list[int]]]:
    """The baseline's codes by distribution and job."""
    return {d: codes(engine_of(session, PLAIN, 1, d), JOBS) for d in DISTRIBUTIONS}


LogQ = Callable[[Path, int], Tensor]


def scripted(
    session: Session, law: SamplingDistribution, policy: TreePolicy, log_q: LogQ, images: int
) -> Engine:
    speculation = Speculation(ScriptedDrafter(log_q), policy, loaded(PROPOSALS["coupled"])())
    return Engine(session.target, law, Exact(), images, speculation)


def oracle(session: Session, baseline: dict[str, list[int]], right: bool = True) -> LogQ:
    """A drafter that is sure of the baseline's next token; right=False: of any other one."""
    prompts = {job.id: session.target.prompt(job.prompt, 1).ids[0].tolist() for job in JOBS}
    expected = {tuple(ids): baseline[name] for name, ids in prompts.items()}

    def distribution(prompt: Path, position: int) -> Tensor:
        scores = torch.zeros(VOCAB, dtype=torch.float64)
        if position < TOKENS:
            scores[expected[prompt][position]] = 60.0 if right else -torch.inf
        return scores.log_softmax(-1)

    return distribution


def test_distributions_are_neither_flat_nor_certain(truth) -> None:
    """Otherwise the tests below would prove nothing."""
    for distribution, images in truth.items():
        different = {tuple(image) for image in images.values()}
        assert len(different) > (3 if distribution.greedy else 6), distribution
        assert sum(len(set(image)) for image in images.values()) > 7 * 3, distribution


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_an_oracle_is_always_accepted(distribution, session, truth) -> None:
    """Every round decides depth + 1 tokens, as far as the image goes."""
    expected = truth[distribution]
    for policy in (DynamicTree(TreeShape(3, 2, 8)), StaticTree(rank_paths(TREES["chain"]))):
        engine = scripted(session, distribution, policy, oracle(session, expected), 3)
        rounds = math.ceil((TOKENS - 1) / (policy.largest.depth + 1))
        for name, image in finished(engine, JOBS).items():
            assert image.codes.tolist() == expected[name]
            assert image.target_forwards == rounds + 1
            assert image.tau == (TOKENS - 1) / rounds


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_a_drafter_that_is_never_right_costs_nothing_but_time(distribution, session, truth) -> None:
    expected = truth[distribution]
    adaptive = AdaptiveTree(AdtSettings(), 12, ImageGrid(4, 4))
    for policy in (DynamicTree(TreeShape(3, 4, 8)), adaptive):
        engine = scripted(session, distribution, policy, oracle(session, expected, False), 3)
        for name, image in finished(engine, JOBS[:4]).items():
            assert image.codes.tolist() == expected[name]
            assert image.tau == 1 and image.target_forwards == TOKENS


def test_a_policy_may_not_leave_a_round_without_a_tree(session, truth) -> None:
    """Drafters read what was decided while they grow one; without, later drafts were worse."""

    class Pausing(DynamicTree):
        def controller(self, seed: int) -> FixedController:
            return FixedController(TreeShape(0, 4, 8))

    drafts = oracle(session, truth[DISTRIBUTIONS[0]])
    engine = scripted(session, DISTRIBUTIONS[0], Pausing(TreeShape(3, 4, 8)), drafts, 1)
    with pytest.raises(ValueError, match="FixedController.shape: expected at least one level, got"):
        finished(engine, JOBS[:1])


def test_adaptive_trees_grow_as_long_as_they_are_accepted(session, truth) -> None:
    policy = AdaptiveTree(AdtSettings(d_max=6, d_init=2, l_d=2), nodes=12, grid=ImageGrid(4, 4))
    drafts = oracle(session, truth[DISTRIBUTIONS[0]])
    engine = scripted(session, DISTRIBUTIONS[0], policy, drafts, 1)
    rounds = [step.rounds[0] for step in engine.generate(JOBS[:1])]
    assert [(r.position, r.drafted_depth, r.accepted) for r in rounds] == [
        (1, 2, 2),
        (4, 4, 4),
        (9, 6, 6),
    ]


Rounds = dict[str, list[RoundStats]]  # by job


def traced(engine: Engine, jobs: list[Job]) -> tuple[dict[str, FinishedImage], Rounds]:
    """Images by job, and the statistics of their rounds."""
    images, rounds = {}, {job.id: [] for job in jobs}
    for step in engine.generate(jobs):
        for stats in step.rounds:
            rounds[stats.id].append(stats)
        images |= {image.job.id: image for image in step.finished}
    return images, rounds


def top1s(rounds: list[RoundStats]) -> list[float]:
    return [probability for stats in rounds for probability in stats.top1]


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_rounds_do_not_depend_on_the_batch_nor_on_the_order(method, session, truth) -> None:
    """Every round's position, shape, nodes and acceptance, hence tau."""
    engine = engine_of(session, method, 3)
    images, rounds = traced(engine, JOBS)
    for image in images.values():
        parts = (image.seconds_prefill, image.seconds_draft, image.seconds_verify)
        assert min(parts) > 0 and sum(parts) <= image.seconds
    _, later = traced(engine, JOBS[:3:-1])
    _, alone = traced(engine_of(session, method, 1), JOBS[:3])
    for name, others in (later | alone).items():
        pairs = list(zip(rounds[name], others, strict=True))
        assert all(vars(one) | {"top1": 0} == vars(two) | {"top1": 0} for one, two in pairs)
        # a batch multiplies in another order, so probabilities differ in their last digits
        assert top1s(rounds[name]) == pytest.approx(top1s(others))


def test_top1_is_the_targets_own_at_every_position(session) -> None:
    """Plain decoding asks the target at one position after the other, a tree at several at once."""
    _, plain = traced(engine_of(session, PLAIN, 1), JOBS[:4])
    _, trees = traced(engine_of(session, METHODS["small eagle2"], 3), JOBS[:4])
    for name, rounds in trees.items():
        assert len(rounds) < len(plain[name]) and top1s(rounds) == pytest.approx(top1s(plain[name]))


def test_a_policy_sees_the_targets_entropy_where_it_decided(session, monkeypatch) -> None:
    seen: list[ImageRound] = []
    monkeypatch.setattr(FixedController, "observe", lambda self, outcome: seen.append(outcome))
    finished(engine_of(session, METHODS["small eagle2"], 1), JOBS[:1])
    assert seen and not any(one.entropy for one in seen), "it takes time"
    seen.clear()
    monkeypatch.setattr(DynamicTree, "reads_entropy", True)
    engine, wanted = engine_of(session, METHODS["small eagle2"], 1), []

    def watch(states, result) -> None:
        path = result.verdict.path[0, : int(result.verdict.accepted[0]) + 1]
        p = result.log_p[0, path].exp()
        wanted.append((-(p * p.clamp(min=1e-300).log()).sum(-1)).tolist())

    engine.watcher = watch
    finished(engine, JOBS[:1])
    assert len(seen) == len(wanted) and max(max(one.entropy) for one in seen) > 0.1
    for outcome, entropies in zip(seen, wanted, strict=True):
        assert len(outcome.entropy) == len(outcome.top1) == outcome.accepted + 1
        assert outcome.entropy == pytest.approx(entropies)


def test_jobs_are_taken_when_rows_become_free(session) -> None:
    taken = []

    def source() -> Iterator[Job]:
        for job in JOBS[:4]:
            taken.append(job.id)
            yield job

    done = 0
    for step in engine_of(session, PLAIN).generate(source()):
        assert len(taken) == min(done + 2, 4)
        done += len(step.finished)
    assert done == 4


def test_jobs_that_come_later_take_free_rows_and_none_stops_the_others(session, truth) -> None:
    """None: no job at the moment; the images in flight go on, also in a batch with idle rows."""
    later = iter([JOBS[2], *[None] * 5, JOBS[3]])
    images = {}
    for step in engine_of(session, PLAIN, 2).generate(JOBS[:2], later):
        images |= {image.job.id: image.codes.tolist() for image in step.finished}
    assert images == {name: truth[DISTRIBUTIONS[0]][name] for name in "0123"}


def test_an_engine_without_room_for_other_images_can_be_used_again(session, truth, monkeypatch):
    engine, full = engine_of(session), torch.cuda.OutOfMemoryError("out of memory")
    assert list(engine.generate(JOBS[:2]))
    kept = weakref.ref(engine.images)
    monkeypatch.setattr(engine.speculation.drafter, "open", Mock(side_effect=full))
    with pytest.raises(torch.cuda.OutOfMemoryError):
        next(engine.generate(JOBS[:1]))
    assert kept() is None, "its memory is kept"
    monkeypatch.undo()
    assert codes(engine, JOBS[:1]) == {job.id: truth[DISTRIBUTIONS[0]][job.id] for job in JOBS[:1]}


@pytest.mark.parametrize("distribution", DISTRIBUTIONS[:2], ids=["T=1", "T=0"])
def test_the_seed_decides_an_image_above_temperature_0(distribution, session) -> None:
    jobs = [Job("a", "cat", 1), Job("b", "cat", 2), Job("c", "cat", 1)]
    images = codes(engine_of(session, distribution=distribution), jobs)
    assert images["a"] == images["c"]
    assert (images["a"] == images["b"]) == distribution.greedy


def test_a_watcher_sees_every_round_and_changes_no_token(session, truth) -> None:
    """Every round, its trees and the codes decided so far."""
    engine, seen = engine_of(session), []

    def watch(states, result) -> None:
        for image, state in enumerate(states):
            if state is None:
                continue
            decided, count = torch.tensor(state.codes), int(result.verdict.accepted[image]) + 1
            assert len(decided) == state.decided
            assert torch.equal(decided[-count:], result.verdict.emitted[image, :count])
            assert int(result.tree.tokens[image, 0]) == int(decided[-count - 1])
        seen.append([state.job.id for state in states if state is not None])

    engine.watcher = watch
    steps = list(engine.generate(JOBS[:2]))
    assert seen == [[stats.id for stats in step.rounds] for step in steps]
    for image in (image for step in steps for image in step.finished):
        assert image.codes.tolist() == truth[DISTRIBUTIONS[0]][image.job.id]
