"""Compare our methods with the same loop over transformers' ChameleonModel, in speed and in tokens.

`python -m scripts.tools.compare_transformers --methods ar,jacobi,graft`

Weights, prompts, seeds, noise and sampling distribution are the same. transformers uses its own
masks, positions and caches (the one that grows, the one of full length, and the latter compiled),
with both guidance rows in one batch. All take turns image by image.
"""

import json
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from configs.methods import MethodSettings
from configs.sampling import SamplingSettings
from configs.schema import RunSettings
from decoding.engine import Engine
from decoding.flight import Job
from eval.bench.machine import cpu_name
from eval.bench.speedup import median_interval
from eval.verify.oracles import load_chameleon
from runs.jobs import image_jobs
from runs.prompts import prompt_items
from runs.session import Session, open_session
from scripts.tools.reference_loop import transformers_decode
from support.script import run_script
from support.tables import Table

Loop = Callable[[Job], Tensor]  # the codes (tokens,) of an image
THEIRS = "transformers"
_COLUMNS = ("loop", "seconds per image", "tokens/s", f"speed / {THEIRS}", "same tokens")


def compare(
    *,
    prompt: str = "configs/prompts/tiny_test.txt",
    images: int = 8,
    repeats: int = 3,
    dtype: str = "fp32",
    temperature: float = 1.0,
    methods: str = "ar",
    compiled: bool = False,
) -> None:
    """Print a table, and its figures as JSON.

    Args:
        prompt: a file of prompts.
        images: how many of them.
        repeats: turns of every image; figures are medians.
        dtype: number type.
        temperature: of sampling.
        methods: ours, by commas; those that choose their trees by prices take a fixed size.
        compiled: whether transformers' network is also compiled, which takes minutes.
    """
    settings = RunSettings(
        prompt=prompt,
        num_images=images,
        dtype=dtype,
        sampling=SamplingSettings(temperature=temperature),
        method=MethodSettings(method="adt"),
    )
    session = open_session(settings)
    jobs = image_jobs(prompt_items(settings), settings.seed)
    loops = their_loops(session, compiled) | {
        name: our_loop(session, name) for name in methods.split(",")
    }
    seconds, codes = timed(loops, jobs, repeats)
    tokens = session.target.grid.tokens
    figures = [figures_of(name, seconds, codes, tokens) for name in loops]
    rows = tuple(tuple(figure["cells"]) for figure in figures)
    print(f"{machine(session)}; {len(jobs)} prompts, T = {temperature:g}, {repeats} turns")
    print(Table(_COLUMNS, rows).markdown())
    print(json.dumps([{k: v for k, v in figure.items() if k != "cells"} for figure in figures]))


def their_loops(session: Session, compiled: bool) -> dict[str, Loop]:
    """Return the loops over transformers' network by name, the one that people run first."""
    model = load_chameleon(Path(session.settings.model_path), session.target)[0]
    distribution = session.open_engine().distribution

    def loop(network: Callable, cache: str) -> Loop:
        return lambda job: transformers_decode(network, session.target, job, distribution, cache)

    found = {THEIRS: loop(model, "dynamic"), "static cache": loop(model, "static")}
    if compiled:
        found["static cache, compiled"] = loop(torch.compile(model), "static")
    return found


def our_loop(session: Session, name: str) -> Loop:
    """Return the loop of one of our methods."""
    method = MethodSettings(method=name)
    if method.size == "priced":
        method = replace(method, size="fixed")
    return partial(_decode, session.open_engine(method))


def _decode(engine: Engine, job: Job) -> Tensor:
    return next(image.codes for step in engine.generate([job]) for image in step.finished)


def timed(
    loops: dict[str, Loop], jobs: list[Job], repeats: int
) -> tuple[dict[str, np.ndarray], dict[str, list[Tensor]]]:
    """Return seconds (repeats, images) and codes by loop; a first image warms up."""
    seconds = {name: np.zeros((repeats, len(jobs))) for name in loops}
    codes: dict[str, list[Tensor]] = {name: [] for name in loops}
    for decode in loops.values():
        decode(jobs[0])
    for repeat, (number, job) in product(range(repeats), enumerate(jobs)):
        for name, decode in loops.items():
            started = time.perf_counter()
            found = decode(job)
            seconds[name][repeat, number] = time.perf_counter() - started
            if repeat == 0:
                codes[name].append(found.cpu())
    return seconds, codes


def figures_of(
    name: str, seconds: dict[str, np.ndarray], codes: dict[str, list[Tensor]], tokens: int
) -> dict[str, object]:
    """Return a loop's figures and its row; ratios are medians over images, with an interval."""
    own, theirs = (np.median(seconds[each], axis=0) for each in (name, THEIRS))
    ratio = median_interval((theirs / own).tolist())
    pairs = zip(codes[name], codes[THEIRS], strict=True)
    same, mean = sum(torch.equal(a, b) for a, b in pairs), float(own.mean())
    interval = "" if ratio.low is None else f" ({ratio.low:.2f}–{ratio.high:.2f})"
    cells = [name, f"{mean:.2f}", f"{tokens / mean:.0f}", f"{ratio.value:.2f}{interval}"]
    return {
        "loop": name,
        "seconds_per_image": mean,
        "ratio": ratio.value,
        "ratio_low": ratio.low,
        "ratio_high": ratio.high,
        "same_tokens": same,
        "cells": [*cells, f"{same}/{len(own)}"],
    }


def machine(session: Session) -> str:
    """Return the CPU or GPU, threads, number type and date in words."""
    hardware = session.hardware()
    device = hardware["gpu"] or cpu_name()
    return f"{device}, {hardware['threads']} threads, {hardware['dtype']}, {date.today()}"


if __name__ == "__main__":
    run_script(compare)
