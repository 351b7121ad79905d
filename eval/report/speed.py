"""How fast the runs are: seconds, forward passes and tokens per round, against a baseline."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any

from configs.evaluation import run_places
from configs.model import TIMED
from eval.metrics.intervals import Estimate, paired_ratio
from eval.report.run import Key, Run
from runs.made_of import BESIDE
from runs.measure import BUSY, disagreement, exceeds_tau, inconclusive, waiting
from runs.records import tau
from support.json_lines import Line

# What decides the tokens of plain decoding apart from prompt and seed: the checkpoints, by their
# contents, and the sampling distribution.
_DISTRIBUTION = ("model", "model_path", "tokenizer_path", "text_encoder_path", "target_size",
                 "negative_prompt", "quantize", "temperature", "top_k", "top_p", "cfg")  # fmt: skip
_MACHINE = ("dtype", "vq_path")
# What else run.json says of a command, in words.
_COMMAND = {"hardware": "hardware", "versions": "versions", "revision": "revision"}
_COMMAND |= {"processes": "number of processes"}


@dataclass(frozen=True)
class PublishedCell:
    """A row of the paper's tables."""

    speedup: float  # over its own plain decoding
    tau: float | None = None  # tokens per round
    drafted_depth: float | None = None  # levels
    clip: float | None = None  # CLIP score


# (model, prompts, temperature, method, rule) -> figures
PUBLISHED = {
    ("anole", "MSCOCO2017Val", 0.0, "ar", "exact"): PublishedCell(1.00, 1.0, clip=0.3086),
    ("anole", "MSCOCO2017Val", 0.0, "eagle2", "exact"): PublishedCell(1.62, drafted_depth=5),
    ("anole", "MSCOCO2017Val", 0.0, "eagle2", "lantern"): PublishedCell(3.03, drafted_depth=5),
    ("anole", "MSCOCO2017Val", 0.0, "adt", "exact"): PublishedCell(2.21, 3.40, 3.86, 0.3081),
    ("anole", "MSCOCO2017Val", 0.0, "adt", "lantern"): PublishedCell(3.13, 4.86, 5.15),
    ("anole", "PartiPrompts", 0.0, "adt", "lantern"): PublishedCell(3.05, 3.97, 4.31),
}


@dataclass(frozen=True)
class Baseline:
    """The run that another one is compared with."""

    run: Run
    keys: tuple[Key, ...]  # of the images in both
    distributions: tuple[str, ...]  # differing checkpoints or sampling: nothing can be compared
    doubts: tuple[str, ...]  # differing machines or `TIMED`, which change seconds and rounding

    @property
    def usable(self) -> bool:
        return bool(self.keys) and not self.distributions


def compared(run: Run, other: Run) -> Baseline:
    """Return a run's baseline: the images that both have, and why a comparison may mislead."""
    identities = run.manifest["identity"], other.manifest["identity"]
    doubts = _differences(_MACHINE, *identities)
    doubts += _differences(TIMED, run.settings, other.settings)
    doubts += [f"other {words} than {other.name}" for words in _apart(run.manifest, other.manifest)]
    if run is not other:
        doubts += [*_resumptions(run), *(f"baseline {text}" for text in _resumptions(other))]
    keys = tuple(key for key in other.by_image if key in run.by_image)
    # tokenizers and codecs that no flag names
    beside = [name for name in {**identities[0], **identities[1]} if name.endswith(BESIDE)]
    distributions = _differences((*_DISTRIBUTION, *beside), *identities)
    return Baseline(other, keys, tuple(distributions), tuple(doubts))


def baseline_of(run: Run, runs: Sequence[Run], folder: str | None) -> Baseline | None:
    """Return the baseline of a run, or None if there is none.

    This is the run in the folder, whether it can be compared or not. Without a folder it is a run
    of plain decoding with the same distribution and with images in common: the run itself, else the
    one with the fewest doubts, then with the most images.
    """
    if folder is not None:
        places = tuple(map(Path, run_places(folder)))
        found = (one for one in runs if tuple(path.resolve() for path in one.folders) == places)
        return compared(run, next(found))
    plain = [compared(run, other) for other in runs if other.settings["method"] == "ar"]
    return min(
        (baseline for baseline in plain if baseline.usable),
        key=lambda baseline: (baseline.run is not run, len(baseline.doubts), -len(baseline.keys)),
        default=None,
    )


