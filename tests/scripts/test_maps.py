"""Maps of a run: what is drawn, printed and written, and runs that have none."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from configs.fields import SettingsError
from scripts.tools.maps import columns_of, maps, read_traces
from support.durable import append_lines

SIDE = 6


def write_run(folder: Path, images: int = 9) -> Path:
    """A run of pictures of 6 x 6 tokens, half as high as wide tokens; easy tops, hard bottoms."""
    (folder / "img").mkdir(parents=True)
    draw = np.random.default_rng(0)
    for number in range(images):
        name, position, rounds = f"{number:05d}_0", 1, []
        while position < SIDE**2:
            rest = SIDE**2 - position
            accepted = int(
                min(draw.integers(2, 5) if position < 18 else draw.integers(2), rest - 1)
            )
            top1 = draw.random(accepted + 1).tolist()
            rounds.append({"id": name, "round": len(rounds), "position": position,
                           "depth": min(5, rest - 1), "width": 4, "nodes": 9, "accepted": accepted,
                           "top1": top1})  # fmt: skip
            position += accepted + 1
        append_lines(folder / "trace.jsonl", rounds)
        append_lines(folder / "records.jsonl", [{"id": name, "tokens": SIDE**2}])
        pixels = draw.integers(0, 255, (48, 48, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(folder / "img" / f"{name}.png")
    return folder


def colours(path: Path) -> int:
    return len(set(Image.open(path).convert("RGB").getdata()))


def test_maps_and_numbers(tmp_path, capsys) -> None:
    run = write_run(tmp_path / "run")
    maps(run=str(run), images=2)
    pictures = sorted(path.name for path in (run / "maps").glob("*.png"))
    assert pictures == ["00000_0.png", "00001_0.png", "mean.png"]
    assert all(colours(run / "maps" / name) > 100 for name in pictures)
    numbers = json.loads((run / "maps" / "correlations.json").read_text())
    assert numbers["images"] == 9 and list(numbers) == ["images", "rounds", "positions"]
    upper = numbers["rounds"]["other_image"]["pearson"]
    assert 0.3 < upper["low"] < upper["value"] < upper["high"] <= 1  # all tops are easy
    shown = capsys.readouterr().out
    pairs = numbers["rounds"]["other_image"]["pairs"]
    assert f"| rounds | other_image | {pairs} | {upper['value']:.3f} [" in shown


def test_what_is_drawn_is_the_grid_of_the_image(tmp_path, monkeypatch) -> None:
    run = write_run(tmp_path / "run", images=1)
    for path in (run / "img").iterdir():
        Image.new("RGB", (72, 32)).save(path)
    assert columns_of(run, read_traces(run)) == 9  # 9 x 4 tokens
    drawn = []
    monkeypatch.setattr(
        "scripts.tools.maps.draw", lambda maps, columns, *_: drawn.append((maps, columns))
    )
    maps(run=str(run), output_dir=str(tmp_path / "elsewhere"), images=0)
    (accepted, top1), columns = drawn[0]
    trace = read_traces(run)["00000_0"]
    assert columns == 9 and np.array_equal(accepted, trace.accepted, equal_nan=True)
    assert np.isnan(top1[0]) and (tmp_path / "elsewhere" / "correlations.json").exists()


def test_runs_without_a_trace_or_drafts_are_refused(tmp_path) -> None:
    with pytest.raises(SettingsError, match="--run .*no images with a trace"):
        maps(run=str(tmp_path))
    append_lines(tmp_path / "records.jsonl", [{"id": "00000_0", "tokens": 3}])
    plain = [
        {"id": "00000_0", "round": i, "position": i + 1, "accepted": 0, "depth": 0, "top1": [0.5]}
        for i in (0, 1)
    ]
    append_lines(tmp_path / "trace.jsonl", plain[:1])
    with pytest.raises(SettingsError, match="damaged .*up to position 2 of 3"):
        maps(run=str(tmp_path))
    append_lines(tmp_path / "trace.jsonl", plain[1:])
    with pytest.raises(SettingsError, match="no accepted drafts"):
        maps(run=str(tmp_path))
