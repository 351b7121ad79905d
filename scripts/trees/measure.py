"""Trace ADT-Tree, its controls and trees of one size on the included model.

`python -m scripts.trees.measure --output outputs/trees`

It writes a folder per temperature, kind of drafts, seed and row, each with run.json and trace.jsonl
as `generate_images --trace` writes them, and continues where it stopped. `scripts.trees.verdict`
makes the tables of them.
"""

from collections import Counter
from dataclasses import asdict
from pathlib import Path

from configs.fields import settings_dict
from configs.methods import MethodSettings
from configs.recipes import listed_method
from configs.schema import RunSettings
from configs.targets import ROOT
from runs.drawing import image_jobs
from runs.prompts import prompt_items
from runs.records import MANIFEST, TRACE
from runs.session import Session, open_session
from scripts.trees.foretold import foretell, foretold_rounds
from support.durable import append_lines, encode_json, replace_file
from support.json_lines import Line, read_lines, set_lines
from support.script import run_script

ADT = f"{ROOT}/configs/paper/adt.yaml"
# Measured with beta 0.5, where a random direction goes either way as often.
CONTROLS = (
    "adt_beta=0.9", "adt_beta=0.5", "adt_beta=0.5:adt_adapt=random",
    "adt_beta=0.5:adt_adapt=confidence", "adt_beta=0.5:adt_init=vertical",
)  # fmt: skip
ROWS = {
    "adt": ADT,
    **{f"eagle2_d{depth}": f"eagle2:depth={depth}" for depth in (5, 6, 8, 4, 7, 3)},
    **{f"adt:{control}": f"{ADT}:{control}" for control in CONTROLS},
}
BATCH = 8  # images of plain decoding


def measure_trees(
    *,
    output: str,
    temperature: float = 1.0,
    proposal: str = "topk",
    seed: int = 9,
    slice: str = "0-32",
    rows: str = ",".join(ROWS),
) -> None:
    """Write the traces of some rows.

    Args:
        output: folder of all runs.
        temperature: of the sampling.
        proposal: topk or coupled.
        seed: of the images.
        slice: test prompts, as start-stop.
        rows: names, by commas.
    """
    run = RunSettings.of(
        prompt=str(ROOT / "configs/prompts/tiny_test.txt"), slice=slice, seed=seed,
        temperature=temperature, device="cpu", method=MethodSettings("eagle2"),
    )  # fmt: skip
    session, jobs = open_session(run.engine), image_jobs(prompt_items(run.prompts), seed)
    foretold = None
    for row in rows.split(","):
        method = listed_method(f"{ROWS[row]}:proposal={proposal}", {})
        folder = Path(output, f"T{temperature:g}_{proposal}_seed{seed}", row)
        lines = finished_lines(folder / TRACE, session)
        done = {line["id"] for line in lines}
        if left := [job for job in jobs if job.id not in done]:
            foretold = foretold or foretell(session, jobs, BATCH)
            folder.mkdir(parents=True, exist_ok=True)
            settings = settings_dict(run) | settings_dict(method)
            manifest = {"settings": settings, "identity": {}, "earlier": []}
            replace_file(folder / MANIFEST, encode_json(manifest))
            set_lines(folder / TRACE, lines)  # what a kill left of an image is made again
            for job in left:
                rounds = list(foretold_rounds(session, method, foretold, [job]))
                append_lines(folder / TRACE, [asdict(line) for line in rounds])
        print(folder, len(jobs), flush=True)


def finished_lines(path: Path, session: Session) -> list[Line]:
    """Return the lines of the images whose rounds are all in a trace."""
    lines, tokens = read_lines(path), Counter[str]()
    for line in lines:
        tokens[line["id"]] += line["accepted"] + 1
    return [line for line in lines if tokens[line["id"]] == session.target.grid.tokens - 1]


if __name__ == "__main__":
    run_script(measure_trees)
