"""Which run a run is compared with, and what of the two can be compared."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eval.report.run import Line, Run

# What decides the tokens of plain decoding, besides prompt and seed: checkpoints by their contents, and the law.
LAW = (
    "model",
    "model_path",
    "tokenizer_path",
    "text_encoder_path",
    "target_size",
    "temperature",
    "top_k",
    "top_p",
    "cfg",
)
_MACHINE = ("dtype", "device", "vq_path")


@dataclass(frozen=True)
class Baseline:
    """The run that another one is compared with.

    keys: (prompt, seed) of the images in both; laws: differences of models and laws, which leave nothing to compare;
    doubts: of machines and batch sizes, which make seconds and rounding differ.
    """

    run: Run
    keys: tuple[tuple[str, int], ...]
    distributions: tuple[str, ...]
    doubts: tuple[str, ...]

    @property
    def usable(self) -> bool:
        return bool(self.keys) and not self.distributions


def compared(run: Run, other: Run) -> Baseline:
    """What `other` is to `run` as its baseline."""
    ours, theirs = (each.manifest.get("identity") or each.settings for each in (run, other))
    doubts = _differences(_MACHINE, ours, theirs) + _differences(
        ("batch_size",), run.settings, other.settings
    )
    doubts += [
        f"other {name} than {other.name}"
        for name in ("hardware", "versions")
        if run.manifest.get(name) != other.manifest.get(name)
    ]
    keys = tuple(key for key in other.by_image if key in run.by_image)
    return Baseline(other, keys, tuple(_differences(LAW, ours, theirs)), tuple(doubts))


def baseline_of(run: Run, runs: Sequence[Run], folder: str | None) -> Baseline | None:
    """The run in the folder, whether it can be compared or not; without one the run of plain decoding that has the same
    law and images in common, by the fewest doubts, then by the most images; None if there is none."""
    if folder is not None:
        return compared(
            run, next(other for other in runs if other.folder.resolve() == Path(folder).resolve())
        )
    plain = [compared(run, other) for other in runs if other.settings["method"] == "ar"]
    fitting = [each for each in plain if each.usable]
    return min(
        fitting,
        key=lambda each: (each.run is not run, len(each.doubts), -len(each.keys)),
        default=None,
    )


def _differences(names: Sequence[str], ours: Line, theirs: Line) -> list[str]:
    return [
        f"--{name} {ours.get(name)!r}, baseline {theirs.get(name)!r}"
        for name in names
        if ours.get(name) != theirs.get(name)
    ]
