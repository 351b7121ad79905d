"""Fit the path scores of a drafter to its target: `python -m scripts.calibrate --prompt FILE --temperature 1`.

The target decodes some prompts; the drafter then predicts every position of these images at every depth that a tree
may have, from the features that it would have there. Writes calibration.json beside the drafter, other laws kept, and
prints per depth and proposal the factor, how often the first 1, 4 and 10 candidates hold the target's token, and the
mean log-likelihood of that token before and after.
"""

import json

import torch
from torch import Tensor
from tqdm import tqdm

from configs.fields import refuse
from configs.methods import SamplingSettings
from configs.schema import RunSettings
from decoding.calibration import FILE, Calibrations, fit_factor, law_key
from decoding.engine import Engine
from decoding.flight import FinishedImage
from decoding.noise import gumbel
from drafters.losses import Row, unroll
from eval.durable import replace_file
from eval.jobs import image_jobs
from eval.prompts import prompt_items
from eval.script import run_script
from eval.session import Session, open_session
from models.base import Context
from models.folders import checkpoint_folder


def target_rows(session: Session, image: FinishedImage, guidance: int) -> list[Row]:
    """The rows of a decoded image with the target's features."""
    target, prompt = session.target, session.target.prompt(image.job.prompt, guidance)
    rows = []
    for ids, start in zip(prompt.ids, prompt.starts.tolist(), strict=True):
        length = len(ids) - start
        ids = torch.cat([ids[start:], image.codes[:-1].to(ids) + target.vocab.first_id])[None]
        rows.append(
            Row(ids, target.features(ids, Context(torch.arange(ids.shape[1], device=ids.device)[None])), length)
        )
    return rows


def drafted_laws(session: Session, engine: Engine, image: FinishedImage, depths: int) -> list[Tensor]:
    """log q (tokens - depth, vocab) per depth, of the tokens from number `depth` on: earlier ones have no such slot."""
    unrolled = zip(*(unroll(session.head, row, depths) for row in target_rows(session, image, engine.law.guidance)),
                   strict=True)  # fmt: skip
    laws = [engine.law(session.target.score(torch.cat(features)))[0] for features in unrolled]
    return [law[depth - 1 :] for depth, law in enumerate(laws, 1)]


def noise_behind(image: FinishedImage, decided: int, like: Tensor) -> Tensor:
    """The image's noise (n, vocab) at its last positions; the first of them has `decided` + 1 tokens before it."""
    positions = torch.arange(decided + 1, len(image.codes), device=like.device)
    return gumbel(image.job.seed, "target", positions, like.shape[-1]).to(like.dtype)


def figures(values: Tensor, choices: Tensor) -> dict[str, float]:
    """Factor, hit rates, share of choices that the drafter's law cuts, and likelihoods of the others, for values
    (n, vocab) and the target's choices (n,)."""
    hit = values.topk(10, -1).indices == choices[:, None]
    rates = {f"hit_{k}": hit[:, :k].any(-1).float().mean().item() for k in (1, 4, 10)}
    possible = values.gather(1, choices[:, None])[:, 0] > -torch.inf  # the drafter's top-k or top-p cuts the others
    values, choices = values[possible], choices[possible]
    factor = fit_factor(values, choices)
    likelihood = [(a * values).log_softmax(-1).gather(1, choices[:, None]).mean().item() for a in (1.0, factor)]
    return {
        "factor": factor,
        **rates,
        "cut": 1 - possible.float().mean().item(),
        "likelihood": likelihood[0],
        "calibrated_likelihood": likelihood[1],
    }


def fitted(proposal: str, levels: list[list[Tensor]], choices: list[list[Tensor]]) -> list[float]:
    """The factor of each level of a proposal, from the images' values (n, vocab) and choices (n,); prints the rest."""
    factors = []
    for depth, (values, chosen) in enumerate(zip(levels, choices, strict=True), 1):
        row = figures(torch.cat(values), torch.cat(chosen))
        factors.append(float(f"{row['factor']:.4g}"))
        shown = {name: round(value, 4) for name, value in row.items()}
        print(json.dumps({"proposal": proposal, "depth": depth, **shown}, allow_nan=False))
    return factors


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
    """Fit and write the factors of one sampling law.

    Args:
        prompt: file of held-out prompts, one per line.
        images: prompts used; -1 for all. Their laws are held in memory: depths x tokens x codes x 8 bytes each.
        model_path: the target's folder; the shipped model if None.
        drafter_path: the drafter's folder; the one beside the target if None.
        temperature, top_k, top_p, cfg: the sampling law.
        depths: tree levels with a factor of their own.
        seed: of the images.
    """
    law = SamplingSettings(temperature=temperature, top_k=top_k, top_p=top_p, cfg=cfg)
    settings = RunSettings(
        prompt=prompt,
        num_images=images,
        seed=seed,
        sampling=law,
        model_path=model_path,
        drafter_path=drafter_path,
    )
    session = open_session(settings)
    engine = session.engine
    if not 1 <= depths < session.target.grid.tokens:
        refuse("depths", depths, f"1 to {session.target.grid.tokens - 1}")
    jobs = image_jobs(prompt_items(settings), settings.seed)
    gathered: dict[str, list[list[Tensor]]] = {name: [[] for _ in range(depths)] for name in ("topk", "coupled")}
    choices: list[list[Tensor]] = [[] for _ in range(depths)]
    for step in engine.generate(tqdm(jobs, unit="image")):
        for image in step.finished:
            tokens = image.codes.to(session.target.device)
            for depth, log_q in enumerate(drafted_laws(session, engine, image, depths)):
                gathered["topk"][depth].append(log_q)
                gathered["coupled"][depth].append(log_q + noise_behind(image, depth, log_q) * (temperature > 0))
                choices[depth].append(tokens[depth + 1 :])
    found = {name: fitted(name, levels, choices) for name, levels in gathered.items()}
    folder = checkpoint_folder(settings.drafter_path, "--drafter_path")
    known = Calibrations.read(folder).factors | {law_key(engine.law): found}
    replace_file(folder / FILE, (json.dumps(known, indent=1) + "\n").encode())


if __name__ == "__main__":
    run_script(calibrate)
