"""Draft-tree settings on validation prompts: `python -m scripts.sweep --method adt --grid "nodes=8|12,adt_d_max=4|6"`.

The tokens decided per round, the target forwards, the draft levels and the nodes of a method are the same on every
machine and under any load; their cost is not. So a cell of the grid stores the counts, and `--costs` (milliseconds of a
target forward of one token, of a further node, and of a draft level) turns them into a predicted speed-up. One JSON
line per cell; the same command continues where it stopped.
"""

import json
from itertools import product
from pathlib import Path

import fire

from configs.cli import listed_method
from configs.methods import MethodSettings, SamplingSettings
from configs.schema import RunSettings
from decoding.flight import Job
from decoding.noise import image_seed
from eval.benchmark import measure
from eval.durable import append_lines, read_lines
from eval.prompts import read_prompts
from eval.session import Session, open_session


def cells(method: str, grid: str) -> list[str]:
    """Every combination of the grid's values as an entry of `benchmark --methods`."""
    axes = [axis.split("=") for axis in grid.split(",") if axis]
    choices = product(*([f"{name}={value}" for value in values.split("|")] for name, values in axes))
    return [":".join((method, *chosen)) for chosen in choices]


def counts(session: Session, method: MethodSettings, jobs: list[Job]) -> dict[str, float]:
    """Rounds, draft levels, nodes and tokens per image of a method."""
    run = measure(session.engine_for(method), jobs)
    rounds = sum(image.target_forwards - 1 for image in run.images)
    return {
        "images": len(jobs),
        "tau": run.tau,
        "rounds": rounds / len(jobs),
        "levels": run.calls.get("draft_forward", 0) / len(jobs),
        "nodes": run.mean("mean_nodes"),
        "depth": run.mean("mean_depth"),
        "tokens": len(run.images[0].codes) - 1,
    }


def predicted(row: dict[str, float], token: float, node: float, level: float) -> float:
    """Speed-up over one target forward of `token` ms per token, at so many ms per further node and draft level."""
    spent = row["rounds"] * (token + node * row["nodes"]) + row["levels"] * level
    return row["tokens"] * token / spent


def sweep(
    *,
    method: str = "adt",
    grid: str = "nodes=8|12|16",
    prompt: str = "configs/prompts/tiny_validation.txt",
    images: int = 8,
    temperature: float = 1.0,
    model_path: str | None = None,
    costs: str = "13,0.5,2.2",
    report: str = "work/sweep.jsonl",
    part: str = "0/1",
) -> None:
    """Count every cell of a grid and print the cells by predicted speed-up, best last.

    Args:
        method: entry of `benchmark --methods` that all cells share, such as adt:proposal=topk.
        grid: axes by commas, values by bars: nodes=8|12,adt_d_max=4|6.
        prompt: file of validation prompts.
        images: how many of them.
        temperature: of the sampling law; guidance 3.
        model_path: the target's folder; the shipped model if None.
        costs: milliseconds of a target forward of one token, of a further node, of a draft level.
        report: JSON lines of all cells ever counted.
        part: i/n counts every n-th cell only, from cell i on.
    """
    law = SamplingSettings(temperature=temperature)
    settings = RunSettings(prompt=prompt, sampling=law, model_path=model_path, method=MethodSettings(method="adt"))
    session, path = open_session(settings), Path(report)
    jobs = [Job(str(i), text, image_seed(0, text)) for i, text in enumerate(read_prompts(settings)[:images])]
    path.parent.mkdir(parents=True, exist_ok=True)
    first, step = map(int, part.split("/"))
    wanted = cells(method, grid)
    known = {row["id"]: row for row in read_lines(path)}
    ids = {cell: f"{cell} T={temperature:g} images={images} prompt={prompt}" for cell in wanted}
    for cell in wanted[first::step]:
        if ids[cell] not in known:
            row = {"id": ids[cell], "cell": cell, "temperature": temperature}
            known[ids[cell]] = row | counts(session, listed_method(cell, {}), jobs)
            append_lines(path, [known[ids[cell]]])
    rows = [known[name] for name in ids.values() if name in known]
    token, node, level = (float(value) for value in (costs.split(",") if isinstance(costs, str) else costs))
    for row in sorted(rows, key=lambda row: predicted(row, token, node, level)):
        shown = {name: round(row[name], 3) for name in ("tau", "rounds", "levels", "nodes", "depth")}
        print(json.dumps({"cell": row["cell"], "predicted": round(predicted(row, token, node, level), 3), **shown}))


if __name__ == "__main__":
    fire.Fire(sweep)
