"""Show several runs side by side: one column per prompt and seed, one row per run.

`python -m scripts.tools.contact_sheet --runs outputs/ar,outputs/adt --output sheet.png`
"""

from pathlib import Path

from PIL import Image, ImageDraw

from configs.fields import SettingsError, mismatch
from support.json_files import read_lines
from support.script import run_script

_MARGIN, _CAPTION = 4, 14  # pixels


def contact_sheet(*, runs: str, output: str, images: int = 8) -> None:
    """Write a PNG of the first images that all runs have.

    Args:
        runs: run folders, separated by commas; the folder's name labels the row.
        output: path of the PNG.
        images: columns at most.

    Raises:
        SettingsError: a folder has no records, or the folders have no image in common.
    """
    folders = [Path(run) for run in runs.split(",")]
    common = sorted(set.intersection(*map(_ids, folders)))[:images]
    if not common:
        names = ", ".join(map(str, folders))
        raise SettingsError(f"--runs: the folders {names} have no image in common")
    rows = [
        [Image.open(folder / "img" / f"{name}.png").convert("RGB") for name in common]
        for folder in folders
    ]
    _paste([folder.name for folder in folders], rows).save(output)
    print(f"{output}: {len(common)} images of {len(rows)} runs")


def _paste(labels: list[str], rows: list[list[Image.Image]]) -> Image.Image:
    """Return the sheet; every image has the first one's size."""
    width, height = rows[0][0].size
    column, row_height = width + _MARGIN, height + _CAPTION + _MARGIN
    size = (len(rows[0]) * column + _MARGIN, len(rows) * row_height + _MARGIN)
    sheet = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(sheet)
    for r, (label, row) in enumerate(zip(labels, rows, strict=True)):
        top = _MARGIN + r * row_height
        draw.text((_MARGIN, top), label, fill="black")
        for c, image in enumerate(row):
            sheet.paste(image, (_MARGIN + c * column, top + _CAPTION))
    return sheet


def _ids(folder: Path) -> set[str]:
    """Return the ids of a run's finished images."""
    if not (folder / "records.jsonl").is_file():
        wanted = "folders that generate_images wrote"
        raise mismatch("--runs", f"{folder} without records.jsonl", wanted)
    return {record["id"] for record in read_lines(folder / "records.jsonl")}


if __name__ == "__main__":
    run_script(contact_sheet)
