"""The images in flight: what the host keeps of each, their noise and KV cache, how jobs enter."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from decoding.cache import CacheShape, KVCache, image_slots
from decoding.device import to_host
from decoding.drafter import Drafter
from decoding.noise import NoiseShape, stream_key
from decoding.noise_table import NoiseTable
from decoding.policies.base import Controller, FixedController, TreePolicy
from decoding.proposals import Proposal
from decoding.round import (
    IDLE,
    NO_TREE,
    ImageInputs,
    ImageRound,
    RoundShape,
    TreeShape,
    largest_of,
)
from decoding.row_ends import end_depths, most_row_ends
from decoding.sampling import SamplingDistribution, choose
from decoding.tree import DraftTree
from models.base import ImageGrid, PromptRows
from models.target import TargetModel


@dataclass(frozen=True)
class Job:
    """An image to make: its id, its prompt and its own 63-bit seed."""

    id: str  # that no other image of the same `Engine.generate` has
    prompt: str
    seed: int


Kind = TypeVar("Kind", bound=Drafter)


@dataclass(frozen=True)
class Speculation(Generic[Kind]):
    """A way to draft."""

    drafter: Kind  # proposes distributions
    policy: TreePolicy[Kind]  # which nodes a tree has
    proposal: Proposal  # how children are taken from a distribution


@dataclass(frozen=True)
class Sources:
    """How errors call the two models: their flags and folders, if these are known."""

    target: str = "the target"
    drafter: str = "the drafter"


def refuse_nan(model: str) -> None:
    """Raise a FloatingPointError: a model's distribution contains NaN, which decides nothing."""
    raise FloatingPointError(
        f"{model}: expected probabilities of the next token, got NaN. Check that its weights "
        "are finite, and choose a --dtype in which its values do not overflow"
    )


@dataclass(frozen=True)
class RoundStats:
    """A round of one image; these are the entries of a line of trace.jsonl."""

    id: str
    round: int
    position: int  # of the first token that it decided
    drafted_depth: int  # levels that were drafted
    verified_depth: int  # of the verified tree, after pruning
    width: int
    nodes: int  # of the verified tree
    accepted: int  # accepted draft tokens
    top1: tuple[float, ...]  # the target's greatest probability at every decided position


@dataclass(frozen=True, kw_only=True)
class ImageCost:
    """What an image took."""

    mean_drafted_depth: float
    mean_verified_depth: float  # of the verified trees
    mean_nodes: float
    # the image's share of its batch's rounds, and its own prefill; the VQ decoder is not in it
    seconds: float
    seconds_prefill: float
    seconds_draft: float  # 0 for rounds that were replayed, which are timed as a whole
    seconds_verify: float


@dataclass(frozen=True)
class FinishedImage(ImageCost):
    """An image's codes (tokens,) on the CPU, and what they cost."""

    job: Job
    codes: Tensor
    target_forwards: int  # its rounds, and one for the prefill, which images of one prompt share
    tau: float  # tokens decided per round, bonus tokens included; the prefill's is not counted


