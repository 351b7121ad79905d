"""The images in flight: their KV cache, noise and progress, and how jobs enter and leave."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.cache import CacheShape, KVCache
from decoding.cache_pass import chain
from decoding.figures import Sources, refuse_nan
from decoding.flight import FinishedImage, Flight, Job
from decoding.grow import Speculation
from decoding.noise import NoiseShape, PositionalNoise, stream_key
from decoding.policies.base import Shape, largest_of
from decoding.recorder import rounded, visible_slots
from decoding.sampling import SamplingDistribution, choose
from decoding.slots import slots_of
from decoding.start import NO_TREE, HostTable, Line, Places, Sizes, table_of
from decoding.transfer import to_host
from models.base import PromptRows, TargetModel


@dataclass(frozen=True)
class ReadPrompt:
    """A prompt that the target has read.

    place: whose cache rows hold its keys and values, in the first slots. features: (guidance,
    length, hidden) of the target. log_p: (1, 1, vocab) of the first image token.
    """

    text: str
    place: int
    rows: PromptRows
    features: Tensor
    log_p: Tensor


class Batch:
    """Holds the state of the images that are decoded together; place i is row i everywhere."""

    def __init__(
        self,
        jobs: list[Job],
        target: TargetModel,
        distribution: SamplingDistribution,
        speculation: Speculation | None,
        sources: Sources,
    ):
        """Allocate a place per job, for prompts as long as theirs."""
        self.target, self.distribution = target, distribution
        self.speculation, self.sources = speculation, sources
        slots = self._slots(max(map(target.length, {job.prompt for job in jobs})))
        shape = CacheShape(len(jobs), distribution.guidance, slots)
        self.cache = KVCache(target.spec, shape, target.dtype, target.device)
        dtype = torch.float64 if target.dtype == torch.float64 else torch.float32
        size = target.grid.tokens, target.vocab.size
        reach = 1 + (speculation.policy.largest.reach if speculation else 0)
        noise = NoiseShape(*size, distribution.greedy, dtype, target.device, reach)
        self.noise = PositionalNoise(noise, len(jobs))
        self.flights: list[Flight | None] = [None] * len(jobs)
        self.last: ReadPrompt | None = None  # the prompt read last
        self.table: HostTable | None = None

    def _slots(self, length: int) -> int:
        """Return the cache slots of an image with a prompt of this length, and of its last tree."""
        grid = self.target.grid
        return length + grid.slots(grid.tokens) + grid.block(self.largest.nodes)

    @property
    def largest(self) -> Shape:
        """The largest tree of a round."""
        return self.speculation.policy.largest if self.speculation else NO_TREE

    @property
    def full(self) -> bool:
        """Whether no place is free."""
        return None not in self.flights

    def reopen(self, images: int) -> bool:
        """Free all places for other jobs; returns whether there are so many."""
        self.flights, self.last = [None] * len(self.flights), None
        return len(self.flights) == images

    @torch.inference_mode()
    def admit(self, queue: Iterator[Job]) -> bool:
        """Give free places to the next jobs, close those for which none is left.

        Returns False when no image is in flight.
        """
        for place, flight in enumerate(self.flights):
            if flight is None and (job := next(queue, None)) is not None:
                self.flights[place] = self._prefill(place, job)
        taken = [place for place, flight in enumerate(self.flights) if flight is not None]
        if taken and len(taken) < len(self.flights):
            self._select(taken)
        return bool(taken)

    def _select(self, places: list[int]) -> None:
        self.flights, self.last = [self.flights[place] for place in places], None
        self.cache = self.cache.select(places)
        self.noise.select(places)
        if self.speculation:
            self.speculation.drafter.select(places)

    def _prefill(self, place: int, job: Job) -> Flight:
        """Read a job's prompt and decide its first image token."""
        started = time.perf_counter()
        prompt = self.last = self._read(place, job.prompt)
        self.noise.fill(place, job.seed)
        code = choose(prompt.log_p, self.noise.table[place : place + 1, :1])[0]  # (1,)
        # waits for the device, which makes the seconds true
        first, broken = to_host(torch.stack([code[0], prompt.log_p.isnan().any().long()]))
        refuse_nan(bool(broken), self.sources.target)
        controller = None
        if self.speculation:
            controller = self.speculation.policy.controller(job.seed)
            self.speculation.drafter.start(place, prompt.rows, prompt.features, code)
        seconds = time.perf_counter() - started
        return Flight(job, self.target.grid.tokens, first, controller, seconds)

    def _read(self, place: int, text: str) -> ReadPrompt:
        """Return a prompt with its keys and values in a place's cache rows.

        The target reads it unless it was the last one: images of one prompt come one after the
        other. The slots of a prompt stay as they are while images are decoded.
        """
        if self.last is not None and self.last.text == text:
            known = self.cache.image(self.last.place)
            self.cache.image(place).begin_as(known, self.last.rows.ids.shape[1])
            return self.last
        rows = self.target.prompt(text, self.distribution.guidance)
        length = rows.ids.shape[1]
        self.cache.grow(self._slots(length))
        cache = self.cache.image(place)
        cache.reset(rows.starts, rows.origins)
        context = cache.open(*chain(1, length, self.target.device))
        layers = () if self.speculation is None else self.speculation.drafter.reads
        features = self.target.read(rows, context, layers)
        cache.advance([length])
        log_p = self.distribution(self.target.score(features[:, -1:]))
        return ReadPrompt(text, place, rows, features, log_p)

    def lines(self) -> list[Line]:
        """Return the numbers with which every image begins its next round, and make its noise."""
        self.noise.keep_ahead([flight.decided for flight in self.flights])
        draws = self.speculation is not None and self.speculation.proposal.stream == "draft"
        lines = []
        for flight, length in zip(self.flights, self.cache.lengths.tolist(), strict=True):
            seed, role = flight.job.seed, f"draft {flight.rounds}"
            stream = stream_key(seed, role) if draws else 0
            shape = NO_TREE if self.speculation is None else flight.shape()
            lines.append(Line(flight.codes[-1], flight.decided, length, stream, shape))
        return lines

    def places(self, lines: Sequence[Line]) -> Places:
        """Return where the images stand, on the device, for a round that is not recorded."""
        if self.target.device.type != "cpu":
            return Places(table_of(lines, self.target.device))
        if self.table is None or len(self.table.numbers) != len(lines):
            self.table = HostTable(len(lines))
        return self.table.write(lines)

    def fixed_sizes(self, lines: Sequence[Line]) -> Sizes:
        """Return the sizes of the record that serves a round."""
        shape = rounded(largest_of([line.shape for line in lines]), self.largest)
        used = max(line.length for line in lines) + self.target.grid.block(shape.nodes)
        return Sizes(len(lines), shape, visible_slots(used, self.cache.slots))

    def advance(self, counts: list[int]) -> None:
        """Count the slots of the decided tokens, before their images count these."""
        grid = self.target.grid
        if grid.row_end is not None:
            roots = [flight.decided - 1 for flight in self.flights]
            counts = [slots_of(r, n, grid) for r, n in zip(roots, counts, strict=True)]
        self.cache.advance(counts)

    def land(self, draft: float, verify: float, total: float) -> tuple[FinishedImage, ...]:
        """Share a round's seconds among the images; take out and return the finished ones."""
        images, finished = len(self.flights), []
        for place, flight in enumerate(self.flights):
            flight.spend(draft / images, verify / images, total / images)
            if flight.remaining == 0:
                finished.append(flight.finish())
                self.flights[place] = None
        return tuple(finished)
