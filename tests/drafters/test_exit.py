"""Early exit: plain decoding's tokens, drafts that see what the target sees, and no layer run twice
for a token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small import Sizes, open_lumina, randomised, small_settings, write_checkpoint
from torch import Tensor, nn

from configs.schema import AdtSettings, MethodSettings
from decoding.engine import Engine
from decoding.flight import FinishedImage, Job, RoundStats
from decoding.grow import Speculation
from decoding.policies.adaptive import AdaptiveTree
from decoding.policies.base import Controller, Outcome, Shape, TreePolicy
from decoding.policies.dynamic import DynamicTree
from decoding.policies.marginal import MarginalTree
from decoding.policies.static import NAMED_TREES, StaticTree, rank_paths
from decoding.policies.ways import Prices
from decoding.proposals import PROPOSALS
from decoding.sampling import SamplingDistribution
from decoding.start import NO_TREE
from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from decoding.verifiers.exact import Exact
from drafters.eagle import drafted_nodes
from drafters.exit import ExitDrafter, ExitHead
from drafters.training.agreement import draft_distributions
from drafters.training.rows import target_rows
from models.guidance import SequentialGuidance
from runs.methods import build_engine
from runs.session import Session, open_session

JOBS = [Job(str(i), "word " * (i % 4) + str(i), 100 + i) for i in range(7)]
DISTRIBUTIONS = [
    SamplingDistribution(),
    SamplingDistribution(temperature=0.0),
    SamplingDistribution(cfg=1.0),
    SamplingDistribution(temperature=0.9, top_k=5, top_p=0.8),
]


class EverySecond:
    """A controller that wants a tree in every second round of its image."""

    def __init__(self, controller: Controller):
        self.controller, self.rounds = controller, 0

    def shape(self, position: int, remaining: int) -> Shape:
        self.rounds += 1
        return self.controller.shape(position, remaining) if self.rounds % 2 else NO_TREE

    def observe(self, outcome: Outcome) -> None:
        self.controller.observe(outcome)


class SeldomTree(DynamicTree):
    def controller(self, seed: int) -> Controller:
        return EverySecond(super().controller(seed))


POLICIES = [
    SeldomTree(Shape(3, 4, 9)),
    DynamicTree(Shape(3, 4, 9)),
    DynamicTree(Shape(5, 2, 40)),
    StaticTree(rank_paths(NAMED_TREES["reverse_balanced_25"])),
    AdaptiveTree(AdtSettings(), 6, 4),
    MarginalTree(
        Shape(4, 3, 12),
        Prices((1.0, *(1.05 + 0.03 * nodes for nodes in range(12))), (0.0, 0.02, 0.04, 0.06, 0.08)),
        4,
    ),
]


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Session:
    """A target of four layers in fp64."""
    folder = write_checkpoint(tmp_path_factory.mktemp("deep") / "checkpoint", Sizes(layers=4))
    return open_session(small_settings(folder))


class Whole(nn.Module):
    """A head that predicts the target's features, since all layers are run before the exit."""

    def __init__(self, session: Session):
        super().__init__()
        self.spec, self.final = session.target.spec, session.target.transformer.norm

    def forward(self, hidden: Tensor, features: Tensor) -> Tensor:
        return self.final(hidden)


def head_of(session: Session, layers: int) -> nn.Module:
    if layers == session.target.spec.layers:
        return Whole(session)
    head = ExitHead(replace(session.target.spec, layers=layers))
    return randomised(head, 5).to(session.target.dtype)


def engine_of(
    session: Session,
    layers: int,
    distribution: SamplingDistribution,
    policy: TreePolicy,
    images: int,
    proposal: str = "coupled",
) -> Engine:
    room = drafted_nodes(policy.largest)
    drafter = ExitDrafter(head_of(session, layers), session.target, distribution, room, 5)
    speculation = Speculation(drafter, policy, PROPOSALS[proposal]())
    return Engine(session.target, distribution, Exact(), images, speculation)


def decode(engine: Engine) -> tuple[dict[str, list[int]], list[RoundStats]]:
    found: list[FinishedImage] = []
    rounds: list[RoundStats] = []
    for step in engine.generate(JOBS):
        found += step.finished
        rounds += step.rounds
    return {image.job.id: image.codes.tolist() for image in found}, rounds


def plain(session: Session, distribution: SamplingDistribution) -> dict[str, list[int]]:
    method = MethodSettings(method="ar")
    return decode(build_engine(session.target, None, distribution, method, 1))[0]


@pytest.mark.parametrize("distribution", DISTRIBUTIONS, ids=str)
def test_the_tokens_are_those_of_plain_decoding(distribution, deep) -> None:
    truth = plain(deep, distribution)
    for policy in POLICIES:
        for layers, images in ((1, 1), (2, 3), (3, 7)):
            engine = engine_of(deep, layers, distribution, policy, images)
            assert decode(engine)[0] == truth, (policy.largest, layers, images)


