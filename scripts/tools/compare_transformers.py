"""Compare our methods with plain decoding over transformers' ChameleonModel, in speed and tokens.

`python -m scripts.tools.compare_transformers --methods ar,jacobi`

Weights, prompts, seeds, noise and sampling distribution are the same. transformers uses its own
masks, positions and growing cache, with both guidance rows in one batch. All loops take turns image
by image.
"""

import time
from functools import partial
from statistics import mean

import torch
from torch import Tensor
from transformers import ChameleonModel, DynamicCache
from transformers.utils import logging

from configs.methods import MethodSettings
from configs.model import SamplingSettings
from configs.recipes import listed_method
from configs.schema import RunSettings
from decoding.engine import Engine
from decoding.images import Job
from decoding.noise import gumbel
from decoding.sampling import SamplingDistribution, choose
from eval.metrics.intervals import median_interval
from models.target import TargetModel
from runs.drawing import image_jobs
from runs.prompts import prompt_items
from runs.session import open_session
from support.script import run_script
from support.tables import Table

THEIRS = "transformers"


@torch.inference_mode()
def transformers_decode(
    model: ChameleonModel, target: TargetModel, job: Job, distribution: SamplingDistribution
) -> Tensor:
    """Return the codes (tokens,) of one image, made with the same noise as in our engine.

    model: transformers' network with the target's weights, dtype and device; the target gives the
    prompt's rows, and the logits of image codes for features.
    """
    prompt, tokens = target.prompt(job.prompt, distribution.guidance), target.grid.tokens
    length = prompt.ids.shape[1]
    slot = torch.arange(length + tokens, device=prompt.ids.device)
    positions = (slot - prompt.starts[:, None]).clamp(min=0)
    visible = (slot >= prompt.starts[:, None]).long()  # all but the padding on the left
    noise = torch.zeros(tokens, 1)  # T = 0 takes the likeliest code
    if not distribution.greedy:
        # The type that our engine's logits have when noise is added (decoding/sampling.py).
        precise = torch.float64 if target.dtype == torch.float64 else torch.float32
        noise = gumbel(job.seed, "target", slot[:tokens], target.vocab.size).to(precise)
    noise = noise.to(slot.device)
    ids = torch.cat([prompt.ids, prompt.ids.new_zeros(distribution.guidance, tokens)], 1)
    cache = DynamicCache(config=model.config)
    for i in range(tokens):
        stop = length + i
        start = stop - 1 if i else 0
        features = model(
            input_ids=ids[:, start:stop],
            position_ids=positions[:, start:stop],
            attention_mask=visible[:, :stop],
            past_key_values=cache,
            use_cache=True,
        ).last_hidden_state
        code = choose(distribution(target.score(features[:, -1:]))[0, 0], noise[i])
        ids[:, stop] = code + target.vocab.first_id
    return ids[0, length:] - target.vocab.first_id


def compare(
    *,
    prompt: str = "configs/prompts/tiny_test.txt",
    images: int = 8,
    dtype: str = "fp32",
    temperature: float = 1.0,
    methods: str = "ar",
) -> None:
    """Print a table of loops; ratios are medians over images, with 95 % intervals.

    Args:
        prompt: a file of prompts.
        images: how many of them.
        dtype: number type.
        temperature: of sampling.
        methods: ours, as in `benchmark --methods`.
    """
    settings = RunSettings.of(
        prompt=prompt, num_images=images, dtype=dtype, method=MethodSettings(method="adt"),
        sampling=SamplingSettings(temperature=temperature),
    )  # fmt: skip
    session = open_session(settings.engine)
    jobs = image_jobs(prompt_items(settings.prompts), settings.prompts.seed)
    target = session.target
    logging.set_verbosity_error()  # or it lists every weight of the image encoder as missing
    model, report = ChameleonModel.from_pretrained(
        settings.engine.model_path, dtype=target.dtype, output_loading_info=True
    )
    # no loop here reads the image encoder, which is random
    assert all(key.startswith("vqmodel.") for key in report["missing_keys"]), report
    model = model.to(target.device)
    rule = session.open_engine().distribution
    loops = {THEIRS: lambda job: transformers_decode(model, target, job, rule)}
    for name in methods.split(","):
        loops[name] = partial(_decode, session.open_engine(listed_method(name, {})))
    seconds: dict[str, list[float]] = {name: [] for name in loops}
    codes: dict[str, list[Tensor]] = {name: [] for name in loops}
    for number, job in enumerate([jobs[0], *jobs]):
        for name, decode in loops.items():
            started = time.perf_counter()
            image = decode(job).cpu()
            if number:  # the first one warms up
                seconds[name].append(time.perf_counter() - started)
                codes[name].append(image)
    rows = []
    for name in loops:
        per_image, times = mean(seconds[name]), zip(seconds[THEIRS], seconds[name], strict=True)
        same = sum(map(torch.equal, codes[name], codes[THEIRS]))
        rows.append({
            "loop": name,
            "seconds per image": f"{per_image:.2f}",
            "tokens/s": f"{target.grid.tokens / per_image:.0f}",
            f"speed / {THEIRS}": median_interval([a / b for a, b in times]).words(),
            "same tokens": f"{same}/{len(jobs)}",
        })  # fmt: skip
    hardware = session.hardware()
    print(f"{hardware['gpu'] or hardware['processor']}, {hardware['threads']} threads, {dtype}")
    print(Table.of(rows).markdown(), end="")


def _decode(engine: Engine, job: Job) -> Tensor:
    return next(image.codes for step in engine.generate([job]) for image in step.finished)


if __name__ == "__main__":
    run_script(compare)
