"""What readers of a report ask first of each run: how fast, and are they the same images."""

from dataclasses import dataclass

from eval.report.speed import SpeedRow


@dataclass(frozen=True)
class SummaryLine:
    """A run's answers in words; colour: good, bad or none, of the answer `same`."""

    run: str
    fast: str
    same: str
    colour: str


def summary_line(row: SpeedRow) -> SummaryLine:
    """Return a run's answers."""
    return SummaryLine(row.run, _fast(row), *_same(row))


def _fast(row: SpeedRow) -> str:
    seconds = f"{row.seconds:.3g} s per image"
    if row.baseline == row.run:
        return f"{seconds}: the baseline"
    if row.speedup is None:
        return f"{seconds}; no baseline to compare with"
    doubt = " (!)" if row.doubtful or row.above_tau else ""
    return f"{row.speedup.value:.2f} times as fast as {row.baseline}{doubt}; {seconds}"


def _same(row: SpeedRow) -> tuple[str, str]:
    """Return the answer and its colour."""
    if row.baseline == row.run:
        return "the baseline", ""
    if row.identical is None:
        return "no baseline to compare with", ""
    count = f"{row.identical} of {row.common} have the tokens of {row.baseline}"
    if not row.lossless:
        return f"{count}; a relaxed rule, other images by design", "bad"
    if not row.same_tokens:
        return f"{count}; other images of the same distribution", ""
    return count, "good" if row.identical == row.common else "bad"
