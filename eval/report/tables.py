"""The tables of an evaluation: speed, images, what the figures rest on, settings."""

from collections.abc import Mapping, Sequence
from functools import partial

from eval.metrics.base import Score
from eval.metrics.intervals import Estimate
from eval.report.run import Run
from eval.report.speed import SpeedRow, differing_distributions
from support.tables import NONE, Table, number


def speed_table(rows: Sequence[SpeedRow]) -> Table:
    """Return a row per run, with the paper's figures next to ours where it has the same cell.

    Runs of different sampling distributions are not to be compared, so a column names them.
    """
    paper = any(row.paper for row in rows)
    by_run = differing_distributions(rows)
    cells = [
        _speed_cells(row, by_run[row.run]) | (_paper_cells(row) if paper else {}) for row in rows
    ]
    return Table.of(cells, "Speed")


def _speed_cells(row: SpeedRow, differing: Mapping[str, str]) -> dict[str, str]:
    other = [words for flag, words in differing.items() if flag != "temperature"]
    same = NONE if row.identical is None else f"{row.identical}/{row.common}"
    return {
        "run": row.run,
        "method": _method(row),
        "T": f"{row.temperature:g}",
        **({"distribution": ", ".join(other)} if other else {}),
        "seconds per image": number(row.seconds),
        "baseline": row.baseline or NONE,
        "sequential speed-up": (row.speedup.words() if row.speedup else NONE)
        + _mark(row.doubtful or row.spoilt),
        "tau": _hundredths(row.tau),
        "drafted depth": _hundredths(row.drafted_depth),
        "verified depth": _hundredths(row.verified_depth),
        "forward passes": number(row.forwards),
        "times fewer": _hundredths(row.compression),
        "same images": same
        + _mark(row.doubtful)
        + (", inconclusive (?)" if row.inconclusive else ""),
    }


def _paper_cells(row: SpeedRow) -> dict[str, str]:
    figures = {"speed-up": "speedup", "tau": "tau", "drafted depth": "drafted_depth"}
    return {
        f"paper's {name}": _hundredths(getattr(row.paper, field, None))
        for name, field in figures.items()
    }


def metric_table(scores: Mapping[str, Mapping[str, Score]], rows: Sequence[SpeedRow]) -> Table:
    """Return a row per figure and a column per run.

    A row below holds the differences to the lossless baselines over the same images, where there
    are any; the paper's CLIP scores have columns of their own. Where the runs are of different
    sampling distributions, the names of the columns say which.
    """
    differing = differing_distributions(rows)
    titles = {
        run: f"{run} ({', '.join(differing[run].values())})" if differing.get(run) else run
        for run in scores
    }
    paper = {row.run: row.paper.clip for row in rows if row.paper and row.paper.clip is not None}
    clip = {f"paper's {run}": number(value) for run, value in paper.items()}
    table: list[dict[str, str]] = []
    higher = {name: score.higher for of_run in scores.values() for name, score in of_run.items()}
    for metric, more_is_better in higher.items():
        shown = {titles[run]: _score(of_run.get(metric)) for run, of_run in scores.items()}
        name = f"{metric} {'↑' if more_is_better else '↓'}"
        table.append({"figure": name} | shown | (clip if metric == "clip" else {}))
        prices = {
            titles[run]: price.words(partial(_digits, sign="+"))
            for run, of_run in scores.items()
            if metric in of_run and (price := of_run[metric].price)
        }
        if prices:
            table.append({"figure": f"{metric}, minus the baseline's"} | prices)
    return Table.of(table, "Images")


def sources_table(scores: Mapping[str, Mapping[str, Score]]) -> Table:
    """Return what every figure rests on, with one row for all figures and runs that agree."""
    runs: dict[tuple[str, ...], list[str]] = {}  # by figure and notes
    for run, of_run in scores.items():
        for score in of_run.values():
            notes = (score.reference or NONE, score.interval or NONE, score.warning or NONE)
            key = (score.metric, str(score.count), score.network, score.resize, *notes)
            runs.setdefault(key, []).append(run)
    figures: dict[tuple[str, ...], list[str]] = {}  # by runs and notes
    for (figure, *on), names in runs.items():
        figures.setdefault((", ".join(names), *on), []).append(figure)
    sources = ("images", "library and weights", "resize", "reference", "interval", "warning")
    rows = tuple((", ".join(names), *key) for key, names in figures.items())
    return Table(("figures", "runs", *sources), rows, "What the figures rest on")


def settings_table(runs: Sequence[Run]) -> tuple[Table, str]:
    """Return the settings, machines and versions that differ, and in words those that do not."""
    facts = [_facts(run) for run in runs]
    names = dict.fromkeys(name for run_facts in facts for name in run_facts)
    values = {name: tuple(run_facts.get(name, NONE) for run_facts in facts) for name in names}
    rows = tuple((name, *cells) for name, cells in values.items() if len(set(cells)) > 1)
    common = [f"{name} {cells[0]}" for name, cells in values.items() if len(set(cells)) == 1]
    return Table(("setting", *(run.name for run in runs)), rows, "Settings"), "; ".join(common)


def _facts(run: Run) -> dict[str, str]:
    machine = {name: run.manifest.get(name) for name in ("hardware", "versions", "revision")}
    flags = {f"--{flag}": value for flag, value in run.settings.items() if flag != "output_dir"}
    facts = {"folder": "+".join(map(str, run.folders))} | flags | machine
    return {name: _text(value) for name, value in facts.items() if value is not None}


def _text(value: object) -> str:
    if not isinstance(value, dict) or not value:
        return str(value)
    return ", ".join(f"{name} {item}" for name, item in value.items() if item is not None)


def _method(row: SpeedRow) -> str:
    name = row.method + (f", {row.proposal}" if row.proposal else "")
    if row.same_tokens:
        return name
    if row.lossless:
        return f"{name} (same distribution, other images)"
    return f"{name} (relaxed: other images than plain decoding)"


def _hundredths(value: float | None) -> str:
    return NONE if value is None else f"{value:.2f}"


def _mark(doubtful: bool) -> str:
    return " (!)" if doubtful else ""


def _score(score: Score | None) -> str:
    if score is None:
        return NONE
    figure = Estimate(score.value, score.low, score.high)
    return figure.words(_digits) + _mark(score.warning is not None)


def _digits(value: float, sign: str = "") -> str:
    """Return four digits after the point of a small figure, four in all of a large one."""
    return format(value, f"{sign}z.4f" if abs(value) < 10 else f"{sign}z.4g")
