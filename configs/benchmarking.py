"""What the command benchmark is asked for."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from configs.fields import Settings, SettingsError, part, refuse, setting
from configs.methods import MethodSettings
from configs.schema import CLASSIFIER, RunSettings
from configs.sweep import Sweep


@dataclass(frozen=True)
class BenchmarkSettings(Settings):
    """Several methods on the same prompts and seeds; `run.with_method` returns one's settings."""

    group: ClassVar[str] = "Benchmark"
    run: RunSettings = part(RunSettings)
    methods: tuple[MethodSettings, ...] = ()
    repeats: int = setting(3, "measurements per method; the table shows medians", low=1, high=1000)
    warmup: int = setting(
        1, "images per method that are decoded first and not counted", low=0, high=1000
    )
    quality: bool = setting(
        False, "say how well images show their prompts, by the tiny model's classifier"
    )
    costs: str | None = setting(
        None,
        "with --sweep: count tokens only, and compute speed-ups from this file of "
        "scripts.tools.costs",
        shown="off",
    )
    output: str | None = None  # folder for what the benchmark writes, if --output_dir was given
    sweep: Sweep | None = None

    def settle(self) -> None:
        if self.costs is not None and self.sweep is None:
            refuse("costs", self.costs, "only with --sweep")
        if self.costs is not None and self.run.batch_size > 1:
            refuse("costs", self.costs, f"only with --batch_size 1, not {self.run.batch_size}")
        if self.quality and not (Path(self.run.model_path) / CLASSIFIER).is_file():
            refuse("quality", True, f"only with {CLASSIFIER} in --model_path, which ckpts/tiny has")
        if not self.methods or len(set(self.methods)) != len(self.methods):
            raise SettingsError("--methods: found none, or one twice; allowed: methods that differ")