def _spoilt(run: Run, baseline: Baseline, speedup: float) -> Iterator[str]:
    """Yield what speaks against a speed-up by wall time, as where a process was stopped."""
    for one in {run.name: run, baseline.run.name: baseline.run}.values():
        if text := _stopped([one.by_image[key] for key in baseline.keys]):
            yield text if one is run else f"{one.name}: {text}"
    ours, theirs = (_cpu_seconds(one, baseline.keys) for one in (run, baseline.run))
    if ours and (text := waiting(ours[0] / ours[1])):
        yield text
    if run is baseline.run or theirs is None:
        return
    if text := waiting(theirs[0] / theirs[1]):
        yield f"{baseline.run.name}: {text}"
    # many busy threads hide a wait of some of them, or of all for a while
    if ours and ours[0] and (text := disagreement(speedup, theirs[0] / ours[0])):
        yield text


def _stopped(images: Sequence[Line]) -> str | None:
    """Return a warning if a process was stopped for a part of its images' seconds."""
    seconds = sum(image["seconds"] for image in images)
    stopped = sum(image.get("stopped_seconds", 0.0) for image in images)
    if stopped <= (1 - BUSY) * seconds:
        return None
    times = f"{stopped:.0f} of {seconds:.0f} s"
    return f"the process was stopped for up to {times}; generate these images again"


def _cpu_seconds(run: Run, keys: Iterable[Key]) -> tuple[float, float] | None:
    """Return the CPU seconds and the seconds of a run's images.

    None for a run on a GPU, where they say nothing, or of other programs.
    """
    images = [run.by_image[key] for key in keys]
    hardware = run.manifest.get("hardware") or {}
    if not images or hardware.get("gpu") or any("cpu_seconds" not in one for one in images):
        return None
    spent, seconds = (sum(one[name] for one in images) for name in ("cpu_seconds", "seconds"))
    return spent, seconds


def _resumptions(run: Run) -> list[str]:
    """Return, in words, what differs between the commands that made a run's images."""
    latest, earlier = run.manifest, run.manifest["earlier"]
    words = [name for name in TIMED if any(one.get(name) != run.settings[name] for one in earlier)]
    words += [text for one in earlier for text in _apart(latest, one)]
    return [f"resumed with other {text}" for text in dict.fromkeys(words)]


def _apart(ours: Line, theirs: Line) -> Iterator[str]:
    """Yield, in words, what two commands say differently of `_COMMAND`."""
    for name, words in _COMMAND.items():
        one, other = ours.get(name), theirs.get(name)
        if isinstance(one, dict) and isinstance(other, dict):
            if names := [n for n in {**one, **other} if one.get(n) != other.get(n)]:
                yield f"{words} ({', '.join(names)})"
        elif None not in (one, other) and one != other:
            yield words


def _differences(names: Iterable[str], ours: Line, theirs: Line) -> list[str]:
    return [
        f"{name if name.endswith(BESIDE) else f'--{name}'} {ours.get(name)!r}, baseline "
        f"{theirs.get(name)!r}"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]


@dataclass(frozen=True)
class SpeedRow:
    """A run's figures over its images, and those against the baseline over the images of both.

    Figures against the baseline are None where the two cannot be compared.
    """

    run: str
    method: str
    proposal: str | None
    temperature: float
    lossless: bool  # whether the images have the target's own distribution
    same_tokens: bool  # whether they must be the images of plain decoding
    images: int
    tau: float  # mean tokens per verification round, the prefill's token not counted
    drafted_depth: float  # levels that a round drafts
    verified_depth: float  # of its tree after pruning
    mean_nodes: float
    forwards: float  # per image
    seconds: float  # per image, without the VQ decoder
    baseline: str | None = None  # name of its run
    speedup: Estimate | None = None  # seconds of the baseline / seconds
    compression: float | None = None  # forward passes of the baseline / forward passes
    common: int | None = None  # images in both runs
    identical: int | None = None  # of them, those with the same tokens
    inconclusive: str | None = None  # why equal images say nothing
    doubtful: bool = False  # machine or `TIMED` differ from the baseline's
    spoilt: bool = False  # the speed-up exceeds tau, which only noise does, or a process waited
    paper: PublishedCell | None = None  # the paper's figures for the same cell
    distribution: Mapping[str, object] = field(default_factory=dict)  # `_DISTRIBUTION` by flag
    warnings: tuple[str, ...] = ()  # why figures may mislead or are missing


