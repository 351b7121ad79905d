"""A picture of several runs side by side: one column per prompt and seed, one row per run."""

from pathlib import Path

import fire
from PIL import Image, ImageDraw

from configs.fields import SettingsError
from support.json_files import read_lines

_MARGIN, _CAPTION = 4, 14


def grid(*, runs: str, output: str, images: int = 8) -> None:
    """Write a PNG of the first images that all runs have.

    Args:
        runs: run folders, separated by commas; a row is labelled with its folder's name.
        output: the picture's path.
        images: columns at most.

    Raises:
        SettingsError: a folder has no records, or the folders have no image in common.
    """
    folders = [
        Path(run) for run in (runs.split(",") if isinstance(runs, str) else runs)
    ]  # fire splits at commas
    common = sorted(set.intersection(*map(_ids, folders)))[:images]
    if not common:
        raise SettingsError(
            f"--runs: the folders {', '.join(map(str, folders))} have no image in common"
        )
    rows = [
        [Image.open(folder / "img" / f"{name}.png").convert("RGB") for name in common]
        for folder in folders
    ]
    width, height = rows[0][0].size
    size = (
        len(common) * (width + _MARGIN) + _MARGIN,
        len(rows) * (height + _CAPTION + _MARGIN) + _MARGIN,
    )
    picture = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(picture)
    for r, (folder, row) in enumerate(zip(folders, rows, strict=True)):
        top = _MARGIN + r * (height + _CAPTION + _MARGIN)
        draw.text((_MARGIN, top), folder.name, fill="black")
        for c, image in enumerate(row):
            picture.paste(image, (_MARGIN + c * (width + _MARGIN), top + _CAPTION))
    picture.save(output)
    print(f"{output}: {len(common)} images of {len(rows)} runs")


def _ids(folder: Path) -> set[str]:
    """The ids of a run's finished images."""
    if not (folder / "records.jsonl").is_file():
        raise SettingsError(
            f"--runs: {folder} has no records.jsonl; allowed: folders written by generate_images"
        )
    return {record["id"] for record in read_lines(folder / "records.jsonl")}


if __name__ == "__main__":
    fire.Fire(grid)
