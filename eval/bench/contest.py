"""Which of several methods is the fastest at one batch size, found by elimination.

Methods take turns with plain decoding, as in `benchmark`. After each of a few stages, which share
the time, the slower half of the methods drops out (successive halving, arXiv 1502.07943), and
before that whatever is certainly slower than plain decoding or than the fastest method.
"""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from configs.methods import MethodSettings
from decoding.images import Job
from eval.bench.bench import Bench, Row
from eval.bench.speedup import LEAST_VALUES, speedup
from eval.bench.table import method_words, speedup_words
from eval.metrics.intervals import Estimate
from runs.measure import BASELINE, Measurement, joined
from support.progress import plural

Prompts = Callable[[int], list[Job]]  # the jobs of each turn
MOST_TURNS = 8  # of a stage; the last one has twice as many
Pair = tuple[Measurement, Measurement]  # of a method and of plain decoding, on the same images


@dataclass
class Contest:
    """Methods measured in turns with plain decoding, until one is left or the time is over."""

    bench: Bench
    prompts: Prompts
    seconds: float  # for all of it; what earlier commands spent counts
    clock: Callable[[], float] = time.monotonic
    turns: int = 0
    late: bool = False  # whether it ended because the time was over
    pairs: dict[MethodSettings, list[Pair]] = field(default_factory=lambda: defaultdict(list))

    def run(self, methods: Sequence[MethodSettings]) -> list[MethodSettings]:
        """Measure; returns the methods that are left, the fastest first."""
        alive, end = list(methods), self._now() + self.seconds
        stages = max(1, math.ceil(math.log2(len(alive))))
        for left in range(stages, 0, -1):
            # What a stage leaves goes to the later ones.
            share = self._now() + (end - self._now()) / left
            for _ in range(MOST_TURNS * (2 if left == 1 else 1)):
                started = self._now()
                alive = self._take_turn(alive, end)
                if not alive or 2 * self._now() - started > share:  # the next turn would be late
                    break
            alive.sort(key=lambda method: self._speedup(method).value, reverse=True)
            alive = alive[: math.ceil(len(alive) / 2)]
            if not alive or self._now() >= end:
                break
        self.late = self._now() >= end
        return alive

    def _now(self) -> float:
        """Return the time, as if the measurements of earlier commands were made now.

        So a command that continues takes the same turns.
        """
        return self.clock() + self.bench.replayed

    def _take_turn(self, alive: list[MethodSettings], end: float) -> list[MethodSettings]:
        """Measure all on the next images.

        Returns the methods that fit into memory and may still be the fastest, by 95 % intervals.
        """
        methods = [BASELINE, *alive]
        self.bench.keep(methods)
        turn = self.bench.turn(methods, self.prompts(self.turns), lambda: self._now() >= end)
        self.turns += 1
        for method in turn if BASELINE in turn else ():
            self.pairs[method].append((turn[method], turn[BASELINE]))
        speedups = {method: self._speedup(method) for method in alive if self.pairs[method]}
        bar = max([1.0, *(one.low or 1.0 for one in speedups.values())])
        fit = alive if self._now() >= end else turn  # if the time is over, some were not measured
        return [m for m, e in speedups.items() if m in fit and (e.high is None or e.high >= bar)]

    def pair(self, method: MethodSettings) -> Pair | None:
        """Return a method's measurements and those of plain decoding, on the same images."""
        if not (pairs := self.pairs.get(method)):
            return None
        ours, plain = zip(*pairs, strict=True)
        return joined(ours), joined(plain)

    def _speedup(self, method: MethodSettings) -> Estimate:
        pair = self.pair(method)
        assert pair is not None  # it was measured
        measured, plain = pair
        return speedup([measured], [plain])


def finalists(rows: Mapping[MethodSettings, Row], left: Sequence[MethodSettings]) -> list[Row]:
    """Return the rows to choose from: plain decoding's and those of the methods that are left.

    What dropped out was measured on fewer images, perhaps on easier ones. It counts where it has an
    interval and nothing that is left is faster than plain decoding for certain.
    """
    kept = [row for method, row in rows.items() if method in (BASELINE, *left)]
    if fastest(kept) is not rows[BASELINE]:
        return kept
    return [row for row in rows.values() if row in kept or row["speedup_low"] is not None]


def fastest(rows: Sequence[Row]) -> Row:
    """Return the row of the fastest method; of plain decoding if none is faster for certain.

    With fewer images than an interval takes, the median decides, if nothing speaks against it.
    """
    faster = [row for row in rows if _least_speedup(row) > 1 and not row["wrong"]]
    return max(faster, key=lambda row: row["speedup"], default=rows[0])


def _least_speedup(row: Row) -> float:
    """Return what a row's speed-up is at least, as far as was measured."""
    if row["speedup_low"] is not None:
        return row["speedup_low"]
    return 0.0 if row["doubts"] else row["speedup"]


def compared(rows: Sequence[Row], best: Row) -> int:
    """Return on how many images the best method, or the next after plain decoding, was measured."""
    plain, *others = rows
    contenders = others if best is plain else [best]
    return max(contenders, key=lambda row: row["speedup"], default={"images": 0})["images"]


def verdict(rows: Sequence[Row], best: Row, minutes: float) -> str:
    """Say in a line which method is the fastest and by how much, or that it is inconclusive."""
    if (images := compared(rows, best)) >= LEAST_VALUES:
        return _choice(rows[0], rows[1:], best)
    return (
        f"Inconclusive: in {minutes:g} minutes a method was compared with ar on "
        f"{plural(images, 'image')}; a 95 % interval needs at least {LEAST_VALUES}."
    )


def _choice(plain: Row, others: Sequence[Row], best: Row) -> str:
    """Say which method is chosen, and why."""
    if best is not plain:
        return f"Fastest: {method_words(best)}, {speedup_words(best)} times plain decoding."
    second = max(others, key=lambda row: row["speedup"])
    cost = second["ms_per_round"]["round"] / plain["ms_per_round"]["round"]
    return (
        "Plain decoding (ar) is chosen: no draft method is faster beyond doubt. The best, "
        f"{method_words(second)}, reaches {speedup_words(second)} times its speed: a round decides "
        f"{second['tau']:.2f} tokens and takes {cost:.2f} times as long."
    )
