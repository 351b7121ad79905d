"""Correlate where an image accepts drafts with its neighbours: is acceptance local?

`python -m scripts.tools.maps --run OUTPUT_DIR`, a run of `generate_images --trace` with drafts

`evaluate` draws the maps; this prints how a round's accepted draft tokens correlate with

    previous      those of the round before
    left          the same, where the two rounds meet within a row of the image
    upper         those of the round that decided the position above
    other_image   control: the same position of another image (what all images have in common)
    elsewhere     control: another position of the same image (images that are easy all over)

and what one neighbour adds to the other. All of these are known when the round's tree is planned,
so this is what an adaptive tree can use. Trees that never change show the target and the drafter
alone: with ADT-Tree the tree, and so the acceptance, depends on the neighbours itself.
"""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np

from configs.fields import mismatch
from eval.metrics.intervals import Estimate, estimate
from eval.report.run import ImageTrace, read_run, read_traces
from support.durable import encode_lines, replace_file
from support.script import run_script
from support.tables import Table

# Name -> the variables whose correlation it is: the first two, given the third.
PAIRS = {name: ("own", name) for name in ("previous", "left", "upper", "other_image", "elsewhere")}
PAIRS |= {
    "upper_given_left": ("own", "upper", "left"),
    "left_given_upper": ("own", "left", "upper"),
}
Correlation = tuple[int, Estimate]  # pairs of rounds, and Pearson's correlation


def maps(*, run: str, output_dir: str | None = None) -> None:
    """Print the correlations of a run and write them to correlations.json.

    Args:
        run: its folder.
        output_dir: where the file goes; <run>/maps if None.
    """
    traces = traces_of(run)
    output = Path(run) / "maps" if output_dir is None else Path(output_dir)
    output.mkdir(parents=True, exist_ok=True)
    document, rows = {"images": len(traces)}, []
    for name, pair in correlations(traces).items():
        document[name] = pair and asdict(pair[1]) | {"pairs": pair[0]}
        cells = (str(pair[0]), pair[1].words("{:.3f}".format)) if pair else ("-", "-")
        rows.append((name, *cells))
    replace_file(output / "correlations.json", encode_lines([document]))
    print(Table(("with", "pairs", "correlation (95 %)"), tuple(rows)).markdown())


def traces_of(folder: str) -> list[ImageTrace]:
    """Return the traces of a run's images; a SettingsError if they cannot be compared."""
    run = read_run(folder, folder, "--run")
    traces, faults = read_traces(run, run.records)
    if faults:
        raise mismatch(f"--run {folder}", "; ".join(faults), "a whole run")
    if not any(np.nanmax(trace.accepted) for trace in traces.values()):
        got = "no accepted drafts" if traces else "no images with a trace"
        wanted = "a run with --trace by a method that drafts"
        raise mismatch(f"--run {folder}", got, wanted)
    if len({trace.columns for trace in traces.values()}) > 1:
        raise mismatch(f"--run {folder}", "several", "images of one size")
    return list(traces.values())


def correlations(
    traces: Sequence[ImageTrace], samples: int = 2000
) -> dict[str, Correlation | None]:
    """Return the correlations of PAIRS; None where there are too few pairs, or one is constant.

    samples: resamplings of the images for the intervals.
    """
    # a fixed seed, so that a run always gives the same figures
    random = np.random.default_rng(0)
    order = random.permutation(len(traces))
    partners = dict(zip(order, np.roll(order, 1), strict=True))  # another image, if there are two
    rows = [
        _variables(image, traces[partners[number]], random) for number, image in enumerate(traces)
    ]
    return {
        name: correlation([np.stack([row[key] for key in keys]) for row in rows], samples)
        for name, keys in PAIRS.items()
    }


def _variables(
    image: ImageTrace, other: ImageTrace, random: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return the acceptances (rounds,) of an image and of what they are compared with.

    NaN where there is none: above the first row, and in rounds that the image's end has cut.
    """
    values, rounds, at = image.whole, image.rounds, image.starts
    above = np.maximum(at - image.columns, 0)  # position 0 has no acceptance
    anywhere = random.integers(1, len(values), len(at))
    return {
        "own": values[at],
        "previous": values[at - 1],
        "left": np.where(at % image.columns, values[at - 1], np.nan),
        "upper": np.where(rounds[above] != rounds[at], values[above], np.nan),
        "other_image": np.full(len(at), np.nan) if other is image else other.whole[at],
        "elsewhere": np.where(rounds[anywhere] != rounds[at], values[anywhere], np.nan),
    }


def correlation(variables: Sequence[np.ndarray], samples: int = 2000) -> Correlation | None:
    """Return the pairs and the correlation of two variables, given a third if there is one.

    variables: per image (2 or 3, pairs); columns with a NaN are left out.
    """
    complete = [table[:, ~np.isnan(table).any(0)] for table in variables]
    values = np.concatenate(complete, axis=1)
    if values.shape[1] < 4 or np.ptp(values, axis=1).min() == 0:
        return None
    images = np.repeat(np.arange(len(complete)), [table.shape[1] for table in complete])

    def figure(counts: np.ndarray) -> float:
        covariance = np.cov(values, aweights=counts[images], ddof=0)
        deviation = np.sqrt(covariance.diagonal())
        with np.errstate(divide="ignore", invalid="ignore"):
            r = covariance / np.outer(deviation, deviation)
            if len(r) == 2:
                return float(r[0, 1])
            free = (1 - r[0, 2] ** 2) * (1 - r[1, 2] ** 2)
            return float((r[0, 1] - r[0, 2] * r[1, 2]) / np.sqrt(free))

    result = estimate(figure, len(complete), samples)
    return None if np.isnan(result.value) else (values.shape[1], result)


if __name__ == "__main__":
    run_script(maps)
