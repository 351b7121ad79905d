"""The contact sheet of several runs: what is on it, and runs that have none."""

import json
from pathlib import Path

import pytest
from PIL import Image

from configs.fields import SettingsError
from scripts.tools.contact_sheet import contact_sheet


def write_images(folder: Path, colours: dict[str, str]) -> Path:
    (folder / "img").mkdir(parents=True)
    for name, colour in colours.items():
        Image.new("RGB", (8, 8), colour).save(folder / "img" / f"{name}.png")
    (folder / "records.jsonl").write_text(
        "".join(json.dumps({"id": name}) + "\n" for name in colours)
    )
    return folder


def test_common_images_stand_below_each_other(tmp_path: Path) -> None:
    ar = write_images(tmp_path / "ar", {"00000_0": "red", "00001_0": "blue"})
    adt = write_images(tmp_path / "adt", {"00001_0": "blue", "00002_0": "green"})
    contact_sheet(runs=f"{ar},{adt}", output=str(tmp_path / "sheet.png"))
    picture = Image.open(tmp_path / "sheet.png").convert("RGB")
    colours = {colour for _, colour in picture.getcolors(10_000)}
    assert (0, 0, 255) in colours and (255, 0, 0) not in colours and (0, 128, 0) not in colours
    assert picture.width < 2 * 8 + 12 < picture.height


def test_runs_without_records_or_common_images_are_refused(tmp_path: Path) -> None:
    one = write_images(tmp_path / "one", {"00000_0": "red"})
    other = write_images(tmp_path / "other", {"00001_0": "red"})
    with pytest.raises(SettingsError, match="no image in common"):
        contact_sheet(runs=f"{one},{other}", output=str(tmp_path / "sheet.png"))
    with pytest.raises(SettingsError, match=r"records\.jsonl"):
        contact_sheet(runs=str(tmp_path), output=str(tmp_path / "sheet.png"))
