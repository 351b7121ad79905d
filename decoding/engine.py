"""The decoding loop: one for plain autoregressive decoding and for every speculative method.

A round drafts a tree of candidate tokens per image, verifies it in one forward pass of the target,
commits the accepted tokens, and lets the tree policy observe how far it came. Plain decoding is
the round with the empty tree, so speed-ups are measured against this same loop.
"""

import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Generic, TypeVar

import torch
from torch import Tensor

from decoding.cache import CacheView
from decoding.device import HostCopy, current, on_device
from decoding.graphs import CudaGraphs, Launch
from decoding.images import (
    FinishedImage,
    Images,
    ImageState,
    Job,
    RoundStats,
    Sources,
    Speculation,
)
from decoding.noise_table import NodeNoise
from decoding.round import (
    AcceptedTokens,
    Round,
    RoundInputs,
    RoundResult,
    RoundShape,
    VerifyTokens,
)
from decoding.row_ends import insert_row_ends, keep_row_ends
from decoding.sampling import SamplingDistribution
from decoding.stopwatch import Stopwatch
from decoding.tree import DraftTree, GrowingTree, hidden_at
from decoding.verifiers.base import Verdict, Verifier
from models.target import TargetModel
from support.compiler import compiling, program
from support.kernels import running

UNNAMED = Sources()


Image = TypeVar("Image")


@dataclass(frozen=True)
class StepStats(Generic[Image]):
    """One round: a line per image in flight, and the images that it finished."""

    rounds: tuple[RoundStats, ...]
    finished: tuple[Image, ...]  # a FinishedImage, or what `runs.drawing` makes of it


@dataclass(frozen=True)
class ScoredTree:
    """A tree after the target's forward pass."""

    round: Round
    tree: DraftTree
    tokens: VerifyTokens  # that the target read
    hidden: Tensor  # (images, guidance, slots, hidden) of the target
    node_hidden: Tensor  # (images, guidance, 1 + nodes, hidden) that predict a node's children
    log_p: Tensor  # (images, 1 + nodes, vocab) its distributions after the root and every node
    noise: NodeNoise


@dataclass(frozen=True)
class LaunchedRound:
    """A round that the device runs, or has run."""

    shape: RoundShape
    result: RoundResult
    summary: HostCopy


# Sees the images in flight (None: a free row) and the round, which it may read until it returns.
Watcher = Callable[[Sequence[ImageState | None], RoundResult], None]


