"""Settings of the commands that look at a checkpoint: `inspect`, `verify`, `vq_distances`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from configs.fields import Settings, build, part, setting, settings_dict
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
    speed: bool = setting(
        False,
        "load the model too, time rounds of 1 to 32 images at once, as memory allows, and say how "
        "many to decode together; takes minutes",
    )

    def settle(self) -> None:
        drafter = Path(self.model_path) / "drafter"
        self.fill(drafter_path=str(drafter) if drafter.is_dir() else None)

    @property
    def engine(self) -> EngineSettings:
        """What loads the model: with its drafter, if there is one."""
        return engine_of(self, "graft")


def engine_of(settings: Settings, drafted: str) -> EngineSettings:
    """Return what loads a model for its method `drafted`, or for `ar` if it has no drafter."""
    method = MethodSettings("ar" if settings.drafter_path is None else drafted)
    values = {name: value for name, value in settings_dict(settings).items() if value is not None}
    return build(EngineSettings, values, method=method)


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
        return engine_of(self, "adt")


@dataclass(frozen=True)
class DistanceSettings(CodecSettings):
    """Whose codebook, and how wide a table."""

    group: ClassVar[str] = "Table"
    neighbours: int | None = setting(
        None, "nearest codes per code", low=1, high=2**16 - 1, shown="all others"
    )
