"""The decoding loop: one for plain autoregressive decoding and for every speculative method.

A round grows a draft tree, verifies it in one target forward, commits the accepted tokens and lets the policy learn.
Plain autoregressive decoding is the round with the empty tree.
"""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain as joined
from itertools import islice

import torch
from torch import Tensor

from decoding.cache import CacheShape, KVCache, chain
from decoding.drafter import Decided, Drafter
from decoding.flight import FinishedImage, Flight, Job, RoundStats
from decoding.grow import Grower
from decoding.noise import NoiseShape, PositionalNoise
from decoding.policies.base import TreePlan, TreePolicy
from decoding.proposals import Proposal
from decoding.sampling import SamplingDistribution, choose
from decoding.slots import Slots, accepted, lay_out
from decoding.timing import Stopwatch
from decoding.transfer import on_device
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict, Verifier
from models.base import TargetModel


@dataclass(frozen=True)
class Speculation:
    """A way to draft: who proposes, which nodes, which children; and how tokens that the drafter foresees are taken, if
    not as children are."""

    drafter: Drafter
    policy: TreePolicy
    proposal: Proposal
    foreseen: Proposal | None = None


@dataclass(frozen=True)
class StepStats:
    """One round: a line per image in flight, and the images that it finished."""

    rounds: tuple[RoundStats, ...]
    finished: tuple[FinishedImage, ...]


