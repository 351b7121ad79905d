"""Show several runs side by side: one column per prompt and seed, one row per run.

`python -m scripts.tools.contact_sheet --runs outputs/ar,outputs/adt --output sheet.png`
"""

from pathlib import Path

from PIL import Image, ImageDraw

from configs.fields import SettingsError, mismatch
from runs.run_files import RECORDS, image_path
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
    for folder in folders:
        if not (folder / RECORDS).is_file():
            wanted = "folders that generate_images wrote"
            raise mismatch("--runs", f"{folder} without {RECORDS}", wanted)
    ids = [{record["id"] for record in read_lines(folder / RECORDS)} for folder in folders]
    common = sorted(set.intersection(*ids))[:images]
    if not common:
        names = ", ".join(map(str, folders))
        raise SettingsError(f"--runs: the folders {names} have no image in common")
    width, height = Image.open(image_path(folders[0], common[0])).size
    column, row = width + _MARGIN, height + _CAPTION + _MARGIN
    size = (len(common) * column + _MARGIN, len(folders) * row + _MARGIN)
    sheet = Image.new("RGB", size, "white")
    for top, folder in zip(range(_MARGIN, size[1], row), folders, strict=False):
        ImageDraw.Draw(sheet).text((_MARGIN, top), folder.name, fill="black")
        for left, name in zip(range(_MARGIN, size[0], column), common, strict=False):
            sheet.paste(Image.open(image_path(folder, name)), (left, top + _CAPTION))
    sheet.save(output)
    print(f"{output}: {len(common)} images of {len(folders)} runs")


if __name__ == "__main__":
    run_script(contact_sheet)
