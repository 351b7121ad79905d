"""What a GPU should reach: each aim with the figure that was measured, and whether it is met."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from scripts.gpu.record import Figures

Lines = dict[str, Figures]  # of a record, by id


@dataclass(frozen=True)
class Aim:
    """A figure and its limit. least: the figure should be at least `limit`; else at most."""

    name: str
    limit: float
    least: bool
    figure: Callable[[Lines], float | None]

    def judge(self, lines: Lines) -> Figures:
        """Return the aim with its figure, None if that was not measured, and what came of it."""
        found = self.figure(lines)
        sign = ">=" if self.least else "<="
        met = found is not None and (found >= self.limit if self.least else found <= self.limit)
        outcome = "not measured" if found is None else "met" if met else "missed"
        aim = f"{sign} {self.limit:g}"
        return {"name": self.name, "figure": found, "aim": aim, "outcome": outcome}


def best_pass(lines: Lines, tokens: int) -> float | None:
    """Return the milliseconds of a pass over one image in the fastest mode, None if not measured.

    tokens: per row.
    """
    times = [
        milliseconds
        for name in (f"large: 1 x {tokens} tokens", f"large: compiled 1 x {tokens} tokens")
        for milliseconds in lines.get(name, {}).get("ms", {}).values()
    ]
    return min(times, default=None)


def _of_bound(lines: Lines) -> float | None:
    one, bound = best_pass(lines, 1), lines.get("large: bound", {}).get("bound_ms")
    return bound / one if one and bound else None


def _of_one(lines: Lines) -> float | None:
    one, many = best_pass(lines, 1), best_pass(lines, 64)
    return many / one if one and many else None


def _level(lines: Lines) -> float | None:
    one, level = best_pass(lines, 1), lines.get("large: level", {}).get("ms")
    return level / one if one and level else None


def _host_share(lines: Lines) -> float | None:
    """Return the share where rounds are replayed, or else launched one operation at a time."""
    name = "large: rounds of ar, batch 1"
    shares = [lines.get(name + kind, {}).get("host_share") for kind in (", replayed", "")]
    return next((share for share in shares if share is not None), None)


def _of_tau(lines: Lines) -> float | None:
    """Return speed-up / tau of the lossless method with the greatest speed-up, single images."""
    rows = [
        line
        for name, line in lines.items()
        if name.startswith("tiny: ") and line.get("batch") == 1 and line.get("lossless")
    ]
    rows = [row for row in rows if row["tau"] > 1]
    best = max(rows, key=lambda row: row["speedup"], default=None)
    return None if best is None else best["speedup"] / best["tau"]


AIMS = (
    Aim("7B, one token: share of the bandwidth that a copy reaches", 0.8, True, _of_bound),
    Aim("7B: 64 tokens in passes of one", 1.15, False, _of_one),
    Aim("7B: a draft level in passes of one token", 0.06, False, _level),
    Aim("7B, rounds of ar: share of the host", 0.05, False, _host_share),
    Aim("tiny, the fastest lossless method: speed-up / tau", 0.85, True, _of_tau),
)


def judged(lines: Lines) -> Iterator[Figures]:
    """Yield every aim as `Aim.judge` returns it."""
    return (aim.judge(lines) for aim in AIMS)