def speed_row(run: Run, baseline: Baseline | None) -> SpeedRow:
    """Compute a run's row of the table of speeds."""
    records = list(run.records.values())
    cell = (run.settings[name] for name in ("model", "prompt", "temperature", "method"))
    rule = "exact" if run.lossless else run.settings["verifier"]

    def mean(name: str) -> float:
        return fmean(record[name] for record in records)

    return SpeedRow(
        run=run.name,
        **{name: run.settings[name] for name in ("method", "proposal", "temperature")},
        lossless=run.lossless,
        same_tokens=run.same_tokens,
        images=len(records),
        tau=tau(records),
        drafted_depth=mean("mean_drafted_depth"),
        verified_depth=mean("mean_verified_depth"),
        mean_nodes=mean("mean_nodes"),
        forwards=mean("target_forwards"),
        seconds=mean("seconds"),
        paper=PUBLISHED.get((*cell, rule)),
        distribution={name: run.manifest["identity"].get(name) for name in _DISTRIBUTION},
        **_against(run, baseline),
    )


def differing_distributions(rows: Sequence[SpeedRow]) -> dict[str, dict[str, str]]:
    """Return, by run and flag, what of the images' distribution is not the same in all rows."""
    differing = [
        name for name in _DISTRIBUTION if len({str(row.distribution.get(name)) for row in rows}) > 1
    ]
    return {
        row.run: {name: f"{name} {row.distribution.get(name)}" for name in differing}
        for row in rows
    }


def _against(run: Run, baseline: Baseline | None) -> dict[str, Any]:
    """Return the fields of a SpeedRow that compare the run with its baseline."""
    if baseline is None:
        return {}
    other = baseline.run
    if not baseline.usable:
        why = "; ".join(baseline.distributions) or "no image with the prompt and seed of one of its"
        warning = f"not compared with {other.name}: {why}"
        return {"common": len(baseline.keys), "warnings": (warning,)}
    pairs = [(other.by_image[key], run.by_image[key]) for key in baseline.keys]
    theirs, ours = zip(*pairs, strict=True)
    seconds = [[image["seconds"] for image in images] for images in (theirs, ours)]
    speedup = paired_ratio(seconds[0], seconds[1])
    forwards = [sum(image["target_forwards"] for image in images) for images in (theirs, ours)]
    identical = sum(one["tokens_sha256"] == two["tokens_sha256"] for one, two in pairs)
    plain = other.settings["method"] == "ar" and other is not run
    noise = exceeds_tau(speedup.value, tau(ours)) if plain else None
    spoilt = list(filter(None, (noise, *_spoilt(run, baseline, speedup.value))))
    warnings = [*baseline.doubts, *spoilt]
    if len(pairs) < len(run.by_image):
        count, rest = f"{len(pairs)} of {len(run.by_image)} images", "tau and forward passes"
        warnings.append(f"compared with {other.name} on {count}; seconds, {rest} are of all")
    unclear = None
    if run.settings["method"] != "ar":
        unclear = inconclusive((o["target_forwards"] - 1, o["mean_nodes"], o["tau"]) for o in ours)
    # In bf16 single images differ wherever rounding changes a choice (docs/exactness.md).
    expected = run.same_tokens and other.same_tokens and run.settings["dtype"] != "bf16"
    if expected and identical < len(pairs):
        count = f"{len(pairs) - identical} images differ from {other.name}'s"
        warnings.append(f"{count}: near-ties in fp32, or a fault")
    elif expected and unclear:
        warnings.append(f"{unclear}, so images equal to {other.name}'s say nothing")
    return {
        "baseline": other.name,
        "speedup": speedup,
        "compression": forwards[0] / forwards[1],
        "common": len(pairs),
        "identical": identical,
        "inconclusive": unclear if expected else None,
        "doubtful": bool(baseline.doubts),
        "spoilt": bool(spoilt),
        "warnings": tuple(warnings),
    }
