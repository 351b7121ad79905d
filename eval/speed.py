"""How fast the runs are: seconds, forwards and tokens per round, against the run that is the baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from eval.paired import Estimate, paired_ratio
from eval.published import PublishedCell, published
from eval.runs import Run

_MAY_DIFFER = ("method", "proposal", "calibration", "depth", "width", "nodes", "tree", "verifier", "drafter_path")


@dataclass(frozen=True)
class SpeedRow:
    """A run's figures, over its images; those against the baseline over the images that both have.

    tau: tokens decided in rounds / rounds; forwards, seconds: per image, without the VQ decoder; speedup: seconds of
    the baseline / seconds; compression: forwards of the baseline / forwards; common: images in both; identical: of
    these, with the same tokens; paper: its figures for the same cell; warnings: why figures may mislead.
    """

    run: str
    method: str
    proposal: str | None
    temperature: float
    lossless: bool
    images: int
    tau: float
    mean_depth: float
    mean_nodes: float
    forwards: float
    seconds: float
    speedup: Estimate | None = None
    compression: float | None = None
    common: int | None = None
    identical: int | None = None
    paper: PublishedCell | None = None
    warnings: tuple[str, ...] = ()


def baseline_of(runs: Sequence[Run], folder: str | None) -> Run | None:
    """The run in the folder, or the first that decodes plainly; None if there is none."""
    if folder is not None:
        return next(run for run in runs if run.folder.resolve() == Path(folder).resolve())
    return next((run for run in runs if run.settings["method"] == "ar"), None)


def speed_row(run: Run, baseline: Run | None) -> SpeedRow:
    """The figures of a run."""
    records = list(run.records.values())
    rounds = sum(record["target_forwards"] - 1 for record in records)
    figures = {
        "run": run.name,
        "method": run.settings["method"],
        "proposal": run.settings["proposal"],
        "temperature": run.settings["temperature"],
        "lossless": run.lossless,
        "images": len(records),
        "tau": sum(record["tokens"] - 1 for record in records) / max(rounds, 1),
        "mean_depth": fmean(record["mean_depth"] for record in records),
        "mean_nodes": fmean(record["mean_nodes"] for record in records),
        "forwards": fmean(record["target_forwards"] for record in records),
        "seconds": fmean(record["seconds"] for record in records),
        "paper": published(run.settings, run.lossless),
    }
    return SpeedRow(**figures, **_against(run, baseline))


def _against(run: Run, baseline: Run | None) -> dict[str, object]:
    if baseline is None:
        return {}
    keys = [key for key in baseline.by_image if key in run.by_image]
    warnings = _differences(run, baseline)
    if not keys:
        return {"common": 0, "warnings": (*warnings, f"no image with the prompt and seed of one of {baseline.name}")}
    pairs = [(baseline.by_image[key], run.by_image[key]) for key in keys]
    identical = sum(a["tokens_sha256"] == b["tokens_sha256"] for a, b in pairs)
    if identical < len(pairs) and run.lossless and run.settings["dtype"] != "bf16":
        warnings.append(f"{len(pairs) - identical} images differ from {baseline.name}'s: near-ties in fp32, or a fault")
    return {
        "speedup": paired_ratio([a["seconds"] for a, _ in pairs], [b["seconds"] for _, b in pairs]),
        "compression": sum(a["target_forwards"] for a, _ in pairs) / sum(b["target_forwards"] for _, b in pairs),
        "common": len(pairs),
        "identical": identical,
        "warnings": tuple(warnings),
    }


def _differences(run: Run, baseline: Run) -> list[str]:
    """What makes seconds or tokens of two runs incomparable."""
    ours, theirs = (each.manifest.get("identity", {}) for each in (run, baseline))
    names = [name for name in sorted(ours | theirs) if not name.startswith(("adt_", "lantern_", *_MAY_DIFFER))]
    faults = [f"--{name} {ours.get(name)!r}, baseline {theirs.get(name)!r}" for name in names
              if ours.get(name) != theirs.get(name)]  # fmt: skip
    for name in ("hardware", "versions"):
        if run.manifest.get(name) != baseline.manifest.get(name):
            faults.append(f"other {name} than the baseline")
    if run.settings["batch_size"] != baseline.settings["batch_size"]:
        faults.append(f"--batch_size {run.settings['batch_size']}, baseline {baseline.settings['batch_size']}")
    return faults
