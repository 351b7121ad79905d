"""The decoding loop: one for plain autoregressive decoding and for every speculative method.

A round drafts a tree of candidate tokens per image, verifies it in one forward pass of the target,
commits the accepted tokens, and lets the tree policy observe how far it came. Plain decoding is
the round with the empty tree, so speed-ups are measured against this same loop.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain as joined
from itertools import islice

import torch
from torch import Tensor

from decoding.batch import Batch
from decoding.cache import Fixed
from decoding.drafter import Decided
from decoding.figures import RoundFigures, Sources, figures_of, measured, read_figures
from decoding.flight import FinishedImage, Flight, Job, RoundStats
from decoding.grow import Grower, Speculation
from decoding.judge import Judge, rows_at
from decoding.kernels import compiled_steps
from decoding.noise import NodeNoise
from decoding.reading import TreeReader, WholeReader
from decoding.recorder import Recorder
from decoding.sampling import SamplingDistribution
from decoding.slots import Slots, accepted, lay_out
from decoding.start import Line, Places, Sizes, Start, table_of
from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict, Verifier
from models.base import TargetModel

UNNAMED = Sources()


@dataclass(frozen=True)
class StepStats:
    """One round: a line per image in flight, and the images that it finished."""

    rounds: tuple[RoundStats, ...]
    finished: tuple[FinishedImage, ...]


@dataclass(frozen=True)
class Verified:
    """A tree after the target's forward pass.

    slots: the sequence that the target read. features: (rows, slots, hidden) of the target. log_p:
    (images, 1 + nodes, vocab) its distributions after the root and every node. verdict: what the
    verifier decided from them.
    """

    tree: DraftTree
    slots: Slots
    features: Tensor
    log_p: Tensor
    verdict: Verdict


# Sees the images in flight and their trees, which it may read only until it returns.
Watcher = Callable[[Sequence[Flight], Verified], None]


class Engine:
    """Decodes images in batches of at most `images`; a finished one makes room for the next job."""

    def __init__(
        self,
        target: TargetModel,
        distribution: SamplingDistribution,
        verifier: Verifier,
        images: int,
        speculation: Speculation | None = None,
        sources: Sources = UNNAMED,
        recorder: Recorder | None = None,
    ):
        """Compose a loop.

        Args:
            target: its tokens are made.
            distribution: what they are sampled from.
            verifier: decides them.
            images: most images in flight.
            speculation: how to draft; None for plain decoding.
            sources: names for errors.
            recorder: replays rounds, where the drafter allows it; None launches every operation of
                every round.
        """
        # a rule that judges on the host cannot be in a record
        replays = verifier.on_device and (speculation is None or speculation.drafter.replays)
        self.recorder = recorder if replays else None
        self.recorded: tuple[Tensor, ...] = ()  # the cache's memory that records read
        self.target, self.distribution, self.verifier = target, distribution, verifier
        self.images, self.speculation, self.sources = images, speculation, sources
        self.reader: TreeReader = WholeReader(target, distribution)
        self.grow: Grower | None = None
        if (s := speculation) is not None:
            # some run layers of the target themselves
            own = isinstance(s.drafter, TreeReader)
            self.reader = s.drafter if own else WholeReader(target, distribution, s.drafter.reads)
            distributions = verifier.reads_distributions
            self.grow = Grower(s.policy, s.drafter, s.proposal, s.foreseen, distributions)
        self.fused = target.transformer.blocks.fused  # whether small steps are compiled, too
        self.watch = Stopwatch(target.device)
        self.judge = Judge(target, distribution, verifier, self.reader, self.watch)
        self.batch: Batch | None = None  # of the jobs that are being decoded
        self.watcher: Watcher | None = None  # called after every round, outside its time

    def generate(self, jobs: Iterable[Job]) -> Iterator[StepStats]:
        """Decode all jobs and yield after every round; draws jobs as places become free.

        Raises:
            FloatingPointError: a model's distribution contains NaN.
            ValueError: a prompt is too long for the target.
        """
        queue = iter(jobs)
        if not (first := list(islice(queue, self.images))):
            return
        self._open(first)
        queue = joined(first, queue)
        while self._admit(queue):
            yield self._step()

    def _admit(self, queue: Iterator[Job]) -> bool:
        """Give free places to the next jobs; returns whether an image is in flight."""
        if self.batch.full:
            return True
        with compiled_steps(self.fused):
            return self.batch.admit(queue)

    @torch.inference_mode()
    def _open(self, first: list[Job]) -> None:
        """Allocate what as many images as there are first jobs take; restart the clock.

        Records read and write the memory that they were made with, so it is used again.
        """
        self.watch.restart()
        if self.recorder and self.batch is not None and self.batch.reopen(len(first)):
            return
        parts = self.target, self.distribution, self.speculation, self.sources
        self.batch = Batch(first, *parts)
        if self.speculation:
            self.speculation.drafter.open(len(first), self.watch, self.recorder is not None)

    @torch.inference_mode()
    def _step(self) -> StepStats:
        """Run one round: draft, verify, commit, observe."""
        started = time.perf_counter()
        run = self._run if self.recorder is None else self._replay
        with compiled_steps(self.fused):
            verified, figures = run(self.batch.lines())
        laps = self.watch.settle()  # the device has been waited for
        self.batch.advance([each.decided for each in figures])
        rounds = self._observe(figures, 1000 * (time.perf_counter() - started))
        seconds = time.perf_counter() - started
        self.watch.seconds["round"] += seconds
        if self.watcher is not None:
            self.watcher(self.batch.flights, verified)
        return StepStats(rounds, self.batch.land(laps["draft"], laps["verify"], seconds))

    def _run(self, lines: list[Line]) -> tuple[Verified, list[RoundFigures]]:
        """Run a round operation by operation."""
        start = Start.of(lines, self.batch.places(lines))
        verified = self._verify(self._draft(start), start)
        figures = read_figures(verified.tree, verified.verdict, verified.log_p, self.sources)
        self._commit(verified, start, [each.decided for each in figures])
        return verified, figures

    def _replay(self, lines: list[Line]) -> tuple[Verified, list[RoundFigures]]:
        """Run a round as the record of its sizes, which commits before the host reads figures."""
        if self.batch.cache.memory is not self.recorded:  # a longer prompt, or fewer images
            self.recorder.forget()
            self.recorded = self.batch.cache.memory
        sizes = self.batch.fixed_sizes(lines)
        table = table_of(lines, self.target.device)
        verified, found = self.recorder(sizes, partial(self._program, sizes), table)
        return verified, figures_of(found, self.sources)

    def _program(self, sizes: Sizes, table: Tensor) -> tuple[Verified, Tensor]:
        """Return a round's outcome and figures (images, n), all on the device."""
        start = Start(Places(table), sizes)
        self.batch.cache.fixed = Fixed(start.places.lengths, sizes.visible)
        verified = self._verify(self._draft(start), start)
        self._commit(verified, start)
        return verified, measured(verified.tree, verified.verdict, verified.log_p)

    def _draft(self, start: Start) -> DraftTree:
        """Grow a tree per image from its last decided token."""
        self.judge.begin(self.batch.cache)
        with self.watch.lap("draft"):
            root = start.places.root(self.batch.noise.table.dtype)
            if self.grow is None or not start.sizes.largest.reach:
                return root
            role, keys = self.speculation.proposal.stream, start.places.streams
            first = start.lines[0].decided if len(start.lines) == 1 else None
            noise = self.batch.noise.drawing(role, keys, first)
            tree = self.grow(root, start.plan, noise, start.decided)
        self.watch.count("level", tree.drafted)
        return tree

    def _verify(self, tree: DraftTree, start: Start) -> Verified:
        """Score root and nodes in one forward pass of the target, and judge them."""
        slots = lay_out(tree, start, self.target.grid)
        with self.watch.lap("verify"):
            noise = NodeNoise(self.batch.noise, tree.depths, start.decided)
            return Verified(tree, slots, *self.judge(tree, slots, noise))

    def _commit(self, verified: Verified, start: Start, counts: list[int] | None = None) -> None:
        """Keep the accepted paths in the caches.

        counts: tokens decided per image; None in a recorded round, which does not know them.
        """
        tree, verdict = verified.tree, verified.verdict
        if self.speculation is None:
            return  # the root already stands where it belongs
        self._show(verified)
        longest = min(tree.height, tree.nodes) + 1 if counts is None else max(counts)
        path, emitted = verdict.path[:, :longest], verdict.emitted[:, :longest]
        decided = verdict.accepted[:, None] + 1 if counts is None else counts
        kept = accepted(verified.slots, path, emitted, decided, start, self.target.grid)
        in_order = tree.chain and verified.slots.exits is None and self.judge.whole
        if kept.slots.shape[1] > 1 and not in_order:  # else they stand where they belong
            self.reader.keep(kept.slots)
        features = partial(self._features_before, verified.features, kept.slots)
        self.speculation.drafter.commit(Decided(features, kept.codes, kept.counts))

    def _features_before(self, rows: Tensor, slots: Tensor) -> Tensor:
        """Return the features (images, guidance, n, hidden) at slots (images, n) of a pass."""
        if rows.shape[1] > 1:  # not only the root's
            rows = rows_at(rows, slots)
        return rows.unflatten(0, (-1, self.distribution.guidance))

    def _show(self, verified: Verified) -> None:
        """Let the drafter observe the round."""
        drafter, slots = self.speculation.drafter, verified.slots
        if self.grow.informed:
            own = slots.exits is None
            features = verified.features if own else rows_at(verified.features, slots.exits)
            drafter.see(features.unflatten(0, (-1, self.distribution.guidance)))
        drafter.observe(verified.tree, verified.log_p, verified.verdict)

    def _observe(self, figures: Sequence[RoundFigures], spent: float) -> tuple[RoundStats, ...]:
        """Let every image count the round and its policy learn from it; spent: milliseconds."""
        own = zip(self.batch.flights, figures, strict=True)
        return tuple(flight.observe(each, spent) for flight, each in own)
