"""Images and tokens per second by batch size, of `ar`, `jacobi` and `graft`, in one run.

`python -m scripts.tools.throughput --output work/throughput.json`
"""

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import date
from itertools import cycle, islice
from pathlib import Path

from configs.fields import refuse
from configs.methods import MethodSettings
from configs.schema import RunSettings
from eval.bench.machine import cpu_name
from runs.jobs import image_jobs
from runs.prompts import prompt_items
from runs.session import open_session
from runs.throughput import BATCHES, NAMES, Speed, best, flags, measure_speed, methods_by_batch
from support.durable import replace_file
from support.script import run_script
from support.tables import Table


def throughput(
    *,
    prompt: str = "configs/prompts/tiny_test.txt",
    batches: str = ",".join(map(str, BATCHES)),
    least: int = 16,
    model_path: str | None = None,
    dtype: str = "fp32",
    output: str | None = None,
) -> None:
    """Measure every method at every batch size, and print a table.

    Args:
        prompt: file of prompts; T = 1, guidance scale 3, seed 9.
        batches: images at once, by commas.
        least: images of a measurement, and at least twice the batch.
        model_path: the target's folder; the shipped model if None.
        dtype: fp32, fp64 or bf16.
        output: JSON file of all figures; none if None.
    """
    sizes = _sizes(batches)
    settings = RunSettings(
        prompt=prompt,
        model_path=model_path,
        dtype=dtype,
        seed=9,
        method=MethodSettings(method="graft"),
    )
    session = open_session(settings)
    jobs = image_jobs(prompt_items(settings), settings.seed)
    found = []
    for batch, method in methods_by_batch(session, sizes):
        count = max(least, 2 * batch)
        engine = session.open_engine(method, images=batch)
        found.append(measure_speed(engine, list(islice(cycle(jobs), count)), method))
        print(said(found[-1]), file=sys.stderr, flush=True)
    print(f"{cpu_name()}, {session.hardware()['threads']} threads, {dtype}, {date.today()}\n")
    print(table(found) + summary(found))
    if output is not None:
        Path(output).parent.mkdir(parents=True, exist_ok=True)
        replace_file(Path(output), (json.dumps([figures(each) for each in found]) + "\n").encode())


def _sizes(text: str | Sequence[int] | int) -> list[int]:
    """Return the batch sizes of a flag."""
    entries = str(text).strip("()[]").split(",")
    if not all(entry.strip().isdigit() and int(entry) for entry in entries if entry.strip()):
        refuse("batches", text, "whole numbers from 1, by commas")
    return [int(entry) for entry in entries if entry.strip()]


def figures(speed: Speed) -> dict[str, object]:
    """Return what was measured, by name."""
    rates = ("tokens_per_second", "images_per_second", "tau")
    return asdict(speed) | {name: getattr(speed, name) for name in rates}


def said(speed: Speed) -> str:
    """Return a line about one measurement."""
    rates = f"{speed.images_per_second:.3g} images/s, {speed.tokens_per_second:.4g} tokens/s"
    return f"{flags(speed)}: {rates}, tau {speed.tau:.2f}, {speed.nodes:.1f} nodes"


def table(speeds: Sequence[Speed]) -> str:
    """Return the table in Markdown: a row per batch size, three columns per method."""
    names = [name for name in NAMES if any(s.method.method == name for s in speeds)]
    columns = ["images at once"]
    for name in names:
        columns += [f"`{name}` images/s", "tokens/s", "tau" if name == "ar" else "tau, nodes"]
    rows = []
    for batch in dict.fromkeys(speed.batch for speed in speeds):
        row = [str(batch)]
        for name in names:
            (own,) = (s for s in speeds if s.batch == batch and s.method.method == name)
            tau = f"{own.tau:.2f}" + ("" if name == "ar" else f", {own.nodes:.1f}")
            row += [f"{own.images_per_second:.2f}", f"{own.tokens_per_second:.0f}", tau]
        rows.append(tuple(row))
    return Table(tuple(columns), tuple(rows)).markdown()


def summary(speeds: Sequence[Speed]) -> str:
    """Return the fastest setting, in all and per method, in words."""
    fastest = best(speeds)
    lines = [f"most tokens per second: `{flags(fastest)}`, {fastest.tokens_per_second:.0f}"]
    alone = best([speed for speed in speeds if speed.batch == min(s.batch for s in speeds)])
    ratio = fastest.tokens_per_second / alone.tokens_per_second
    lines.append(f"{ratio:.2f} times those of `{flags(alone)}`")
    return f"\n{'; '.join(lines)}\n"


if __name__ == "__main__":
    run_script(throughput)
