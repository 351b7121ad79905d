"""How `generate_images --learn` trains a drafter."""

from dataclasses import fields
from pathlib import Path

from configs.model import DeviceSettings, ModelSettings
from configs.schema import RunSettings
from configs.training import TrainSettings

IMAGES = 8  # of an update
_LEVELS = 2  # of the draft tree, in every fourth update
_FIRST_RATE, _LATER_RATE = 2e-3, 3e-4  # learning rates, of a new head and of a trained one


def lesson_settings(settings: RunSettings, start: Path | None, precision: str) -> TrainSettings:
    """Return how the drafter of a run is trained.

    start: the folder of its first weights. precision: of matrix products.
    """
    shared = (*fields(ModelSettings), *fields(DeviceSettings))
    return TrainSettings(
        **{f.name: getattr(settings, f.name) for f in shared},
        tokens="those that are drawn",
        output_dir=settings.output_dir,
        start_from=None if start is None else str(start),
        batch_size=IMAGES,
        optimizer="muon",
        lr=_FIRST_RATE if start is None else _LATER_RATE,
        ema=0.98,
        precision=precision,
        depths=_LEVELS,
        guidance_aware=start is not None,  # at first one row says as much as two
        ce_weight=0.5,
        agreement_weight=2.0,
        agreement="overlap",  # sorts nothing
        sampling=settings.sampling,
    )
