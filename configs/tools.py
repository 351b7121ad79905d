"""Settings of the commands that look at a checkpoint: `inspect`, `verify`, `vq_distances`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from configs.fields import build, part, setting, settings_dict
from configs.methods import MethodSettings
from configs.model import (
    BatchSettings,
    CodecSettings,
    DrafterSettings,
    EngineSettings,
    ModelSettings,
    PlacementSettings,
    TargetSettings,
)
from configs.sampling import GuidanceSettings, SamplingSettings


@dataclass(frozen=True)
class InspectSettings(BatchSettings, GuidanceSettings, DrafterSettings, TargetSettings):
    """What to look at, and the run whose memory is computed."""

    group: ClassVar[str] = "Report"
    json: bool = setting(False, "print one JSON document instead of the table")

    def settle(self) -> None:
        drafter = Path(self.model_path) / "drafter"
        self.fill(drafter_path=str(drafter) if drafter.is_dir() else None)


@dataclass(frozen=True)
class VerifySettings(PlacementSettings, DrafterSettings, ModelSettings):
    """What to run, how it samples, and the set of images whose time is estimated."""

    group: ClassVar[str] = "Report"
    sampling: SamplingSettings = part(SamplingSettings)
    num_images: int = setting(5000, "images in the set whose hours are estimated", low=1)
    json: bool = setting(False, "print one JSON document instead of the table")

    def settle(self) -> None:
        drafter = Path(self.model_path) / "drafter"
        self.fill(drafter_path=str(drafter) if drafter.is_dir() else None)

    @property
    def engine(self) -> EngineSettings:
        """What loads the model: with its drafter, if there is one."""
        method = MethodSettings("ar" if self.drafter_path is None else "adt")
        values = {name: value for name, value in settings_dict(self).items() if value is not None}
        return build(EngineSettings, values, method=method)


@dataclass(frozen=True)
class DistanceSettings(CodecSettings):
    """Whose codebook, and how wide a table."""

    group: ClassVar[str] = "Table"
    neighbours: int | None = setting(
        None, "nearest codes per code", low=1, high=2**16 - 1, shown="all others"
    )
