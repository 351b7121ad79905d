"""Which run a run is compared with, and what of the two can be compared."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eval.report.run import Line, Run

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
    ours, theirs = (each.manifest["identity"] for each in (run, other))
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
        place = Path(folder).resolve()
        return compared(run, next(other for other in runs if other.folder.resolve() == place))
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
