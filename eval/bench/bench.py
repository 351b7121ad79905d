"""The one loop that measures methods, for `benchmark`, its sweeps, `tune` and the GPU's check.

Methods take turns: on one image, or on a batch, all of them are measured before the next one, in
alternating order. So a machine that slows down slows all methods, and a method is compared with
plain decoding (`ar`) on measurements next to each other. Times are medians over the repeats;
`eval/bench/speedup.py` says what a speed-up is. Turning codes into pixels is not counted.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import product
from statistics import median
from typing import Any

import torch

from configs.fields import settings_dict
from configs.methods import MethodSettings
from decoding.engine import Engine
from decoding.images import Job
from eval.bench.measurements import Measurements, Turn
from eval.bench.speedup import speed_figures
from eval.bench.table import words_of
from eval.metrics.intervals import paired_ratio
from runs.exactness import Comparison, compare
from runs.measure import BASELINE, Measurement, joined, measure
from runs.methods import sampling_distribution
from runs.session import Session
from support.output import remark
from support.progress import Progress

Row = dict[str, Any]
_MEANS = ("mean_drafted_depth", "mean_verified_depth", "mean_nodes", "target_forwards")


def turns_of(jobs: Sequence[Job], batch: int, repeats: int) -> list[tuple[int, list[Job]]]:
    """Return the turns of a benchmark: the number of the repeat, and an image or all of them."""
    groups = [[job] for job in jobs] if batch == 1 else [list(jobs)]
    return list(product(range(repeats), groups))


@dataclass
class Bench:
    """Measures methods on loaded weights; what a file of measurements holds is taken from it."""

    session: Session
    kept: Measurements
    progress: Progress
    warm: Callable[[Engine], object]  # before an engine is measured: it allocates, captures graphs
    engines: dict[MethodSettings, Engine] = field(default_factory=dict)
    count: int = 0  # turns so far; every second one has the methods in reverse
    replayed: float = 0.0  # seconds of the measurements that an earlier command made

    def turn(
        self,
        methods: Sequence[MethodSettings],  # BASELINE among them
        jobs: list[Job],
        late: Callable[[], bool] = lambda: False,  # asked before all measurements but the first
        again: bool = False,  # measure also what is kept
        **others: object,  # what else the measurements depend on
    ) -> Turn:
        """Return a measurement of each method on the same images.

        A remark names methods that do not fit into memory, which are left out.
        """
        order = list(methods) if self.count % 2 == 0 else list(reversed(methods))
        self.count += 1
        if not again and (kept := self.kept.find_turn(methods, jobs, **others)) is not None:
            self.replayed += sum(image.seconds for one in kept.values() for image in one.images)
            return kept
        turn: Turn = {}
        for number, method in enumerate(order, 1):
            if turn and late():
                break
            words = f"{words_of(method)}, {number} of {len(order)}"
            if (one := self._measure(method, jobs, words)) is not None:
                turn[method] = one
            self.progress.update(len(jobs))
        if BASELINE in turn:  # without it there is nothing to compare with
            self.kept.add_turn(turn, [one for one in methods if one in turn], jobs, **others)
        return turn

    def keep(self, methods: Sequence[MethodSettings]) -> None:
        """Close the engines of all other methods, since each has a cache of its own."""
        self.engines = {method: e for method, e in self.engines.items() if method in methods}

    def _measure(self, method: MethodSettings, jobs: list[Job], words: str) -> Measurement | None:
        """Return a measurement; None where memory is too small for the method.

        words: what the progress calls it.
        """
        try:
            if method not in self.engines:
                self.progress.say(f"warming up {words}")
                engine = self.session.open_engine(method)
                self.warm(engine)
                self.engines[method] = engine
            self.progress.begin()
            self.progress.say(f"now {words}")
            return measure(self.engines[method], jobs, seen=self._rounds_per_second(words))
        except torch.OutOfMemoryError:
            if method == BASELINE:
                raise
        remark(f"{words_of(method)}: does not fit into memory, so not measured")
        self.engines.pop(method, None)
        return None

    def _rounds_per_second(self, words: str) -> Callable[[], None]:
        """Return what is called after every round, so that the progress says how fast they are."""
        started, rounds = time.perf_counter(), 0

        def seen() -> None:
            nonlocal rounds
            rounds += 1
            speed = rounds / max(time.perf_counter() - started, 1e-9)
            self.progress.words = f"now {words}, {speed:.1f} rounds/s"

        return seen

    def rows(
        self,
        methods: Sequence[MethodSettings],
        jobs: Sequence[Job],
        repeats: int,
        again: bool = False,
        **others: Any,
    ) -> list[Row]:
        """Return a row per method that fits into memory; arguments as of `turn`."""
        measured: dict[MethodSettings, list[list[Measurement]]] = {
            method: [[] for _ in range(repeats)] for method in methods
        }
        for repeat, images in turns_of(jobs, self.session.settings.batch_size, repeats):
            turn = self.turn(methods, images, again=again, repeat=repeat, **others)
            methods = [method for method in methods if method in turn]
            for method in methods:
                measured[method][repeat].append(turn[method])
        self.keep(())  # comparing images takes memory
        whole = {method: [joined(turns) for turns in measured[method]] for method in methods}
        return [self.row(method, whole[method], whole[BASELINE]) for method in methods]

    def row(
        self, method: MethodSettings, repeats: list[Measurement], baseline: list[Measurement]
    ) -> Row:
        """Return a method's row: its settings, its figures, and how it compares with `ar`."""
        first, session = repeats[0], self.session
        seconds = median(one.seconds_per_image for one in repeats)
        comparison = self.comparison(method, first, baseline[0])
        tau = paired_ratio(*first.tokens_and_rounds)
        return settings_dict(method) | {
            # figures that do not depend on the machine
            "batch_size": session.settings.batch_size,
            "temperature": session.settings.sampling.temperature,
            "tau": tau.value,
            "tau_low": tau.low,
            "tau_high": tau.high,
            **{name: first.mean(name) for name in _MEANS},
            "lossless": method.lossless,
            "seconds_per_image": seconds,
            "tokens_per_second": session.target.grid.tokens / seconds,
            "images_per_hour": 3600 / seconds,
            "seconds_to_first_image": median(s for one in repeats for s in one.first_seconds),
            **parts_of(repeats),
            **speed_figures(repeats, baseline, session.target.device.type == "cpu"),
            "images": comparison.images,
            "identical": comparison.identical,
            "near_ties": comparison.near_ties,
            "wrong": list(comparison.wrong),
            "inconclusive": first.inconclusive if method.speculative else None,
        }

    def comparison(
        self, method: MethodSettings, measured: Measurement, baseline: Measurement
    ) -> Comparison:
        """Compare a method's images with the baseline's.

        In bf16, and for a method whose tokens need not be plain decoding's, images that differ
        count neither as near-ties nor as wrong.
        """
        sampling, target = self.session.settings.sampling, self.session.target
        if method.same_tokens(sampling.temperature) and target.dtype != torch.bfloat16:
            distribution = sampling_distribution(sampling)
            return compare(target, distribution, baseline.images, measured.images)
        pairs = zip(baseline.images, measured.images, strict=True)  # of the same jobs
        same = sum(torch.equal(one.codes, other.codes) for one, other in pairs)
        return Comparison(len(baseline.images), same, 0, ())


def _median(values: Iterable[float | None]) -> float | None:
    """Return the median of times; None if one was not measured."""
    times = list(values)
    measured = [time for time in times if time is not None]
    return median(measured) if times and len(measured) == len(times) else None


def parts_of(repeats: list[Measurement]) -> Row:
    """Return the figures of a round's parts: None if some rounds were replayed as a whole."""
    first = repeats[0]
    if not all(one.in_parts for one in repeats):
        names = "draft_forwards", "levels", "ms_per_target_forward", "ms_per_draft_forward"
        whole = {"round": first.profile["round"]}
        return dict.fromkeys((*names, "overhead_share")) | {"ms_per_round": whole}
    drafts = [one.milliseconds("draft_forward", "draft_head") for one in repeats]
    return {
        "draft_forwards": first.calls.get("draft_forward", 0) / len(first.images),
        "levels": first.calls.get("level", 0) / len(first.images),
        "ms_per_target_forward": _median(one.milliseconds("target_forward") for one in repeats),
        "ms_per_draft_forward": _median(drafts),
        "overhead_share": median(one.overhead_share for one in repeats),
        "ms_per_round": first.profile,
    }
