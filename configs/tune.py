"""Settings of `tune`, which finds the fastest lossless method of a model on a machine."""

from dataclasses import dataclass
from typing import ClassVar

from configs.benchmark import BenchmarkSettings
from configs.fields import Settings, part, setting
from configs.methods import MethodSettings
from configs.schema import RunSettings
from configs.targets import ROOT

PROMPTS = str(ROOT / "configs" / "prompts" / "tiny_validation.txt")
# Entries of --methods, likelier winners first: if the time is short, the last ones are not tried.
_FREE = (
    "jacobi:window=10",
    "recall:nodes=16:depth=14:width=3",
    "jacobi",
    "recall",
    "jacobi:window=6",
    "jacobi:window=32",
)
_DRAFTED = (
    "eagle_recall:nodes=58:window=0",
    "block:nodes=16:depth=16:width=3",
    "eagle_recall:nodes=16:depth=16:width=3:window=0",
    "block",
    "adt",
    "eagle2:nodes=16:depth=4:width=6",
    "eagle_recall:nodes=128:depth=20:width=7:window=0",
    "eagle2:nodes=6:depth=2:width=6",
)


def candidates(drafted: bool) -> tuple[str, ...]:
    """Return the methods to try; drafted: whether a drafter is there."""
    if not drafted:
        return _FREE
    return (_FREE[0], *_DRAFTED, *_FREE[1:])


@dataclass(frozen=True)
class TuneSettings(Settings):
    """Which methods are tried, on which prompts, and for how long."""

    group: ClassVar[str] = "Tuning"
    prompt: str | None = setting(
        None, "your prompts, as for generate_images", shown="configs/prompts/tiny_validation.txt"
    )
    minutes: float = setting(
        10.0, "minutes for the trials, without loading the model", low=0.01, high=10080
    )
    methods: str | None = setting(
        None,
        "methods to try, by commas: name[:flag=value...]",
        shown="lossless methods at several sizes",
    )
    output: str | None = setting(
        None, "file of the result", path=True, shown="<model_path>.tuned.yaml"
    )
    run: RunSettings = part(RunSettings)
    tried: tuple[MethodSettings, ...] = ()

    @property
    def bench(self) -> BenchmarkSettings:
        """The benchmark whose measurements decide."""
        return BenchmarkSettings(self.run, self.tried, repeats=1, warmup=0)
