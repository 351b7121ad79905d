"""Calibrate a drafter's path scores: how far to trust its probabilities at each tree level.

`python -m scripts.tools.calibrate --prompt FILE --temperature 1`

The target decodes some prompts. The drafter then predicts every position of these images at every
depth that a tree may have, from the features that it would have there. Writes calibration.json next
to the drafter, keeping the factors of other sampling distributions. Prints for each depth and
proposal the factor, how often the target's token is among the first 1, 4 and 10 candidates, and the
mean log-likelihood of that token before and after.
"""

import json
from itertools import product

import torch
from torch import Tensor
from tqdm import tqdm

from configs.fields import refuse
from configs.sampling import SamplingSettings
from configs.schema import RunSettings
from decoding.images import FinishedImage
from decoding.noise import gumbel
from decoding.sampling import SamplingDistribution
from drafters.calibrations import FILE, Calibrations, distribution_key
from drafters.training.agreement import PROPOSALS, Gathered, draft_distributions, factors
from drafters.training.rows import target_rows
from models.files.folders import checkpoint_folder
from runs.drawing import image_jobs
from runs.prompts import prompt_items
from runs.session import Session, open_session
from support.durable import encode_json, replace_file
from support.script import run_script


def distributions_of(
    session: Session, distribution: SamplingDistribution, image: FinishedImage, depths: int
) -> list[Tensor]:
    """Return log q (tokens - k, vocab) of a decoded image for each tree level k."""
    prompt = session.target.prompt(image.job.prompt, distribution.guidance)
    head, codes = session.drafter.network, image.codes[None].to(session.target.device)
    rows = target_rows(session.target, prompt, codes, head.spec.target_layers)
    levels = draft_distributions(session.target, head, rows, distribution, depths)
    return [log_q[0] for log_q in levels]


def noise_of(image: FinishedImage, like: Tensor) -> Tensor:
    """Return the image's noise (tokens - 1, vocab) from its second token on."""
    positions = torch.arange(1, len(image.codes), device=like.device)
    return gumbel(image.job.seed, "target", positions, like.shape[-1]).to(like.dtype)


@torch.inference_mode()
def calibrate(
    *,
    prompt: str = "configs/prompts/tiny_validation.txt",
    images: int = 16,
    model_path: str | None = None,
    drafter_path: str | None = None,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    cfg: float = 3.0,
    depths: int = 8,
    seed: int = 0,
) -> None:
    """Fit and write the factors for one sampling distribution.

    Args:
        prompt: file of held-out prompts, one per line.
        images: how many prompts are used; -1 for all. Each takes depths x tokens x codes x 8 bytes
            of memory.
        model_path: the target's folder; the included model if None.
        drafter_path: the drafter's folder; the one in the target's folder if None.
        temperature, top_k, top_p, cfg: the sampling distribution.
        depths: tree levels with a factor of their own.
        seed: of the images.
    """
    settings = RunSettings(
        prompt=prompt, num_images=images, seed=seed, model_path=model_path,
        drafter_path=drafter_path,
        sampling=SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p, cfg=cfg),
    )  # fmt: skip
    session = open_session(settings)
    engine = session.open_engine()
    if not 1 <= depths < session.target.grid.tokens:
        refuse("depths", depths, f"1 to {session.target.grid.tokens - 1}")
    jobs = image_jobs(prompt_items(settings), settings.seed)
    gathered = Gathered()
    for step in engine.generate(tqdm(jobs, unit="image")):
        for image in step.finished:
            distributions = distributions_of(session, engine.distribution, image, depths)
            # at temperature 0 the target chooses without noise
            noise = noise_of(image, distributions[0]) * (temperature > 0)
            gathered.add_image(distributions, image.codes[1:].to(noise.device), noise)
    table = gathered.table()
    for proposal, row in product(PROPOSALS, table):
        figures = {name: round(value, 4) for name, value in row[proposal].items()}
        print(json.dumps({"proposal": proposal, "depth": row["depth"], **figures}))
    folder = checkpoint_folder(settings.drafter_path, "--drafter_path")
    fitted = {distribution_key(engine.distribution): factors(table)}
    replace_file(folder / FILE, encode_json(Calibrations.read(folder).factors | fitted))


if __name__ == "__main__":
    run_script(calibrate)