@pytest.mark.parametrize("images", [1, 3])
@pytest.mark.parametrize("tree", ["chain", "reverse_balanced_25"])
def test_a_head_that_reads_all_layers_is_always_right(tree, images, deep) -> None:
    """So what the first layers see of a branch is what the target sees of it."""
    policy = StaticTree(rank_paths(NAMED_TREES[tree]))
    for proposal in ("coupled", "topk"):
        distribution = SamplingDistribution(temperature=float(proposal == "coupled"))
        found, rounds = decode(engine_of(deep, 4, distribution, policy, images, proposal))
        assert found == plain(deep, distribution)
        assert all(stats.accepted == stats.depth for stats in rounds)


def test_guidance_rows_may_be_computed_one_after_the_other(deep) -> None:
    sequential = replace(deep, target=SequentialGuidance(deep.target))
    distribution = SamplingDistribution()
    for images in (1, 3):
        engine = engine_of(sequential, 2, distribution, POLICIES[0], images)
        assert decode(engine)[0] == plain(deep, distribution)


def test_roots_alone_are_read_by_all_layers_at_once(deep, monkeypatch) -> None:
    finished, finish = [], ExitDrafter.forward
    monkeypatch.setattr(
        ExitDrafter, "forward", lambda *given: finished.append(given) or finish(*given)
    )
    engine = engine_of(deep, 2, SamplingDistribution(), SeldomTree(Shape(3, 4, 9)), 1)
    found, rounds = decode(engine)
    assert found == plain(deep, SamplingDistribution())
    assert 0 < len(finished) == sum(stats.depth > 0 for stats in rounds) < len(rounds)


def test_no_layer_reads_a_token_twice(deep, monkeypatch, plain_blocks) -> None:
    """In a chain every layer reads the root and the five nodes, whoever asks for it."""
    policy = StaticTree(rank_paths(NAMED_TREES["chain"]))
    engine = engine_of(deep, 2, SamplingDistribution(), policy, 1)
    steps = engine.generate(JOBS[:1])
    next(steps)  # the prompt and the first round
    read = [0] * deep.target.spec.layers
    for layer, block in enumerate(deep.target.transformer.blocks.blocks):

        def counted(x: Tensor, *rest: object, layer: int = layer, run=block.forward) -> Tensor:
            read[layer] += x.shape[1]
            return run(x, *rest)

        monkeypatch.setattr(block, "forward", counted)
    stats = next(steps).rounds[0]
    assert stats.depth == 5 and read == [6] * len(read)


@pytest.mark.parametrize("layers", [1, 3])
def test_training_sees_what_decoding_drafts(layers, deep) -> None:
    """The head's predictions of an image, and those of the drafter along the image's own tokens."""
    target, distribution = deep.target, SamplingDistribution()
    job = JOBS[1]
    image = decode_one(deep, job)
    rows = target_rows(target, target.prompt(job.prompt, 2), image.codes[None])
    head = head_of(deep, layers)
    expected = draft_distributions(target, head, rows, distribution, 3)
    policy = StaticTree(rank_paths("root:1 0:1 00:1"))
    drafter = Recorded(head, target, distribution, drafted_nodes(policy.largest), 3)
    engine = Engine(
        target, distribution, Exact(), 1, Speculation(drafter, policy, Known(image.codes))
    )
    assert [step.rounds[0].accepted for step in engine.generate([job])][:3] == [3, 3, 3]
    for number, log_q in enumerate(drafter.seen[:9]):
        round_, level = divmod(number, 3)
        token = 1 + 4 * round_ + level  # drafted by level + 1 levels
        torch.testing.assert_close(log_q[0, 0], expected[level][0, token - level - 1])


def decode_one(session: Session, job: Job) -> FinishedImage:
    method = MethodSettings(method="ar")
    engine = build_engine(session.target, None, SamplingDistribution(), method, 1)
    return next(image for step in engine.generate([job]) for image in step.finished)


class Recorded(ExitDrafter):
    """Keeps the distributions that it proposes."""

    def open(self, images: int, watch: Stopwatch, fixed: bool = False) -> None:
        super().open(images, watch, fixed)
        self.seen: list[Tensor] = []

    def expand(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        self.seen.append(super().expand(tree, nodes))
        return self.seen[-1]


class Known:
    """Proposes the codes of an image, in their order."""

    name, stream = "known", "target"

    def __init__(self, codes: Tensor):
        self.left = iter(codes[1:].tolist())
        self.level = 0

    def children(
        self, log_q: Tensor, noise: Tensor, count: int, level: int, trust: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        if level == 1 and self.level:  # the bonus token of the round before
            next(self.left)
        self.level = level
        return torch.tensor([[[next(self.left)]]]), log_q.new_zeros(1, 1, 1)


def test_targets_with_row_ends_are_refused(lumina_folder) -> None:
    target = open_lumina(lumina_folder, "64").target
    head = ExitHead(replace(target.spec, layers=1))
    with pytest.raises(ValueError, match="--drafter_path: found an early exit for lumina_mgpt"):
        ExitDrafter(head, target, SamplingDistribution(), 10, 3)