class Engine:
    """Decodes images in batches; a finished one makes room for the next job."""

    def __init__(  # noqa: PLR0913 (the parts of a loop)
        self,
        target: TargetModel,
        distribution: SamplingDistribution,
        verifier: Verifier,
        batch: int,
        speculation: Speculation | None = None,
        sources: Sources = UNNAMED,
        replay: bool = False,
        compiles: bool = False,
    ):
        """Compose a loop.

        Args:
            target: the model to decode.
            distribution: turns its logits into probabilities.
            verifier: decides which draft tokens are kept.
            batch: most images in flight.
            speculation: how to draft; None for plain decoding.
            sources: names for errors.
            replay: whether rounds are captured as CUDA graphs and replayed.
            compiles: whether torch's compiler makes the small steps of rounds.
        """
        self.target, self.distribution, self.verifier = target, distribution, verifier
        self.batch, self.speculation, self.sources = batch, speculation, sources
        self.reads = () if speculation is None else speculation.drafter.reads
        self.watch = Stopwatch(target.device)
        self.runner = CudaGraphs(self.watch.pause) if replay else Launch()
        self.compiler = program if compiles else None
        self._images: Images | None = None
        self.memory: tuple[Tensor, ...] = ()  # the cache's, which captured rounds read
        self._ahead: LaunchedRound | None = None  # the next round, if it runs already
        self.watcher: Watcher | None = None  # called after every round, outside its time

    def generate(
        self, jobs: Iterable[Job], joining: Iterable[Job | None] = ()
    ) -> Generator[StepStats[FinishedImage], None, None]:
        """Decode all jobs and yield after every round; takes the next job when a row is free.

        Args:
            jobs: to decode.
            joining: jobs that come later; None: none at the moment.

        Raises:
            FloatingPointError: a model's distribution contains NaN.
            ValueError: a prompt is too long for the target.
        """
        given = iter(jobs)
        # before the first round, since the longest of their prompts sets the size of the cache
        if not (first := list(islice(given, self.batch))):
            return
        queue: Iterator[Job | None] = chain(first, given, joining)
        with current(self.target.device):
            self._open(first)
        while True:
            # not around `yield`: the caller's current device is its own
            with current(self.target.device), running(self.target.transformer.kernels):
                step = self._step() if self.images.admit(queue) else None
            if step is None:
                return
            yield step

    @torch.inference_mode()
    def _open(self, first: list[Job]) -> None:
        """Allocate memory for a batch of len(first) images and restart the clock."""
        self.watch.restart()
        self._ahead = None  # of images that nobody waits for
        # captured rounds read and write the memory that they were captured with
        if self._images is not None and self._images.reopen(len(first)):
            return
        # freed before the new memory is allocated, and for good if that fails
        self._images, self.memory = None, ()
        self.runner.forget()
        parts = self.target, self.distribution, self.speculation, self.sources
        images = Images(first, *parts)
        if self.speculation:
            self.speculation.drafter.open(len(first), images.cache.slots, self.watch)
        self._images = images

    @property
    def images(self) -> Images:
        """The images of the jobs that are being decoded, or were last."""
        assert self._images is not None, "`generate` opens them"
        return self._images

    @torch.inference_mode()
    def _step(self) -> StepStats[FinishedImage]:
        """Run one round: draft, verify, commit, observe.

        Where nothing else depends on what it accepts, the device begins the next one meanwhile.
        """
        started = time.perf_counter()
        launched, self._ahead = self._ahead or self._launch(*self._next_round()), None
        shape, result = launched.shape, launched.result
        # a watcher reads the result, which a replay writes over
        if self.watcher is None and self.runner.captured("round", shape) and self.images.steady:
            self._ahead = self._launch(shape, result.next_inputs())
        rows = launched.summary.read()  # the one wait for the device
        laps = self.watch.settle()
        states = list(self.images.states)
        rounds = self.images.observe(rows, result.tree)
        seconds = time.perf_counter() - started
        self.watch.seconds["round"] += seconds
        self.watch.calls["round"] += 1
        shares = (laps["draft"], laps["verify"], seconds)
        for state in filter(None, states):
            state.spend(*(share / len(rounds) for share in shares))
        if self.watcher is not None:
            self.watcher(states, result)
        return StepStats(rounds, self.images.pop_finished())

    def _next_round(self) -> tuple[RoundShape, Tensor]:
        """Return the sizes and inputs of the next round, as the host knows them."""
        if self.images.cache.memory is not self.memory:  # a longer prompt, or other images
            self.runner.forget()
            self.memory = self.images.cache.memory
        shape, inputs = self.images.next_round()
        shape = self.runner.round_up(shape, self.images.largest_round)
        return shape, on_device(inputs, self.target.device)

    def _launch(self, shape: RoundShape, table: Tensor) -> LaunchedRound:
        with compiling(self.compiler):
            result, summary = self._run(shape, table)
        return LaunchedRound(shape, result, HostCopy(summary))

    def _run(self, shape: RoundShape, table: Tensor) -> tuple[RoundResult, Tensor]:
        """Return a round's result and its summary (images, n), both on the device."""
        if self.verifier.on_device:
            return self.runner("round", shape, partial(self._whole_round, shape), table)
        scored = self.runner("score", shape, partial(self._draft_and_score, shape), table)
        verdict = self.verifier(scored.tree, scored.log_p, scored.noise).packed()
        # a graph of this program reads the outputs of the first, which is always captured before it
        return self.runner("commit", shape, partial(self._commit_packed, scored), verdict)

    def _whole_round(self, shape: RoundShape, table: Tensor) -> tuple[RoundResult, Tensor]:
        scored = self._draft_and_score(shape, table)
        return self._commit(scored, self.verifier(scored.tree, scored.log_p, scored.noise))

    def _draft_and_score(self, shape: RoundShape, table: Tensor) -> ScoredTree:
        """Grow a tree per image, and score it in one forward pass of the target."""
        samples = self.speculation is not None and self.speculation.proposal.samples
        keep_q = samples and self.verifier.reads_distributions
        round = Round(shape, RoundInputs(table), self.images.noise, keep_q)
        with self.watch.lap("draft"):
            tree = self._draft(round)
        self.watch.count("level", shape.depth)
        with self.watch.lap("verify"):
            return self._score(tree, round)

    def _draft(self, round: Round) -> DraftTree:
        """Grow a tree per image from its last decided code."""
        s = self.speculation
        if s is None or not round.shape.reach:  # an image's last token needs no draft
            dtype = self.images.noise.table.dtype
            return GrowingTree.root(round.inputs.code, dtype).complete()
        s.drafter.begin(round, s.proposal)
        return s.policy.grow(round, s.drafter, s.proposal)

    def _score(self, tree: DraftTree, round: Round) -> ScoredTree:
        """Score root and nodes in one forward pass of the target."""
        tokens = VerifyTokens(tree.tokens, tree.depths, tree.visible)
        if round.shape.row_ends:
            tokens = insert_row_ends(tokens, round, self.target.grid)
        cache, count = self.images.cache, tokens.codes.shape[1]
        view = CacheView(cache, round.inputs.length, round.shape.committed, count)
        ids = self.target.vocab.ids(tokens.codes, cache.guidance)
        with self.watch.lap("target_forward"):
            rows = self.target.features(ids, view.open(tokens.depths, tokens.visible), self.reads)
            hidden = rows.unflatten(0, (-1, cache.guidance))
            after = hidden if tokens.exits is None else hidden_at(hidden, tokens.exits)
            log_p = self.distribution(self.target.score(after.flatten(0, 1)))
        return ScoredTree(round, tree, tokens, hidden, after, log_p, round.node_noise(tree))

    def _commit_packed(self, scored: ScoredTree, verdict: Tensor) -> tuple[RoundResult, Tensor]:
        return self._commit(scored, Verdict.unpack(verdict))

    def _commit(self, scored: ScoredTree, verdict: Verdict) -> tuple[RoundResult, Tensor]:
        """Keep the accepted paths, and let the drafter learn."""
        tree, round, exits = scored.tree, scored.round, scored.tokens.exits
        # no path is longer than the tree is high, so the rest of a verdict is padding
        path, emitted = (row[:, : tree.height + 1] for row in (verdict.path, verdict.emitted))
        # + 1 for the root's own slot: an image's committed slots end before its root
        kept = AcceptedTokens(path, emitted, verdict.accepted[:, None] + 1)
        if exits is not None:
            kept = keep_row_ends(kept, exits, self.target.grid)
        if not tree.chain or exits is not None:  # else tokens stand where they belong
            self.images.cache.move(round.inputs.length, kept.slots)
        result = RoundResult(
            round, tree, scored.hidden, scored.node_hidden, scored.log_p, verdict, kept
        )
        if self.speculation is not None:
            self.speculation.drafter.update(result)
        reads_entropy = self.speculation is not None and self.speculation.policy.reads_entropy
        return result, result.summary(reads_entropy)
