"""Maps of a run: what is drawn, printed and written, and runs that have none."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from configs.fields import SettingsError
from eval.report.run import ImageTrace
from scripts.tools.maps import columns_of, correlation, correlations, maps, read_traces
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


def trace(accepted: list[int]) -> ImageTrace:
    """Return the trace of a whole image whose rounds accept so many draft tokens, none cut."""
    positions = np.cumsum([1, *(count + 1 for count in accepted)])
    rounds = [
        {
            "round": i,
            "position": int(positions[i]),
            "accepted": a,
            "depth": 0,
            "top1": [0.5] * (a + 1),
        }
        for i, a in enumerate(accepted)
    ]
    return ImageTrace.of(rounds, int(positions[-1]))


def made(images: int, carry: float, seed: int = 0, least: int = 40) -> list[ImageTrace]:
    """Make images whose rounds accept 0 to 7 tokens.

    A share `carry` of the rounds repeats the round before.
    """
    draw = np.random.default_rng(seed)
    traces = []
    for _ in range(images):
        accepted = [int(draw.integers(8))]
        while sum(accepted) + len(accepted) < 64 * least:
            accepted.append(accepted[-1] if draw.random() < carry else int(draw.integers(8)))
        tokens = 64 * least - 1
        kept = [
            a
            for a, end in zip(accepted, np.cumsum(np.array(accepted) + 1), strict=True)
            if end <= tokens
        ]
        rest = tokens - sum(kept) - len(kept)
        traces.append(trace([*kept, rest - 1] if rest else kept))
    return traces


def test_rounds_that_repeat_the_one_before_are_found_and_controls_are_not() -> None:
    found = correlations(made(10, carry=0.6), columns=64, samples=400)
    for name in ("previous", "left", "left_given_upper"):
        one = found["rounds"][name]
        assert one.pearson.value == pytest.approx(0.6, abs=0.05) == one.spearman.value
        assert 0.5 < one.pearson.low < one.pearson.value < one.pearson.high < 0.7
    for name in ("upper", "upper_given_left", "other_image", "elsewhere"):
        assert abs(found["rounds"][name].pearson.value) < 0.06, name
    assert found["rounds"]["left"].pairs < found["rounds"]["previous"].pairs


def test_independent_rounds_agree_within_themselves_only() -> None:
    """Neighbours are mostly of one round: correlations of positions are high without a cause."""
    found = correlations(made(10, carry=0.0), columns=64, samples=100)
    assert found["positions"]["left"].pearson.value > 0.6
    assert all(abs(one.pearson.value) < 0.06 for one in found["rounds"].values())
    assert abs(found["positions"]["upper"].pearson.value) < 0.06


def test_rows_that_repeat_the_row_above_are_found() -> None:
    draw = np.random.default_rng(3)
    traces = []
    for _ in range(9):
        row: list[int] = []
        while sum(row) + len(row) < 48:
            row.append(int(draw.integers(min(8, 48 - sum(row) - len(row)))))
        traces.append(
            trace([0] * 47 + row * 20)
        )  # position 0, a row of single tokens, then the same row 20 times
    found = correlations(traces, columns=48, samples=100)
    assert (
        found["rounds"]["upper"].pearson.value > 0.8
        and found["rounds"]["upper_given_left"].pearson.value > 0.8
    )
    assert abs(found["rounds"]["left_given_upper"].pearson.value) < 0.3


def test_layout_common_to_all_images_is_seen_by_the_control() -> None:
    found = correlations([made(1, carry=0.5)[0] for _ in range(9)], columns=64, samples=100)
    assert found["rounds"]["other_image"].pearson.value == pytest.approx(1)
    assert abs(found["rounds"]["elsewhere"].pearson.value) < 0.1


def test_pearson_spearman_and_partial_correlations_of_given_numbers() -> None:
    draw = np.random.default_rng(1)
    z = draw.normal(size=20_000)
    x, y = z + draw.normal(size=z.size), z + draw.normal(size=z.size)
    parts = np.split(np.stack([x, y, z]), 10, axis=1)
    plain, given = correlation([part[:2] for part in parts], 200), correlation(parts, 200)
    assert (
        plain.pearson.value == pytest.approx(0.5, abs=0.02)
        and plain.pearson.low < 0.5 < plain.pearson.high
    )
    assert plain.spearman.value == pytest.approx(6 / np.pi * np.arcsin(0.25), abs=0.02)
    assert given.pearson.value == pytest.approx(0, abs=0.02) and given.pairs == 20_000
    curved = correlation([np.stack([x, np.exp(3 * x)])], 10)
    assert (
        curved.spearman.value == pytest.approx(1)
        and curved.pearson.value < 0.7
        and curved.pearson.low is None
    )


def test_ties_share_ranks_and_gaps_are_left_out() -> None:
    table = np.array([[1.0, 1, 2, 3, np.nan, 4], [1.0, 2, 2, 3, 3, np.nan]])
    scipy = pytest.importorskip("scipy.stats")
    expected = scipy.spearmanr([1, 1, 2, 3], [1, 2, 2, 3]).statistic
    assert (
        correlation([table], 10).spearman.value == pytest.approx(expected)
        and correlation([table], 10).pairs == 4
    )


def test_no_correlation_with_a_constant_or_with_nothing() -> None:
    assert correlation([np.array([[1.0, 2, 3, 4], [5.0, 5, 5, 5]])]) is None
    assert correlation([np.full((2, 9), np.nan)]) is None
    assert correlations([trace([1, 0, 3, 2, 0, 1])], columns=4)["rounds"]["other_image"] is None
