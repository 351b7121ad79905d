"""Compare our `ar` with the same loop over transformers' ChameleonModel, in speed and in tokens.

`python -m scripts.tools.compare_transformers`

Weights, prompts, seeds, noise and sampling distribution are the same. transformers uses its own
cache, masks and positions, with both guidance rows in one batch. The two are timed in turn; figures
are medians.
"""

import json
import time
from pathlib import Path
from statistics import median

import torch

from configs.methods import MethodSettings
from configs.schema import RunSettings
from eval.verify.oracles import load_chameleon
from runs.jobs import image_jobs
from runs.prompts import prompt_items
from runs.session import open_session
from scripts.tools.reference_loop import transformers_decode
from support.script import run_script


def compare(
    *,
    prompt: str = "configs/prompts/tiny_test.txt",
    images: int = 8,
    repeats: int = 3,
    dtype: str = "fp32",
) -> None:
    """Print tokens per second of both, their ratio, and how many images have the same tokens."""
    settings = RunSettings(
        prompt=prompt, num_images=images, dtype=dtype, method=MethodSettings(method="ar")
    )
    session = open_session(settings)
    folder = Path(settings.model_path)
    engine, model = session.open_engine(), load_chameleon(folder, session.target)[0]
    jobs = image_jobs(prompt_items(settings), settings.seed)

    def ours() -> list[torch.Tensor]:
        return [image.codes for step in engine.generate(jobs) for image in step.finished]

    def theirs() -> list[torch.Tensor]:
        return [
            transformers_decode(model, session.target, job, engine.distribution).cpu()
            for job in jobs
        ]

    seconds: dict[str, list[float]] = {"ours": [], "transformers": []}
    for repeat in range(repeats + 1):  # the first turn warms up
        for name, decode in (("ours", ours), ("transformers", theirs)):
            started = time.perf_counter()
            codes = decode()
            if repeat:
                seconds[name].append(time.perf_counter() - started)
            if name == "ours":
                expected = codes
    tokens = len(jobs) * session.target.grid.tokens
    figures = {
        "images": len(jobs),
        "same_tokens": sum(torch.equal(a, b) for a, b in zip(expected, codes, strict=True)),
        **{f"tokens_per_second_{name}": tokens / median(times) for name, times in seconds.items()},
        "ratio": median(t / o for o, t in zip(*seconds.values(), strict=True)),
    }
    print(json.dumps(figures))


if __name__ == "__main__":
    run_script(compare)
