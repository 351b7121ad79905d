"""How fast the runs are: seconds, forwards and tokens per round, against the run's baseline."""

from dataclasses import dataclass
from statistics import fmean

from eval.metrics.paired import Estimate, paired_ratio
from eval.report.baselines import Baseline
from eval.report.published import PublishedCell, published
from eval.report.runs import Run


@dataclass(frozen=True)
class SpeedRow:
    """A run's figures, over its images; those against the baseline over the images that both have, and None where the
    two cannot be compared.

    lossless, same_tokens: whether law and images are to be those of plain decoding; baseline: its name;
    tau: tokens decided in rounds / rounds; forwards, seconds: per image, without the VQ decoder; speedup: seconds of
    the baseline / seconds; compression: forwards of the baseline / forwards; common: images in both; identical: of
    these, with the same tokens; doubtful: machine or batch size are not the baseline's; paper: its figures for the same
    cell; warnings: why figures may mislead or are missing.
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
    paper: PublishedCell | None = None
    warnings: tuple[str, ...] = ()


def speed_row(run: Run, baseline: Baseline | None) -> SpeedRow:
    """The figures of a run."""
    records = list(run.records.values())
    rounds = sum(record["target_forwards"] - 1 for record in records)
    figures = {
        "run": run.name,
        "method": run.settings["method"],
        "proposal": run.settings["proposal"],
        "temperature": run.settings["temperature"],
        "lossless": run.lossless,
        "same_tokens": run.same_tokens,
        "images": len(records),
        "tau": sum(record["tokens"] - 1 for record in records) / max(rounds, 1),
        "mean_depth": fmean(record["mean_depth"] for record in records),
        "mean_nodes": fmean(record["mean_nodes"] for record in records),
        "forwards": fmean(record["target_forwards"] for record in records),
        "seconds": fmean(record["seconds"] for record in records),
        "paper": published(run.settings, run.lossless),
    }
    return SpeedRow(**figures, **_against(run, baseline))


def _against(run: Run, baseline: Baseline | None) -> dict[str, object]:
    if baseline is None:
        return {}
    if not baseline.usable:
        nothing = f"not compared with {baseline.run.name}: "
        nothing += (
            "; ".join(baseline.distributions) or "no image with the prompt and seed of one of its"
        )
        return {"common": len(baseline.keys), "warnings": (nothing,)}
    pairs = [(baseline.run.by_image[key], run.by_image[key]) for key in baseline.keys]
    identical = sum(a["tokens_sha256"] == b["tokens_sha256"] for a, b in pairs)
    warnings, expected = list(baseline.doubts), run.same_tokens and baseline.run.same_tokens
    if identical < len(pairs) and expected and run.settings["dtype"] != "bf16":
        warnings.append(
            f"{len(pairs) - identical} images differ from {baseline.run.name}'s: near-ties in fp32, or a fault"
        )
    return {
        "baseline": baseline.run.name,
        "speedup": paired_ratio([a["seconds"] for a, _ in pairs], [b["seconds"] for _, b in pairs]),
        "compression": sum(a["target_forwards"] for a, _ in pairs)
        / sum(b["target_forwards"] for _, b in pairs),
        "common": len(pairs),
        "identical": identical,
        "doubtful": bool(baseline.doubts),
        "warnings": tuple(warnings),
    }
