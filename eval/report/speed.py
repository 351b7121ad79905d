"""How fast the runs are: seconds, forward passes and tokens per round, against a baseline."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from eval.bench.plausible import exceeds_tau
from eval.metrics.paired import Estimate, paired_ratio
from eval.report.baselines import Baseline
from eval.report.published import PublishedCell, published
from eval.report.run import Run
from support.json_files import Line


@dataclass(frozen=True)
class SpeedRow:
    """A run's figures over its images, and those against the baseline over the images of both.

    Figures against the baseline are None where the two cannot be compared.

    Attributes:
        lossless: whether the images have the target's own distribution.
        same_tokens: whether they must be the images of plain decoding.
        tau: mean tokens per verification round, the prefill's token not counted.
        forwards, seconds: per image, without the VQ decoder.
        baseline: name of the baseline's run.
        speedup: seconds of the baseline / seconds.
        compression: forward passes of the baseline / forward passes.
        common: images in both; identical: how many of them have the same tokens.
        doubtful: whether machine or batch size differ from the baseline's.
        above_tau: whether the speed-up over plain decoding exceeds tau, which only noise does.
        paper: the paper's figures for the same cell.
        warnings: why figures may mislead or are missing.
    """

    run: str
    method: str
    proposal: str | None
    temperature: float
    lossless: bool
    same_tokens: bool
    images: int
    tau: float
    mean_depth: float
    mean_nodes: float
    forwards: float
    seconds: float
    baseline: str | None = None
    speedup: Estimate | None = None
    compression: float | None = None
    common: int | None = None
    identical: int | None = None
    doubtful: bool = False
    above_tau: bool = False
    paper: PublishedCell | None = None
    warnings: tuple[str, ...] = ()


def speed_row(run: Run, baseline: Baseline | None) -> SpeedRow:
    """Return the figures of a run."""
    records = list(run.records.values())
    figures = {
        "run": run.name,
        "method": run.settings["method"],
        "proposal": run.settings["proposal"],
        "temperature": run.settings["temperature"],
        "lossless": run.lossless,
        "same_tokens": run.same_tokens,
        "images": len(records),
        "tau": tau(records),
        "mean_depth": fmean(record["mean_depth"] for record in records),
        "mean_nodes": fmean(record["mean_nodes"] for record in records),
        "forwards": fmean(record["target_forwards"] for record in records),
        "seconds": fmean(record["seconds"] for record in records),
        "paper": published(run.settings, run.lossless),
    }
    return SpeedRow(**figures, **_against(run, baseline))


def tau(records: Sequence[Line]) -> float:
    """Return the mean tokens per verification round; the prefill decides an image's first token."""
    rounds = sum(record["target_forwards"] - 1 for record in records)
    return sum(record["tokens"] - 1 for record in records) / max(rounds, 1)


def _against(run: Run, baseline: Baseline | None) -> dict[str, object]:
    """Return the fields of a SpeedRow that compare the run with its baseline."""
    if baseline is None:
        return {}
    if not baseline.usable:
        why = "; ".join(baseline.distributions)
        why = why or "no image with the prompt and seed of one of its"
        warning = f"not compared with {baseline.run.name}: {why}"
        return {"common": len(baseline.keys), "warnings": (warning,)}
    theirs = [baseline.run.by_image[key] for key in baseline.keys]
    ours = [run.by_image[key] for key in baseline.keys]
    speedup = paired_ratio([line["seconds"] for line in theirs], [line["seconds"] for line in ours])
    noise = None
    if baseline.run.settings["method"] == "ar" and baseline.run is not run:
        noise = exceeds_tau(speedup.value, tau(ours))
    identical = sum(
        one["tokens_sha256"] == other["tokens_sha256"]
        for one, other in zip(theirs, ours, strict=True)
    )
    differing = _differing(run, baseline.run, len(ours) - identical)
    plain, own = (sum(line["target_forwards"] for line in lines) for lines in (theirs, ours))
    warnings = (*baseline.doubts, noise, differing)
    return {
        "baseline": baseline.run.name,
        "speedup": speedup,
        "compression": plain / own,
        "common": len(ours),
        "identical": identical,
        "doubtful": bool(baseline.doubts),
        "above_tau": noise is not None,
        "warnings": tuple(text for text in warnings if text is not None),
    }


def _differing(run: Run, baseline: Run, count: int) -> str | None:
    """Return a warning if images differ that must be the same up to rounding."""
    expected = run.same_tokens and baseline.same_tokens and run.settings["dtype"] != "bf16"
    if not count or not expected:
        return None
    return f"{count} images differ from {baseline.name}'s: near-ties in fp32, or a fault"
