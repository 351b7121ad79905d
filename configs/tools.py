"""Settings of the commands that look at a checkpoint: `inspect` and `vq_distances`."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from configs.fields import setting
from configs.model import BatchSettings, CodecSettings, DrafterSettings, ModelSettings
from configs.sampling import GuidanceSettings


@dataclass(frozen=True)
class InspectSettings(BatchSettings, GuidanceSettings, DrafterSettings, ModelSettings):
    """What to look at, and the run whose memory is computed."""

    group: ClassVar[str] = "Report"
    json: bool = setting(False, "print one JSON document instead of the table")

    def settle(self) -> None:
        drafter = Path(self.model_path) / "drafter"
        self.fill(drafter_path=str(drafter) if drafter.is_dir() else None)


@dataclass(frozen=True)
class DistanceSettings(CodecSettings):
    """Whose codebook, and how wide a table."""

    group: ClassVar[str] = "Table"
    neighbours: int | None = setting(
        None, "nearest codes per code", low=1, high=2**16 - 1, shown="all others"
    )
