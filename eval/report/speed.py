"""How fast the runs are: seconds, forward passes and tokens per round, against a baseline."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean

from eval.bench.speedup import exceeds_tau
from eval.metrics.paired import Estimate, paired_ratio
from eval.report.run import Run
from support.json_files import Line

# What decides the tokens of plain decoding apart from prompt and seed: the checkpoints, by their
# contents, and the sampling distribution.
_DISTRIBUTION = (
    "model",
    "model_path",
    "tokenizer_path",
    "text_encoder_path",
    "target_size",
    "negative_prompt",
    "quantize",
    "temperature",
    "top_k",
    "top_p",
    "cfg",
)
_MACHINE = ("dtype", "device", "vq_path")


@dataclass(frozen=True)
class PublishedCell:
    """A row of the paper's tables.

    Attributes:
        speedup: over its own plain decoding.
        tau: tokens per round.
        mean_depth: of the draft trees, in tokens.
        clip: CLIP score.
    """

    speedup: float
    tau: float | None = None
    mean_depth: float | None = None
    clip: float | None = None


# (model, prompts, temperature, method, whether acceptance is relaxed) -> figures
PUBLISHED = {
    ("anole", "MSCOCO2017Val", 0.0, "ar", False): PublishedCell(1.00, 1.0, clip=0.3086),
    ("anole", "MSCOCO2017Val", 0.0, "eagle2", False): PublishedCell(1.62, mean_depth=5),
    ("anole", "MSCOCO2017Val", 0.0, "eagle2", True): PublishedCell(3.03, mean_depth=5),
    ("anole", "MSCOCO2017Val", 0.0, "adt", False): PublishedCell(2.21, 3.40, 3.86, 0.3081),
    ("anole", "MSCOCO2017Val", 0.0, "adt", True): PublishedCell(3.13, 4.86, 5.15),
    ("anole", "PartiPrompts", 0.0, "adt", True): PublishedCell(3.05, 3.97, 4.31),
}


def published(settings: dict[str, object], lossless: bool) -> PublishedCell | None:
    """Return the paper's figures for a run of these settings; None where it has none."""
    model, prompt, temperature, method = (
        settings[name] for name in ("model", "prompt", "temperature", "method")
    )
    return PUBLISHED.get((model, prompt, float(temperature), method, not lossless))


@dataclass(frozen=True)
class Baseline:
    """The run that another one is compared with.

    Attributes:
        keys: (prompt, seed) of the images in both.
        distributions: differences of models and distributions, which leave nothing to compare.
        doubts: differences of machines and batch sizes, which change seconds and rounding.
    """

    run: Run
    keys: tuple[tuple[str, int], ...]
    distributions: tuple[str, ...]
    doubts: tuple[str, ...]

    @property
    def usable(self) -> bool:
        """Whether the two can be compared."""
        return bool(self.keys) and not self.distributions


def compared(run: Run, other: Run) -> Baseline:
    """Return `other` as the baseline of `run`."""
    ours, theirs = run.manifest["identity"], other.manifest["identity"]
    doubts = _differences(_MACHINE, ours, theirs) + _differences(
        ("batch_size",), run.settings, other.settings
    )
    doubts += [
        f"other {name} than {other.name}"
        for name in ("hardware", "versions")
        if run.manifest.get(name) != other.manifest.get(name)
    ]
    keys = tuple(key for key in other.by_image if key in run.by_image)
    return Baseline(other, keys, tuple(_differences(_DISTRIBUTION, ours, theirs)), tuple(doubts))


def baseline_of(run: Run, runs: Sequence[Run], folder: str | None) -> Baseline | None:
    """Return the baseline of a run, or None if there is none.

    This is the run in the folder, whether it can be compared or not. Without a folder it is a run
    of plain decoding with the same distribution and with images in common: the run itself, else the
    one with the fewest doubts, then with the most images.
    """
    if folder is not None:
        path = Path(folder).resolve()
        return compared(run, next(other for other in runs if other.folder.resolve() == path))
    plain = [compared(run, other) for other in runs if other.settings["method"] == "ar"]
    fitting = [baseline for baseline in plain if baseline.usable]
    return min(
        fitting,
        key=lambda baseline: (baseline.run is not run, len(baseline.doubts), -len(baseline.keys)),
        default=None,
    )


def _differences(names: Sequence[str], ours: Line, theirs: Line) -> list[str]:
    return [
        f"--{name} {ours.get(name)!r}, baseline {theirs.get(name)!r}"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]


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
        distribution: what decides the distribution of the images, by flag.
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
    distribution: Mapping[str, object] = field(default_factory=dict)
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
        "distribution": {name: run.manifest["identity"].get(name) for name in _DISTRIBUTION},
    }
    return SpeedRow(**figures, **_against(run, baseline))


def differing_distributions(rows: Sequence[SpeedRow]) -> dict[str, dict[str, str]]:
    """Return, by run and flag, what of the images' distribution is not the same in all rows."""
    differing = [
        name for name in _DISTRIBUTION if len({str(row.distribution.get(name)) for row in rows}) > 1
    ]
    return {
        row.run: {name: f"{name} {row.distribution.get(name)}" for name in differing}
        for row in rows
    }


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
    seconds, forwards = (
        [[record[name] for record in records] for records in (theirs, ours)]
        for name in ("seconds", "target_forwards")
    )
    speedup = paired_ratio(*seconds)
    noise = None
    if baseline.run.settings["method"] == "ar" and baseline.run is not run:
        noise = exceeds_tau(speedup.value, tau(ours))
    identical = sum(
        one["tokens_sha256"] == other["tokens_sha256"]
        for one, other in zip(theirs, ours, strict=True)
    )
    differing = _differing(run, baseline.run, len(ours) - identical)
    warnings = (*baseline.doubts, noise, differing)
    return {
        "baseline": baseline.run.name,
        "speedup": speedup,
        "compression": sum(forwards[0]) / sum(forwards[1]),
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
