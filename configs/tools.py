"""Settings of the commands that look at a checkpoint: `inspect` and `vq_distances`."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from configs.fields import check_fields, setting, settings_fields
from configs.methods import SamplingSettings
from configs.schema import RunSettings
from configs.targets import MODELS, ROOT, parts_beside, refuse_foreign_flags


def like(owner: type, name: str) -> Any:
    """A field with the default, the limits and the help of another command's flag of this name."""
    shared = settings_fields(owner)[name]
    return field(default=shared.default, metadata=shared.metadata)


def _settle_paths(settings: "InspectSettings | DistanceSettings") -> None:
    """Refuse paths that the model does not have; write out `~` and the defaults of the others."""
    refuse_foreign_flags(settings)
    for name in settings_fields(settings):
        if name.endswith("_path") and getattr(settings, name) is not None:
            object.__setattr__(settings, name, os.path.expanduser(getattr(settings, name)))
    if settings.model_path is None:
        object.__setattr__(settings, "model_path", str(ROOT / MODELS[settings.model]))
    for name, place in parts_beside(settings.model, settings.model_path).items():
        if getattr(settings, name, "") is None:
            object.__setattr__(settings, name, place)


@dataclass(frozen=True)
class InspectSettings:
    """What to look at, and the run whose memory is computed."""

    group: ClassVar[str] = "Checkpoint"
    model: str = like(RunSettings, "model")
    model_path: str | None = like(RunSettings, "model_path")
    tokenizer_path: str | None = like(RunSettings, "tokenizer_path")
    text_encoder_path: str | None = like(RunSettings, "text_encoder_path")
    vq_path: str | None = like(RunSettings, "vq_path")
    drafter_path: str | None = setting(
        None, "the drafter's folder, or its owner/name", shown="<model_path>/drafter if it is there"
    )
    dtype: str = like(RunSettings, "dtype")
    batch_size: int = like(RunSettings, "batch_size")
    cfg: float = like(SamplingSettings, "cfg")
    json: bool = setting(False, "print one JSON document instead of the table")

    def __post_init__(self) -> None:
        check_fields(self)
        _settle_paths(self)
        if self.drafter_path is None and (Path(self.model_path) / "drafter").is_dir():
            object.__setattr__(self, "drafter_path", str(Path(self.model_path) / "drafter"))

    @property
    def guidance(self) -> int:
        """Rows per image: 2 with guidance, 1 without."""
        return 1 if self.cfg == 1 else 2


@dataclass(frozen=True)
class DistanceSettings:
    """Whose codebook, and how wide a table."""

    group: ClassVar[str] = "Table"
    model: str = like(RunSettings, "model")
    model_path: str | None = like(RunSettings, "model_path")
    tokenizer_path: str | None = like(RunSettings, "tokenizer_path")
    vq_path: str | None = like(RunSettings, "vq_path")
    neighbours: int | None = setting(
        None, "nearest codes per code", low=1, high=2**16 - 1, shown="all others"
    )

    def __post_init__(self) -> None:
        check_fields(self)
        _settle_paths(self)