@dataclass
class ImageState:
    """An image between rounds."""

    job: Job
    grid: ImageGrid
    codes: list[int]  # decided so far
    length: int  # committed slots of the target's cache
    controller: Controller | None  # the policy's memory of the image; None in plain decoding
    seconds_prefill: float
    pending: int = 1  # slots decided in the last round
    rounds: int = 0
    drafted_levels: int = 0  # of all trees
    verified_levels: int = 0
    nodes: int = 0
    seconds: float = 0.0
    seconds_draft: float = 0.0
    seconds_verify: float = 0.0
    planned: TreeShape = NO_TREE  # of the round that runs

    @property
    def decided(self) -> int:
        """Image tokens decided."""
        return len(self.codes)

    @property
    def remaining(self) -> int:
        """Image tokens still to decide."""
        return self.grid.tokens - self.decided

    @property
    def steady(self) -> bool:
        """Whether the next tree has the size of the running round's, whatever that one accepts."""
        fixed = self.controller is None or isinstance(self.controller, FixedController)
        return fixed and self.remaining >= self.furthest

    @property
    def furthest(self) -> int:
        """Image tokens that the running round and the next decide at most."""
        return 2 * (self.planned.reach + 1)

    def inputs(self, samples: bool) -> ImageInputs:
        """Return the numbers of the next round; samples: whether it draws drafts."""
        if self.controller is not None:
            wanted = self.controller.shape(self.decided)
            if not wanted.reach:  # drafters read what was decided while they grow a tree
                name = type(self.controller).__qualname__
                raise ValueError(f"{name}.shape: expected at least one level, got {wanted}")
            self.planned = wanted.within(self.remaining)
        # with the round's number, so that a position that is drafted again gets new draws
        stream = stream_key(self.job.seed, f"draft {self.rounds}") if samples else 0
        numbers = self.codes[-1], self.decided, self.length, self.pending, stream
        return ImageInputs(*numbers, *self.planned)

    def observe(self, outcome: ImageRound) -> RoundStats:
        """Count a round and let the controller learn from it."""
        position, accepted = outcome.position, outcome.accepted
        stats = RoundStats(
            self.job.id, self.rounds, position, self.planned.reach, outcome.depth,
            self.planned.width, outcome.nodes, accepted, outcome.top1,
        )  # fmt: skip
        if self.controller is not None:
            self.controller.observe(outcome)
        self.codes += outcome.codes
        root, slots = position - 1, self.grid.slots
        # slots of the root, the accepted nodes, and the row ends before the bonus token
        self.pending = slots(root + accepted + 1) - slots(root)
        self.length += self.pending
        self.rounds += 1
        self.drafted_levels += stats.drafted_depth
        self.verified_levels += outcome.depth
        self.nodes += outcome.nodes
        return stats

    def spend(self, draft: float, verify: float, total: float) -> None:
        """Add this image's share of a round's seconds."""
        self.seconds_draft += draft
        self.seconds_verify += verify
        self.seconds += total

    def finish(self) -> FinishedImage:
        """Return the image and what it took."""
        rounds = max(self.rounds, 1)
        return FinishedImage(
            job=self.job,
            codes=torch.tensor(self.codes),
            target_forwards=self.rounds + 1,
            tau=(self.decided - 1) / rounds,
            mean_drafted_depth=self.drafted_levels / rounds,
            mean_verified_depth=self.verified_levels / rounds,
            mean_nodes=self.nodes / rounds,
            seconds=self.seconds + self.seconds_prefill,
            seconds_prefill=self.seconds_prefill,
            seconds_draft=self.seconds_draft,
            seconds_verify=self.seconds_verify,
        )


@dataclass(frozen=True)
class _Prompt:
    """A prompt that the target has read."""

    text: str
    image: int  # whose cache rows hold its keys and values, in the first slots
    rows: PromptRows
    hidden: Tensor  # (guidance, length, hidden) of the target
    log_p: Tensor  # (1, 1, vocab) of the first image token


