"""Make one Markdown table of trained drafters.

`python -m scripts.tools.drafter_table FOLDER [FOLDER ...]`, folders of train_drafter
"""

from itertools import product
from pathlib import Path
from typing import Any

from configs.fields import SettingsError
from support.json_files import read_object
from support.script import run_script
from support.tables import Table

_SAMPLING = ("temperature", "top_k", "top_p", "cfg")
_SHOWN = ("steps", "depths", "guidance_aware", "feature_noise", "layers", "alignment",
          "agreement_weight")  # fmt: skip


def row_of(folder: Path) -> dict[str, Any]:
    """Return a folder's row: settings and figures by column; ValueError without evaluation.json."""
    path = folder / "evaluation.json"
    if not path.is_file():
        raise ValueError(f"{path}: missing; train_drafter writes it at its end")
    report = read_object(path)
    settings, decoding, (first, *deeper) = (report[k] for k in ("settings", "decoding", "levels"))
    row = {"drafter": folder.name} | {name: settings[name] for name in _SHOWN}
    row |= {name: settings.get(name) for name in _SAMPLING}
    row["TV"] = first["total_variation"]
    for name, k in product(("topk", "coupled"), (1, 4, 10)):
        row[f"{name} hit@{k}"] = first[name][f"hit_{k}"]
    for level in deeper[:3]:
        row[f"coupled hit@1, depth {level['depth']}"] = level["coupled"]["hit_1"]
    if decoding:
        row |= {"tau": decoding["tau"], "speed-up": decoding["speedup"]}
        row["identical"] = f"{decoding['identical']}/{decoding['images']}"
    return row


def table(folders: list[Path]) -> str:
    """Return the folders' rows in Markdown; figures are of depth 1 where no depth is named."""
    drafters = [row_of(folder) for folder in folders]
    # Shown where it differs, since figures of different distributions are not to be compared.
    alike = {name for name in _SAMPLING if len({drafter[name] for drafter in drafters}) == 1}
    rows = [
        {
            name: f"{value:z.3f}" if isinstance(value, float) else str(value)
            for name, value in drafter.items()
            if name not in alike
        }
        for drafter in drafters
    ]
    return Table.of(rows).markdown()


def drafter_table(*folders: str) -> None:
    """Print one table of the folders.

    Args:
        folders: output folders of train_drafter.
    """
    if not folders:
        raise SettingsError("expected output folders of train_drafter, got none")
    print(table([Path(folder) for folder in folders]), end="")


if __name__ == "__main__":
    run_script(drafter_table)
