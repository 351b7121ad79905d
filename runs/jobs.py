"""From prompts to the engine's jobs."""

from collections.abc import Iterable

from decoding.images import Job
from decoding.noise import image_seed
from runs.prompts import PromptItem


def image_jobs(items: Iterable[PromptItem], seed: int) -> list[Job]:
    """Return one job per image, with the image's own seed. seed: the run's base seed."""
    return [
        Job(item.id, item.prompt, image_seed(seed, item.prompt, item.occurrence, item.sample))
        for item in items
    ]