class Engine:
    """Decodes images in batches of at most `images`; a finished image's place goes to the next job."""

    def __init__(
        self,
        target: TargetModel,
        distribution: SamplingDistribution,
        verifier: Verifier,
        images: int,
        speculation: Speculation | None = None,
    ):
        self.target, self.distribution, self.verifier = target, distribution, verifier
        self.images, self.speculation = images, speculation
        self.grow: Grower | None = None
        if speculation:
            s = speculation
            self.grow = Grower(
                s.policy, s.drafter, s.proposal, s.foreseen, verifier.reads_distributions
            )

    def generate(self, jobs: Iterable[Job]) -> Iterator[StepStats]:
        """Decode all jobs; draws them one by one as places become free."""
        queue = iter(jobs)
        if first := list(islice(queue, self.images)):
            self._allocate(first)
        queue = joined(first, queue)
        while first and self._admit(queue):
            yield self._step()

    @torch.inference_mode()
    def _allocate(self, first: list[Job]) -> None:
        """Room for as many images as there are first jobs, with prompts as long as theirs."""
        target, images = self.target, len(first)
        slots = self._slots(max(target.length(job.prompt) for job in first))
        self.cache = KVCache(
            target.spec,
            CacheShape(images, self.distribution.guidance, slots),
            target.dtype,
            target.device,
        )
        dtype = torch.float64 if target.dtype == torch.float64 else torch.float32
        noise = NoiseShape(
            target.grid.tokens, target.vocab.size, self.distribution.greedy, dtype, target.device
        )
        self.noise = PositionalNoise(noise, images, self.verifier.streams)
        self.flights: list[Flight | None] = [None] * images
        self.watch = Stopwatch(target.device)
        if self.speculation:
            self.speculation.drafter.open(images, self.watch)

    def _slots(self, length: int) -> int:
        """Slots that an image takes behind a prompt of this length, the last round's tree included."""
        grid, nodes = (
            self.target.grid,
            self.speculation.policy.largest.nodes if self.speculation else 0,
        )
        return length + grid.slots(grid.tokens) + grid.block(nodes)

    @torch.inference_mode()
    def _admit(self, queue: Iterator[Job]) -> bool:
        """Fill the free places; with no job left, close them. False when nothing is in flight."""
        for place, flight in enumerate(self.flights):
            if flight is None and (job := next(queue, None)) is not None:
                self.flights[place] = self._prefill(place, job)
        open_places = [place for place, flight in enumerate(self.flights) if flight is not None]
        if open_places and len(open_places) < len(self.flights):
            self._select(open_places)
        return bool(open_places)

    def _select(self, places: list[int]) -> None:
        self.flights = [self.flights[place] for place in places]
        self.cache = self.cache.select(places)
        self.noise.select(places)
        if self.speculation:
            self.speculation.drafter.select(places)

    def _prefill(self, place: int, job: Job) -> Flight:
        """Read the prompt and decide the first token."""
        started = time.perf_counter()
        prompt = self.target.prompt(job.prompt, self.distribution.guidance)
        length = prompt.ids.shape[1]
        self.cache.grow(self._slots(length))
        cache = self.cache.image(place)
        cache.reset(prompt.starts, prompt.origins)
        features = self.target.read(prompt, cache.open(*chain(1, length, self.target.device)))
        cache.advance([length])
        self.noise.fill(place, job.seed)
        log_p = self.distribution(self.target.score(features[:, -1:]))
        refuse_nan(
            bool(log_p.isnan().any()), "target"
        )  # waits for the device, so the seconds are true
        code = choose(log_p, self.noise.table[place : place + 1, :1])[0]  # (1,)
        controller = None
        if self.speculation:
            controller = self.speculation.policy.controller(job.seed)
            self.speculation.drafter.start(place, prompt, features, code)
        return Flight(job, self.target.grid.tokens, code, controller, time.perf_counter() - started)

    @torch.inference_mode()
    def _step(self) -> StepStats:
        started = time.perf_counter()
        with self.watch.lap("draft"):
            tree = self._draft()
        slots = lay_out(tree, self._roots(), self.target.grid)
        with self.watch.lap("verify"):
            features, log_p = self._score(slots)
            verdict = self.verifier(tree, log_p, partial(self.noise, tree.depths + self._decided))
        figures = self._figures(tree, verdict, log_p)
        laps = self.watch.settle()
        if self.speculation:
            self.speculation.drafter.observe(tree, log_p, verdict)
        self._commit(slots, verdict, features, [int(row[0]) + 1 for row in figures])
        rounds = tuple(
            flight.observe(row) for flight, row in zip(self.flights, figures, strict=True)
        )
        seconds = time.perf_counter() - started
        self.watch.seconds["round"] += seconds
        return StepStats(rounds, self._land(laps["draft"], laps["verify"], seconds))

    def _roots(self) -> list[int]:
        """The position of the last decided token of every image."""
        return [flight.decided - 1 for flight in self.flights]

    def _draft(self) -> DraftTree:
        self._decided = on_device(self._roots(), self.target.device)[:, None] + 1
        root = DraftTree.root(
            torch.cat([flight.codes[-1][-1:] for flight in self.flights]), self.noise.table.dtype
        )
        if self.grow is None:
            return root
        plan = TreePlan(tuple(flight.shape() for flight in self.flights))
        rounds = [(flight.job.seed, flight.rounds) for flight in self.flights]
        return self.grow(
            root, plan, self.noise.drawing(self.speculation.proposal.stream, rounds), self._decided
        )

    def _score(self, slots: Slots) -> tuple[Tensor, Tensor]:
        """One target forward over root and nodes: features (rows, slots, hidden), log p (images, 1 + nodes, vocab)."""
        ids = (slots.codes + self.target.vocab.first_id).repeat_interleave(
            self.distribution.guidance, 0
        )
        context = self.cache.open(slots.depths, slots.visible)
        with self.watch.lap("target_forward"):
            features = self.target.features(ids, context)
            logits = self.target.score(
                features if slots.exits is None else self._rows(features, slots.exits)
            )
        return features, self.distribution(logits)

    def _rows(self, features: Tensor, index: Tensor) -> Tensor:
        """Features (rows, slots, hidden) at slots index (images, n): (rows, n, hidden)."""
        rows = index.repeat_interleave(self.distribution.guidance, 0)
        return features.gather(1, rows[..., None].expand(-1, -1, features.shape[-1]))

    def _figures(self, tree: DraftTree, verdict: Verdict, log_p: Tensor) -> list[list[float]]:
        """Per image: accepted, levels, nodes, confidence, expected draft tokens, and the target's top-1 probability
        along the accepted path. Waits for the device."""
        levels = tree.levels
        deepest = tree.scores.masked_fill(tree.depths != levels[:, None], -torch.inf).amax(1)
        confidence, expected = (deepest / levels.clamp(min=1)).exp(), tree.scores.exp().sum(1) - 1
        likeliest = log_p.amax(-1)  # (images, 1 + nodes); NaN where the law holds one
        faults = [tree.scores.isnan().any(1), likeliest.isnan().any(1)]
        columns = [*faults, verdict.accepted, levels, tree.present.sum(1) - 1, confidence, expected]
        top1 = likeliest.gather(1, verdict.path).exp()
        figures = torch.cat(
            [torch.stack([column.double() for column in columns], 1), top1.double()], 1
        ).tolist()
        refuse_nan(any(row[0] for row in figures), "drafter")
        refuse_nan(any(row[1] for row in figures), "target")
        return [row[2:] for row in figures]

    def _commit(self, slots: Slots, verdict: Verdict, features: Tensor, counts: list[int]) -> None:
        longest = max(counts)
        emitted = verdict.emitted[:, :longest]
        path = accepted(
            slots, verdict.path[:, :longest], emitted, counts, self._roots(), self.target.grid
        )
        self.cache.keep(path.slots, path.counts)
        for image, (flight, count) in enumerate(zip(self.flights, counts, strict=True)):
            flight.codes.append(emitted[image, :count])
        if self.speculation:
            kept = self._rows(features, path.slots).unflatten(0, (-1, self.distribution.guidance))
            self.speculation.drafter.commit(Decided(kept, path.codes, path.counts))

    def _land(self, draft: float, verify: float, total: float) -> tuple[FinishedImage, ...]:
        """Share the round's seconds among the images; take out the finished ones."""
        images, finished = len(self.flights), []
        for place, flight in enumerate(self.flights):
            flight.spend(draft / images, verify / images, total / images)
            if flight.remaining == 0:
                finished.append(flight.finish())
                self.flights[place] = None
        return tuple(finished)


def refuse_nan(found: bool, model: str) -> None:
    """A law that contains NaN decides nothing."""
    if found:
        raise FloatingPointError(
            f"the {model}'s law contains NaN: its weights are broken or the dtype overflows"
        )
