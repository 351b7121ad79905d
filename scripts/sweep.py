"""Draft-tree settings on validation prompts: `python -m scripts.sweep --method adt --grid "nodes=8|12,adt_d_max=4|6"`.

The tokens decided per round, the target forwards, the draft levels and the nodes of a method are the same on every CPU
and under any load, but for near-ties; their cost is not. So a cell of the grid stores the counts, and `--costs`, which
`scripts.costs` measures, turn them into a predicted speed-up. Compare settings by what they promise on one machine,
then time them with `benchmark`. One JSON line per cell; the same command continues where it stopped.
"""

import json
from hashlib import sha256
from itertools import product
from pathlib import Path

from configs.cli import listed_method
from configs.fields import SettingsError, refuse
from configs.methods import MethodSettings, SamplingSettings
from configs.schema import RunSettings
from decoding.flight import Job
from eval.benchmark import measure
from eval.costs import Costs
from eval.durable import append_lines, read_lines
from eval.jobs import image_jobs
from eval.prompts import prompt_items
from eval.provenance import checkpoint_id
from eval.script import run_script
from eval.session import Session, open_session


def cells(method: str, grid: str) -> list[str]:
    """Every combination of the grid's values as an entry of `benchmark --methods`."""
    axes = [axis.partition("=") for axis in grid.split(",")]
    if not all(name and values for name, _, values in axes):
        refuse("grid", grid, "flag=value|value, by commas, such as nodes=8|12,adt_d_max=4|6")
    choices = product(*([f"{name}={value}" for value in values.split("|")] for name, _, values in axes))
    return [":".join((method, *chosen)) for chosen in choices]


def share(text: str) -> tuple[int, int]:
    """The two numbers of --part i/n."""
    first, slash, step = str(text).partition("/")
    if not (slash and first.isdecimal() and step.isdecimal() and int(first) < int(step)):
        refuse("part", text, "i/n with i below n")
    return int(first), int(step)


def read_costs(path: str) -> Costs:
    """The file of --costs; SettingsError names the flag."""
    if not isinstance(path, str):
        refuse("costs", path, "a file that python -m scripts.costs has written")
    try:
        return Costs.read(Path(path))
    except ValueError as error:
        raise SettingsError(f"--costs: {error}") from error


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


def predicted(row: dict[str, float], costs: Costs) -> float:
    """Speed-up over plain decoding at these costs."""
    levels = row["levels"] / row["rounds"]
    return row["tokens"] * costs.round(0, 0) / (row["rounds"] * costs.round(row["nodes"], levels))


def sweep(
    *,
    method: str = "adt",
    grid: str = "nodes=8|12|16",
    prompt: str = "configs/prompts/tiny_validation.txt",
    images: int = 8,
    temperature: float = 1.0,
    model_path: str | None = None,
    costs: str = "work/costs.json",
    report: str = "work/sweep.jsonl",
    part: str = "0/1",
) -> None:
    """Count every cell of a grid and print the cells by predicted speed-up, best last.

    Args:
        method: entry of `benchmark --methods` that all cells share, such as adt:proposal=topk.
        grid: axes by commas, values by bars: nodes=8|12,adt_d_max=4|6.
        prompt: file of validation prompts.
        images: how many of them; -1 for all.
        temperature: of the sampling law; guidance 3.
        model_path: the target's folder; the shipped model if None.
        costs: file of this machine's costs, which `python -m scripts.costs` writes.
        report: JSON lines of all cells ever counted.
        part: i/n counts every n-th cell only, from cell i on.
    """
    law = SamplingSettings(temperature=temperature)
    settings = RunSettings(prompt=prompt, num_images=images, sampling=law, model_path=model_path)
    methods = {cell: listed_method(cell, {}) for cell in cells(method, grid)}
    first, step = share(part)
    prices = read_costs(costs)
    path, jobs = Path(report), image_jobs(prompt_items(settings), settings.seed)
    weights = " ".join(checkpoint_id(folder)[:12] for folder in (settings.model_path, settings.drafter_path))
    names = "\n".join(job.prompt for job in jobs)
    run = f"T={temperature:g} prompts={sha256(names.encode()).hexdigest()[:12]} weights={weights}"
    ids = {cell: f"{cell} {run}" for cell in methods}
    path.parent.mkdir(parents=True, exist_ok=True)
    known = {row["id"]: row for row in read_lines(path)}
    session = open_session(settings)
    for cell in list(methods)[first::step]:
        if ids[cell] not in known:
            known[ids[cell]] = {"id": ids[cell], "cell": cell} | counts(session, methods[cell], jobs)
            append_lines(path, [known[ids[cell]]])
    rows = [known[name] for name in ids.values() if name in known]
    for row in sorted(rows, key=lambda row: predicted(row, prices)):
        shown = {name: round(row[name], 3) for name in ("tau", "rounds", "levels", "nodes", "depth")}
        print(json.dumps({"cell": row["cell"], "predicted": round(predicted(row, prices), 3), **shown}))


if __name__ == "__main__":
    run_script(sweep)
