"""Calibrate a drafter's path scores: how far to trust its probabilities at each tree level.

`python -m scripts.tools.calibrate --prompt FILE --temperature 1`

Fits the factors to images of some prompts, as `runs.calibration_fit` says. Writes calibration.json
next to the drafter, keeping the factors of other sampling distributions. Prints for each depth and
proposal the factor, how often the target's token is among the first 1, 4 and 10 candidates, and the
mean log-likelihood of that token before and after.
"""

import json
from itertools import product

from tqdm import tqdm

from configs.fields import refuse
from configs.sampling import SamplingSettings
from configs.schema import RunSettings
from drafters.calibrations import FILE, Calibrations, distribution_key
from drafters.training.agreement import PROPOSALS, factors
from models.files.folders import checkpoint_folder
from runs.calibration_fit import judged_images
from runs.drawing import image_jobs
from runs.prompts import prompt_items
from runs.session import open_session
from support.durable import encode_json, replace_file
from support.script import run_script


def calibrate(
    *,
    prompt: str = "configs/prompts/tiny_validation.txt",
    images: int = 16,
    model: str = "tiny",
    dtype: str = "fp32",
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
        model, dtype, model_path: the target, its number type and its folder, as of
            `generate_images`.
        drafter_path: the drafter's folder; the one in the target's folder if None.
        temperature, top_k, top_p, cfg: the sampling distribution.
        depths: tree levels with a factor of their own.
        seed: of the images.
    """
    settings = RunSettings(
        prompt=prompt, num_images=images, seed=seed, model=model, dtype=dtype,
        model_path=model_path, drafter_path=drafter_path,
        sampling=SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p, cfg=cfg),
    )  # fmt: skip
    session = open_session(settings)
    engine = session.open_engine()
    if not 1 <= depths < session.target.grid.tokens:
        refuse("depths", depths, f"1 to {session.target.grid.tokens - 1}")
    jobs = image_jobs(prompt_items(settings), settings.seed)
    steps = engine.generate(tqdm(jobs, unit="image"))
    made = (image for step in steps for image in step.finished)
    table = judged_images(session, engine.distribution, made, depths).table()
    for proposal, row in product(PROPOSALS, table):
        figures = {name: round(value, 4) for name, value in row[proposal].items()}
        print(json.dumps({"proposal": proposal, "depth": row["depth"], **figures}))
    folder = checkpoint_folder(settings.drafter_path, "--drafter_path")
    fitted = {distribution_key(engine.distribution): factors(table)}
    replace_file(folder / FILE, encode_json(Calibrations.read(folder).factors | fitted))


if __name__ == "__main__":
    run_script(calibrate)
