"""trace.jsonl of a run, as `evaluate` shows it."""

from collections.abc import Collection

import numpy as np
from PIL import Image

from eval.report.adjacency import ImageTrace, grid_columns
from eval.report.run import Run
from runs.run_folder import Line, files_of
from support.json_files import scan_lines


def accepted_lengths(run: Run, ids: Collection[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Per image the drafts accepted in the round that decided each token, (rows, columns), NaN at the first one, where
    --trace recorded them; and what cannot be used, in words. ids: of the images; the others' rounds are not kept."""
    rounds: dict[str, dict[object, Line]] = {}
    faults: list[str] = []
    for path in files_of(run.folder, "trace.jsonl"):
        for number, line in scan_lines(path):
            if line is None:
                faults.append(f"{path.name}, line {number}: not a round")
            elif line["id"] in ids:
                rounds.setdefault(line["id"], {})[line.get("round")] = line
    lengths = {}
    for name, lines in rounds.items():
        try:
            trace = ImageTrace.of(list(lines.values()), run.records[name]["tokens"])
            with Image.open(run.path(run.records[name])) as image:
                lengths[name] = trace.accepted.reshape(
                    -1, grid_columns(len(trace.rounds), image.size)
                )
        except (ValueError, KeyError, TypeError) as error:
            faults.append(f"{name}: a trace that cannot be used ({error!r})")
    return lengths, faults
