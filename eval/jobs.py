"""The engine's jobs of a run."""

from configs.schema import RunSettings
from decoding.flight import Job
from decoding.noise import image_seed
from eval.prompts import prompt_items


def image_jobs(settings: RunSettings) -> list[Job]:
    """One job per image, with the image's seed."""
    return [
        Job(item.id, item.prompt, image_seed(settings.seed, item.prompt, item.occurrence, item.sample))
        for item in prompt_items(settings)
    ]
