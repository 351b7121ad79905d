"""Closed-loop rounds of a block drafter: what its window held, and what the target then chose.

How stale the recalled states are depends on the drafts of the rounds before, so the drafter in
training generates images itself, with the captions and seeds of the training images.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace

from torch import Tensor

from decoding.engine import Engine
from decoding.images import ImageState, Job, Speculation
from decoding.policies.dynamic import DynamicTree
from decoding.proposals import Coupled, Proposal
from decoding.round import Round, RoundResult, TreeShape
from decoding.sampling import SamplingDistribution
from decoding.seeds import image_seed
from decoding.stopwatch import Stopwatch
from decoding.verifiers.exact import Exact
from drafters.block import BlockDrafter, BlockHead, HeadPasses
from drafters.state_memory import NodeStates
from drafters.training.shards import Tokens
from drafters.window import PASSES, WindowPass
from models.base import PromptRows
from models.target import TargetModel

# Trees of the rounds: as configs/fast/n16.yaml.
SHAPE = TreeShape(16, 3, 16)


@dataclass(frozen=True)
class RecordedPass:
    """What the head read of one image in a pass; tensors hold all images."""

    row: int  # of the image
    root: int  # position of the last decided token
    nodes: NodeStates  # of the tree before
    recent: Tensor  # (images, SUFFIX) the last decided tokens, the root's first
    best: Tensor  # (images, positions) the window's best candidates
    before: Tensor  # (images, guidance, positions - 1, hidden) states before those below the root


def _of_row(row: int, passes: Sequence[RecordedPass]) -> list[RecordedPass]:
    """Return an image's passes without other images; copies share what the passes shared."""
    copies: dict[int, Tensor] = {}

    def own(values: Tensor) -> Tensor:
        if id(values) not in copies:
            copies[id(values)] = values[row : row + 1].clone()
        return copies[id(values)]

    return [
        RecordedPass(
            0, one.root, NodeStates(*map(own, vars(one.nodes).values())),
            own(one.recent), own(one.best), own(one.before),
        )
        for one in passes
    ]  # fmt: skip


@dataclass
class RecordedImage:
    """An image that was generated round by round."""

    prompt: PromptRows
    # (guidance, n, hidden) of the target: the prompt's, then those of slots from the first code on
    features: list[Tensor]
    codes: list[Tensor]  # (n,) each, the first code and what followed, row ends included
    passes: list[RecordedPass] = field(default_factory=list)  # of its rounds, all or those kept
    seed: int = 0

    @property
    def last_passes(self) -> list[RecordedPass]:
        """The last pass of each round, whose drafts became the tree."""
        return self.passes[PASSES - 1 :: PASSES]


Keep = Callable[[int, Sequence[RecordedPass]], Sequence[RecordedPass]]


class RecordingDrafter(BlockDrafter):
    """Drafts as a block drafter, and keeps what it reads of every image."""

    def open(self, images: int, slots: int, watch: Stopwatch) -> None:
        super().open(images, slots, watch)
        self.images: list[RecordedImage | None] = [None] * images

    def prefill(self, image: int, prompt: PromptRows, hidden: Tensor, code: Tensor) -> None:
        super().prefill(image, prompt, hidden, code)
        self.images[image] = RecordedImage(prompt, [hidden], [code])

    def begin(self, round: Round, proposal: Proposal) -> None:
        # windows of one size in every round, also at the end of an image, since they are stacked
        shape = replace(round.shape, depth=self.largest.reach)
        super().begin(replace(round, shape=shape), proposal)

    def source(self, round: Round) -> "RecordedPasses":
        return RecordedPasses(self, round)

    def update(self, result: RoundResult) -> None:
        super().update(result)
        accepted, hidden = result.accepted, result.accepted_hidden
        for row, count in enumerate(accepted.counts[:, 0].tolist()):
            if (image := self.images[row]) is not None:
                image.features.append(hidden[row, :, :count].clone())
                image.codes.append(accepted.codes[row, :count].clone())


class RecordedPasses(HeadPasses):
    """Passes whose inputs are kept with the images."""

    drafter: RecordingDrafter

    def __init__(self, drafter: RecordingDrafter, round: Round):
        super().__init__(drafter, round)
        # copies, since the next rounds change these tensors in place
        nodes = (values.clone() for values in vars(drafter.memory.nodes).values())
        self.nodes, self.last = NodeStates(*nodes), self.recent.clone()
        self.roots = (round.inputs.decided[:, 0] - 1).tolist()

    def read(self, codes: Tensor, states: Tensor | None) -> WindowPass:
        assert states is not None, "`first` predicts some"
        inputs = self.nodes, self.last, codes[..., 0].clone(), states[:, :, :-1]
        for row, (image, root) in enumerate(zip(self.drafter.images, self.roots, strict=True)):
            if image is not None:
                image.passes.append(RecordedPass(row, root, *inputs))
        return super().read(codes, states)


@dataclass(frozen=True)
class RecordedRounds:
    """Generates images with a drafter as it is now: call it with their numbers in `tokens`."""

    target: TargetModel
    head: BlockHead
    tokens: Tokens
    distribution: SamplingDistribution

    def __call__(self, images: Sequence[int], keep: Keep | None = None) -> list[RecordedImage]:
        """Return the images in this order.

        keep: (index, passes) of a finished image -> those to keep in memory; None: all.
        """
        head = deepcopy(self.head).to(self.target.dtype)  # what it keeps is for inference alone
        drafter = RecordingDrafter(head, self.target, self.distribution, SHAPE)
        way = Speculation(drafter, DynamicTree(SHAPE, refreshes=True), Coupled())
        # without replay, since recording a round reads numbers of the device
        engine = Engine(self.target, self.distribution, Exact(), len(images), way)
        finished: dict[str, RecordedImage] = {}

        def watch(states: Sequence[ImageState | None], result: RoundResult) -> None:
            for row, state in enumerate(states):
                if state is not None and state.remaining == 0:
                    image, drafter.images[row] = drafter.images[row], None
                    assert image is not None, "its prefill began it"
                    image.seed = state.job.seed
                    if keep is not None:
                        image.passes = _of_row(row, keep(int(state.job.id), image.passes))
                    finished[state.job.id] = image

        engine.watcher = watch
        for _ in engine.generate(self._job(number, image) for number, image in enumerate(images)):
            pass
        return [finished[str(number)] for number in range(len(images))]

    def _job(self, number: int, image: int) -> Job:
        caption, seed = self.tokens.captions[image], self.tokens.seeds[image]
        return Job(str(number), caption, image_seed(image, caption) if seed is None else seed)
