"""Maps of a run and the contact sheet of several: what is written, and runs that have none."""

import json
from pathlib import Path

import numpy as np
import pytest
from made_runs import rounds_of, write_run
from PIL import Image

from configs.fields import SettingsError
from eval.report.run import ImageTrace
from scripts.tools.contact_sheet import contact_sheet
from scripts.tools.maps import correlations, maps, traces_of
from support.durable import append_lines

SIDE = 6


def traced_run(folder: Path, images: int = 9) -> Path:
    """A run of pictures of 6 x 6 tokens with easy tops and hard bottoms."""
    draw = np.random.default_rng(0)
    pixels = draw.integers(0, 255, (images, 48, 48, 3)).astype(np.uint8)
    write_run(folder, list(pixels), [f"prompt {n}" for n in range(images)], tokens=SIDE**2)
    for number in range(images):
        accepted: list[int] = []
        while (rest := SIDE**2 - 1 - sum(accepted) - len(accepted)) > 0:
            most = draw.integers(2, 5) if rest > 18 else draw.integers(2)
            accepted.append(int(min(most, rest - 1)))
        lines = [{"id": f"{number:05d}_0"} | entry for entry in rounds_of(accepted)]
        append_lines(folder / "trace.jsonl", lines)
    return folder


def test_numbers_are_printed_and_written(tmp_path, capsys) -> None:
    run = traced_run(tmp_path / "run")
    maps(run=str(run), output_dir=str(tmp_path / "elsewhere"))
    figures = json.loads((tmp_path / "elsewhere" / "correlations.json").read_text())
    assert figures["images"] == 9 and len(figures) == 8
    other = figures["other_image"]
    assert 0.3 < other["low"] < other["value"] < other["high"] <= 1  # all tops are easy
    row = f"| other_image | {other['pairs']} | {other['value']:.3f} ["
    assert row in capsys.readouterr().out


def test_rows_are_those_of_the_picture(tmp_path) -> None:
    run = traced_run(tmp_path / "run", images=2)
    for path in (run / "img").iterdir():
        Image.new("RGB", (72, 32)).save(path)
    assert {trace.columns for trace in traces_of(str(run))} == {9}  # 9 x 4 tokens
    Image.new("RGB", (32, 72)).save(path)
    with pytest.raises(SettingsError, match="images of one size"):
        traces_of(str(run))


def test_runs_without_a_trace_or_drafts_are_refused(tmp_path) -> None:
    image = [np.zeros((8, 8, 3), np.uint8)]
    run = write_run(tmp_path / "run", image, ["a cat"], tokens=4)
    with pytest.raises(SettingsError, match="--run .*no images with a trace"):
        maps(run=str(run))
    plain = [{"id": "00000_0"} | entry for entry in rounds_of([0, 0, 0])]
    append_lines(run / "trace.jsonl", plain[:2])
    with pytest.raises(SettingsError, match="cannot be used .*up to position 3 of 4"):
        maps(run=str(run))
    append_lines(run / "trace.jsonl", plain[2:])
    with pytest.raises(SettingsError, match="no accepted drafts"):
        maps(run=str(run))


def trace(accepted: list[int], columns: int) -> ImageTrace:
    return ImageTrace.of(rounds_of(accepted), 1 + sum(accepted) + len(accepted), columns)


def made(images: int, carry: float, tokens: int = 64 * 40) -> list[ImageTrace]:
    """Make images whose rounds accept 0 to 7 tokens; a share `carry` repeats the round before."""
    draw, traces = np.random.default_rng(0), []
    for _ in range(images):
        accepted: list[int] = []
        while (rest := tokens - 1 - sum(accepted) - len(accepted)) > 0:
            again = accepted and draw.random() < carry
            accepted.append(min(accepted[-1] if again else int(draw.integers(8)), rest - 1))
        traces.append(trace(accepted, columns=64))
    return traces


def test_rounds_that_repeat_the_one_before_are_found_and_controls_are_not() -> None:
    figures = correlations(made(10, carry=0.6), samples=400)
    for name in ("previous", "left", "left_given_upper"):
        figure = figures[name][1]
        assert figure.value == pytest.approx(0.6, abs=0.05)
        assert 0.5 < figure.low < figure.value < figure.high < 0.7
    for name in ("upper", "upper_given_left", "other_image", "elsewhere"):
        assert abs(figures[name][1].value) < 0.06, name
    assert figures["left"][0] < figures["previous"][0]


def test_rows_that_repeat_the_row_above_are_found() -> None:
    random, traces = np.random.default_rng(3), []
    for _ in range(9):
        row: list[int] = []
        while sum(row) + len(row) < 48:
            row.append(int(random.integers(min(8, 48 - sum(row) - len(row)))))
        # position 0, a row of single tokens, then the same row 20 times
        traces.append(trace([0] * 47 + row * 20, columns=48))
    figures = correlations(traces, samples=100)
    assert figures["upper"][1].value > 0.8 and figures["upper_given_left"][1].value > 0.8
    assert abs(figures["left_given_upper"][1].value) < 0.3


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
