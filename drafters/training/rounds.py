"""Closed-loop rounds of a block drafter: what its window held, and what the target then chose.

How stale a window is depends on the drafts of the rounds before, so rounds are drawn by the drafter
in training itself, with the captions and seeds of the training images.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from torch import Tensor

from decoding.device import Stopwatch
from decoding.engine import Engine
from decoding.images import ImageState, Job, Speculation
from decoding.policies.dynamic import DynamicTree
from decoding.proposals import Coupled
from decoding.round import Round, RoundResult, TreeShape
from decoding.sampling import SamplingDistribution
from decoding.seeds import image_seed
from decoding.verifiers.exact import Exact
from drafters.block import PASSES, BlockDrafter, BlockHead, Drafted, Window
from drafters.hidden_states import Nodes
from drafters.training.shards import Tokens
from models.base import PromptRows
from models.target import TargetModel

# Trees of the rounds: as configs/fast/n16.yaml.
SHAPE = TreeShape(16, 3, 16)


@dataclass(frozen=True)
class Reading:
    """What a drafter read of one image in a pass of its head; tensors hold all images."""

    row: int  # of the image
    root: int  # position of the last decided token
    nodes: Nodes  # of the tree before
    recent: Tensor  # (images, REACH) the last decided tokens, the root's first
    best: Tensor  # (images, steps) the window's best candidates
    before: Tensor  # (images, guidance, steps, hidden) features before them


def _of_row(row: int, readings: Sequence[Reading]) -> list[Reading]:
    """Return an image's readings without other images; copies share what the readings shared."""
    copies: dict[int, Tensor] = {}

    def own(values: Tensor) -> Tensor:
        if id(values) not in copies:
            copies[id(values)] = values[row : row + 1].clone()
        return copies[id(values)]

    return [
        Reading(
            0, read.root, Nodes(*map(own, vars(read.nodes).values())),
            own(read.recent), own(read.best), own(read.before),
        )
        for read in readings
    ]  # fmt: skip


@dataclass
class Drawn:
    """An image that was drawn round by round."""

    prompt: PromptRows
    # (guidance, n, hidden) of the target: the prompt's, then those of slots from the first code on
    features: list[Tensor]
    codes: list[Tensor]  # (n,) each, the first code and what followed, row ends included
    readings: list[Reading] = field(default_factory=list)  # passes of rounds, all or those kept
    seed: int = 0

    @property
    def last_readings(self) -> list[Reading]:
        """Those of the rounds' last passes: their drafts became trees."""
        return self.readings[PASSES - 1 :: PASSES]


Keep = Callable[[int, Sequence[Reading]], Sequence[Reading]]


class RecordingDrafter(BlockDrafter):
    """Drafts as a block drafter, and keeps what it reads of every image."""

    def open(self, images: int, slots: int, watch: Stopwatch) -> None:
        super().open(images, slots, watch)
        self.drawn: list[Drawn | None] = [None] * images
        self.known: tuple[Round, Nodes, Tensor] | None = None  # before the newest round

    def prefill(self, image: int, prompt: PromptRows, hidden: Tensor, code: Tensor) -> None:
        super().prefill(image, prompt, hidden, code)
        self.drawn[image] = Drawn(prompt, [hidden], [code])

    def steps(self, round: Round) -> int:
        """Return the same in every round, also at the end of an image: rounds are stacked."""
        return self.largest.reach

    def _mixed(self, predicted: Tensor, window: Window, round: Round) -> Drafted:
        if self.known is None or self.known[0] is not round:
            # copies, since the next rounds change these tensors in place
            nodes = Nodes(*(values.clone() for values in vars(self.memory.nodes).values()))
            self.known = round, nodes, self.memory.last.recent.clone()
        read = *self.known[1:], window.codes[..., 0].clone(), window.before
        roots = (round.inputs.decided[:, 0] - 1).tolist()
        for row, (drawn, root) in enumerate(zip(self.drawn, roots, strict=True)):
            if drawn is not None:
                drawn.readings.append(Reading(row, root, *read))
        return super()._mixed(predicted, window, round)

    def update(self, result: RoundResult) -> None:
        super().update(result)
        accepted, hidden = result.accepted, result.accepted_hidden
        for image, count in enumerate(accepted.counts[:, 0].tolist()):
            if self.drawn[image] is None:
                continue
            self.drawn[image].features.append(hidden[image, :, :count].clone())
            self.drawn[image].codes.append(accepted.codes[image, :count].clone())


@dataclass(frozen=True)
class DrawnRounds:
    """Draws images with a drafter as it is now: call it with their numbers in `tokens`."""

    target: TargetModel
    head: BlockHead
    tokens: Tokens
    distribution: SamplingDistribution

    def __call__(self, images: Sequence[int], keep: Keep | None = None) -> list[Drawn]:
        """Return the drawn images in this order.

        keep: (index, readings) of a finished image -> those to keep in memory; None: all.
        """
        head = deepcopy(self.head).to(self.target.dtype)  # what it keeps is for inference alone
        drafter = RecordingDrafter(head, self.target, self.distribution, SHAPE)
        way = Speculation(drafter, DynamicTree(SHAPE, refreshes=True), Coupled())
        # without replay, since recording a round reads numbers of the device
        engine = Engine(self.target, self.distribution, Exact(), len(images), way)
        drawings: dict[str, Drawn] = {}

        def watch(states: Sequence[ImageState | None], result: RoundResult) -> None:
            for row, state in enumerate(states):
                if state is not None and state.remaining == 0:
                    drawn, drafter.drawn[row] = drafter.drawn[row], None
                    drawn.seed = state.job.seed
                    if keep is not None:
                        kept = keep(int(state.job.id), drawn.readings)
                        drawn.readings = _of_row(row, kept)
                    drawings[state.job.id] = drawn

        engine.watcher = watch
        for _ in engine.generate(self._job(number, image) for number, image in enumerate(images)):
            pass
        return [drawings[str(number)] for number in range(len(images))]

    def _job(self, number: int, image: int) -> Job:
        caption, seed = self.tokens.captions[image], self.tokens.seeds[image]
        return Job(str(number), caption, image_seed(image, caption) if seed is None else seed)
