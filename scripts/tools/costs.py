"""Measure what rounds cost on this machine, for `benchmark --sweep --costs`.

`python -m scripts.tools.costs --output work/costs.json`
"""

import json
from dataclasses import asdict
from pathlib import Path

from configs.fields import refuse
from configs.methods import MethodSettings
from configs.schema import RunSettings
from runs.cost_rounds import measure_costs
from runs.jobs import image_jobs
from runs.prompts import prompt_items
from runs.session import open_session
from support.durable import replace_file
from support.script import run_script


def costs(
    *,
    output: str = "work/costs.json",
    prompt: str = "configs/prompts/tiny_validation.txt",
    images: int = 1,
    repeats: int = 3,
    model_path: str | None = None,
    dtype: str = "fp32",
) -> None:
    """Measure and write the costs of rounds.

    Args:
        output: JSON file.
        prompt: file of prompts; the first rounds of their images are timed at T = 1, guidance scale
            3.
        images: how many of them, in one batch.
        repeats: how often each is measured.
        model_path: the target's folder; the shipped model if None.
        dtype: fp32, fp64 or bf16.
    """
    if not isinstance(repeats, int) or repeats < 1:
        refuse("repeats", repeats, "a whole number from 1")
    settings = RunSettings(
        prompt=prompt,
        num_images=images,
        batch_size=images,
        model_path=model_path,
        dtype=dtype,
        method=MethodSettings(method="eagle2"),
    )
    session = open_session(settings)
    jobs = image_jobs(prompt_items(settings), settings.seed)
    found = measure_costs(session.open_engine, jobs, repeats, session.drafter.network)
    text = json.dumps({"costs": asdict(found), "hardware": session.hardware()})
    print(text, flush=True)
    Path(output).parent.mkdir(parents=True, exist_ok=True)
    replace_file(Path(output), (text + "\n").encode())


if __name__ == "__main__":
    run_script(costs)