class Images:
    """The images that are decoded together; image i has row i of every state.

    The batch keeps its size: a row without an image computes values that are not used.
    """

    def __init__(
        self,
        jobs: Sequence[Job],
        target: TargetModel,
        distribution: SamplingDistribution,
        speculation: Speculation | None,
        sources: Sources,
    ):
        """Allocate a row per job, for prompts as long as theirs."""
        self.target, self.distribution = target, distribution
        self.speculation, self.sources = speculation, sources
        self.largest = speculation.policy.largest if speculation else NO_TREE
        longest = max(map(target.length, {job.prompt for job in jobs}))
        shape = CacheShape(len(jobs), distribution.guidance, self._slots(longest))
        self.cache = KVCache(target.spec, shape, target.dtype, target.device)
        self.states: list[ImageState | None] = [None] * len(jobs)
        dtype = torch.promote_types(target.dtype, torch.float32)
        size = target.grid.tokens, target.vocab.size
        reach = 1 + self.largest.reach
        noise = NoiseShape(*size, distribution.greedy, dtype, target.device, reach)
        self.noise = NoiseTable(noise, len(jobs))
        self._last: _Prompt | None = None  # the prompt read last

    def _slots(self, length: int) -> int:
        """Return the cache slots of an image with a prompt of this length."""
        return image_slots(length, self.target.grid, self.largest.nodes)

    @property
    def largest_round(self) -> RoundShape:
        """What no round exceeds; it changes only with the memory that captured rounds read."""
        grid, tree = self.target.grid, self.largest
        depths = () if grid.row_end is None else tuple(range(tree.reach + 1))
        return RoundShape(
            len(self.states),
            *tree,
            pending=grid.block(tree.reach),
            committed=self.cache.slots - grid.block(tree.nodes),
            row_ends=len(depths) and tree.nodes + 1,
            end_depths=depths,
        )

    def reopen(self, images: int) -> bool:
        """Free all rows for other jobs; returns whether there are so many."""
        self.states, self._last = [None] * len(self.states), None
        return len(self.states) == images

    @torch.inference_mode()
    def admit(self, queue: Iterator[Job | None]) -> bool:
        """Give free rows to the next jobs; returns whether an image is in flight."""
        for image, state in enumerate(self.states):
            if state is not None:
                continue
            if (job := next(queue, None)) is not None:
                self.states[image] = self._prefill(image, job)
            elif self._last is not None and self._last.image == image:
                self._last = None  # rounds write over the prompt of a free row
        return any(state is not None for state in self.states)

    def _prefill(self, image: int, job: Job) -> ImageState:
        """Read a job's prompt and decide its first image token."""
        started = time.perf_counter()
        prompt = self._last = self._read(image, job.prompt)
        self.noise.fill(image, job.seed)
        code = choose(prompt.log_p, self.noise.table[image : image + 1, :1])[0]  # (1,)
        # waits for the device, which makes the seconds true
        first, is_nan = to_host(torch.stack([code[0], prompt.log_p.isnan().any().long()]))
        if is_nan:
            refuse_nan(self.sources.target)
        controller = None
        if self.speculation:
            controller = self.speculation.policy.controller(job.seed)
            self.speculation.drafter.prefill(image, prompt.rows, prompt.hidden, code)
        seconds, length = time.perf_counter() - started, prompt.rows.ids.shape[1]
        return ImageState(job, self.target.grid, [int(first)], length, controller, seconds)

    def _read(self, image: int, text: str) -> _Prompt:
        """Return a prompt with its keys and values in an image's cache rows.

        The target reads it unless it was the last one: images of one prompt come one after the
        other. The slots of a prompt stay as they are while its row has an image.
        """
        if self._last is not None and self._last.text == text:
            self.cache.begin_as(image, self._last.image, self._last.rows.ids.shape[1])
            return self._last
        rows = self.target.prompt(text, self.distribution.guidance)
        length = rows.ids.shape[1]
        self.cache.grow(self._slots(length))
        context = self.cache.prefill(image, length, rows.starts, rows.origins)
        layers = () if self.speculation is None else self.speculation.drafter.reads
        hidden = self.target.read(rows, context, layers)
        log_p = self.distribution(self.target.score(hidden[:, -1:]))
        return _Prompt(text, image, rows, hidden, log_p)

    def next_round(self) -> tuple[RoundShape, list[ImageInputs]]:
        """Return the next round's sizes and numbers, and make its noise."""
        samples = self.speculation is not None and self.speculation.proposal.samples
        inputs = [IDLE if state is None else state.inputs(samples) for state in self.states]
        # before the round, since a captured one cannot ask whether its noise is there
        self.noise.keep_ahead([numbers.decided for numbers in inputs])
        trees = [numbers.tree for numbers in inputs]
        largest, grid = largest_of(trees), self.target.grid
        shape = RoundShape(
            len(inputs),
            *largest,
            pending=max(numbers.pending for numbers in inputs),
            committed=max(numbers.length for numbers in inputs),
            uniform=all(tree == largest for tree in trees),
        )
        if grid.row_end is not None:
            depths = end_depths(inputs, grid)
            count = most_row_ends(depths, largest)
            shape = replace(shape, row_ends=count, end_depths=depths)
        return shape, inputs

    @property
    def steady(self) -> bool:
        """Whether the next round's sizes are known, and its noise made, before this one's outcome.

        Then its inputs follow from the verdict alone (`RoundResult.next_inputs`), on the device.
        """
        if self.target.grid.row_end is not None or (
            self.speculation is not None and self.speculation.proposal.samples
        ):
            return False
        return all(
            state is not None and state.steady and made >= state.decided + state.furthest
            for state, made in zip(self.states, self.noise.made, strict=True)
        )

    def observe(self, rows: np.ndarray, tree: DraftTree) -> tuple[RoundStats, ...]:
        """Count a round; returns a line per image in flight.

        Args:
            rows: (images, n) of `RoundResult.summary`.
            tree: the round's, of all images.

        Raises:
            FloatingPointError: a distribution contains NaN; names the model and its folder.
        """
        lines = []
        for state, row in zip(self.states, rows, strict=True):
            if state is not None:
                outcome = ImageRound.read(row, tree, state.decided)
                if outcome.nan_from is not None:
                    refuse_nan(getattr(self.sources, outcome.nan_from))
                lines.append(state.observe(outcome))
        return tuple(lines)

    def pop_finished(self) -> tuple[FinishedImage, ...]:
        """Take out and return the images that are complete."""
        finished = []
        for image, state in enumerate(self.states):
            if state is not None and state.remaining == 0:
                finished.append(state.finish())
                self.states[image] = None
                self.noise.seeds[image] = 0  # a free row is judged too, by numbers of no image
        return tuple(finished)
