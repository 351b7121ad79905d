"""One Markdown table of trained drafters.

`python -m scripts.tools.drafter_table OUT [OUT ...]`, folders of train_drafter.
"""

import json
import sys
from pathlib import Path
from typing import Any

from support.tables import Table

_SHOWN = (
    "steps",
    "depths",
    "guidance_aware",
    "feature_noise",
    "layers",
    "alignment",
    "agreement_weight",
)


def line_of(folder: Path) -> dict[str, Any]:
    """A folder's row; ValueError if it has no evaluation.json."""
    path = folder / "evaluation.json"
    if not path.is_file():
        raise ValueError(f"{path}: missing; train_drafter writes it at its end")
    found = json.loads(path.read_text(encoding="utf-8"))
    settings, first, decoding = found["settings"], found["levels"][0], found["decoding"]
    line = {"drafter": folder.name} | {name: settings[name] for name in _SHOWN}
    line |= {"TV": first["total_variation"]}
    line |= {
        f"{name} hit@{k}": first[name][f"hit_{k}"]
        for name in ("topk", "coupled")
        for k in (1, 4, 10)
    }
    line |= {
        f"coupled hit@1, depth {level['depth']}": level["coupled"]["hit_1"]
        for level in found["levels"][1:4]
    }
    if decoding:
        line |= {"tau": decoding["tau"], "SR": decoding["speedup"]}
        line["identical"] = f"{decoding['identical']}/{decoding['images']}"
    return line


def table(folders: list[Path]) -> str:
    """The folders' rows; figures of depth 1 where no depth is named."""
    lines = [line_of(folder) for folder in folders]
    columns = dict.fromkeys(name for line in lines for name in line)
    rows = [tuple(_cell(line.get(name, "-")) for name in columns) for line in lines]
    return Table(tuple(columns), tuple(rows)).markdown()


def _cell(value: object) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    try:
        if not sys.argv[1:]:
            raise ValueError("found no folders; allowed: folders of train_drafter")
        print(table([Path(word) for word in sys.argv[1:]]), end="")
    except ValueError as error:
        sys.exit(f"error: {error}")
