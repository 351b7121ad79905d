"""Closed-loop rounds of a block drafter: what its window held, and what the target then chose.

How stale a window is depends on the drafts of the rounds before, so rounds are drawn by the drafter
in training itself, with the captions and seeds of the training images.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from torch import Tensor

from decoding.drafter import Decided
from decoding.engine import Engine, Verified
from decoding.flight import Flight, Job
from decoding.grow import Speculation
from decoding.noise import image_seed
from decoding.policies.base import Shape
from decoding.policies.dynamic import DynamicTree
from decoding.proposals import PROPOSALS
from decoding.sampling import SamplingDistribution
from decoding.timing import Stopwatch
from decoding.verifiers.exact import Exact
from drafters.block import BlockDrafter, Window
from drafters.block_head import BlockHead
from drafters.eagle import drafted_nodes
from drafters.stale import Nodes
from drafters.training.shards import Tokens
from models.base import PromptRows, TargetModel

# Trees of the rounds: as configs/fast/n16.yaml.
SHAPE = Shape(16, 3, 16, 16)


@dataclass(frozen=True)
class Reading:
    """What a drafter read of one image in a round: each with one image.

    root: position of the last decided token. window: of the round. nodes: of the tree before.
    recent: (1, REACH) the last decided tokens, the root's first.
    """

    root: int
    window: Window
    nodes: Nodes
    recent: Tensor


@dataclass
class Drawn:
    """An image that was drawn round by round.

    features: (guidance, n, hidden) of the target, in parts: the prompt's, then those of the slots
    from the first code on. codes: (n,) each, the first code and what followed, row ends included.
    """

    prompt: PromptRows
    features: list[Tensor]
    codes: list[Tensor]
    readings: list[Reading] = field(default_factory=list)
    seed: int = 0


class RecordingDrafter(BlockDrafter):
    """Drafts as a block drafter, and keeps what it reads of every image."""

    def open(self, images: int, watch: Stopwatch, fixed: bool = False) -> None:
        super().open(images, watch, fixed)
        self.drawn: list[Drawn | None] = [None] * images

    def start(self, image: int, prompt: PromptRows, features: Tensor, code: Tensor) -> None:
        super().start(image, prompt, features, code)
        self.drawn[image] = Drawn(prompt, [features], [code])

    def _read_window(self) -> None:
        super()._read_window()
        memory, window = self.memory, self.ahead
        roots = memory.root[:, 0].tolist()
        for image, (drawn, root) in enumerate(zip(self.drawn, roots, strict=True)):
            one = slice(image, image + 1)
            names = "codes", "before", "stale", "likeness"
            own = Window(*(getattr(window, name)[one] for name in names))
            nodes, recent = memory.nodes.select([image]), memory.recent[one].clone()
            drawn.readings.append(Reading(root, own, nodes, recent))

    def commit(self, decided: Decided) -> None:
        super().commit(decided)
        for image, count in enumerate(decided.counts):
            self.drawn[image].features.append(decided.features[image, :, :count].clone())
            self.drawn[image].codes.append(decided.codes[image, :count].clone())

    def select(self, images: list[int]) -> None:
        super().select(images)
        self.drawn = [self.drawn[image] for image in images]


@dataclass(frozen=True)
class DrawnRounds:
    """Draws images with a drafter as it is now: call it with their numbers in `tokens`."""

    target: TargetModel
    head: BlockHead
    tokens: Tokens
    distribution: SamplingDistribution

    def __call__(self, images: Sequence[int], picks: Sequence[int] | None = None) -> list[Drawn]:
        """Return the drawn images in this order; picks: None, since all rows are trained on."""
        assert picks is None
        room = drafted_nodes(SHAPE)
        head = deepcopy(self.head).to(self.target.dtype)  # what it keeps is for inference alone
        drafter = RecordingDrafter(head, self.target, self.distribution, room, SHAPE.reach)
        way = Speculation(drafter, DynamicTree(SHAPE), PROPOSALS["coupled"]())
        engine = Engine(self.target, self.distribution, Exact(), len(images), way)
        found: dict[str, Drawn] = {}

        def watch(flights: Sequence[Flight], verified: Verified) -> None:
            for flight, drawn in zip(flights, drafter.drawn, strict=True):
                if flight.remaining == 0:
                    drawn.seed = flight.job.seed
                    found[flight.job.id] = drawn

        engine.watcher = watch
        for _ in engine.generate(self._job(place, image) for place, image in enumerate(images)):
            pass
        return [found[str(place)] for place in range(len(images))]

    def _job(self, place: int, image: int) -> Job:
        caption, seed = self.tokens.captions[image], self.tokens.seeds[image]
        return Job(str(place), caption, image_seed(image, caption) if seed is None else seed)
