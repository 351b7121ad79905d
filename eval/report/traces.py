"""What trace.jsonl of a run says about the images on show."""

from collections.abc import Collection

import numpy as np
from PIL import Image

from eval.report.adjacency import ImageTrace, grid_columns
from eval.report.run import Run
from runs.run_files import files_of
from support.json_files import Line, scan_lines


def accepted_lengths(run: Run, ids: Collection[str]) -> tuple[dict[str, np.ndarray], list[str]]:
    """Return the accepted lengths of each token's round, by image id, and what cannot be used.

    The lengths (rows, columns) are numbers of draft tokens, NaN at the first token, for the images
    that --trace recorded. What cannot be used is named in words.

    Args:
        run: whose trace is read.
        ids: of the images to return; the others' rounds are not kept.
    """
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
