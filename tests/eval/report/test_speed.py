"""Speed rows by hand, and their tables."""

import numpy as np
import pytest
from made_runs import made_record, write_records, write_run

from eval.metrics.base import Score
from eval.report.pictures import difference
from eval.report.run import read_run
from eval.report.speed import baseline_of, compared, speed_row
from eval.report.tables import settings_table, sources_table, speed_table

GREY = [np.full((8, 8, 3), 20 * number, dtype=np.uint8) for number in range(9)]
PROMPTS = [f"prompt {number}" for number in range(9)]


@pytest.fixture
def plain(tmp_path):
    return read_run(str(write_run(tmp_path / "plain", GREY, PROMPTS)), "plain")


def faster(tmp_path, settings=None, **record):
    figures = {"seconds": 1.0, "target_forwards": 86, "mean_depth": 4.0, "tau": 3.0}
    return write_run(
        tmp_path / "adt", GREY, PROMPTS, {"method": "adt"} | (settings or {}), **figures | record
    )


def row_of(run, baseline):
    return speed_row(run, compared(run, baseline))


def test_figures_by_hand(plain, tmp_path):
    row = row_of(read_run(str(faster(tmp_path)), "adt"), plain)
    assert (row.images, row.seconds, row.forwards, row.mean_depth) == (9, 1.0, 86, 4.0)
    assert row.tau == 255 / 85
    assert (row.speedup.value, row.compression) == (2.0, pytest.approx(256 / 86))
    assert (row.common, row.identical, row.warnings, row.paper) == (9, 9, (), None)


def test_images_are_matched_by_prompt_and_seed(plain, tmp_path):
    folder = faster(tmp_path)
    lines = [
        made_record("00007_0", "prompt 3", seed=3, seconds=1.0, tokens_sha256="other"),
        made_record("00003_0", "prompt 3", seed=4, seconds=9.0, tokens_sha256="x"),
        made_record(
            "00005_0",
            "prompt 5",
            seed=5,
            seconds=4.0,
            tokens_sha256=plain.records["00005_0"]["tokens_sha256"],
        ),
    ]
    write_records(folder, lines)
    row = row_of(read_run(str(folder), "adt"), plain)
    assert (row.images, row.common, row.identical) == (3, 2, 1)
    assert row.speedup.value == (2 + 2) / (1 + 4) and row.speedup.low is None
    assert any("1 images differ from plain's" in text for text in row.warnings)


def test_nothing_in_common_and_no_baseline(plain, tmp_path):
    folder = faster(tmp_path, seed=77)
    run = read_run(str(folder), "adt")
    row = row_of(run, plain)
    assert row.common == 0 and row.speedup is None and "no image" in row.warnings[-1]
    assert speed_row(run, None).speedup is None
    assert baseline_of(run, [run], None) is None and baseline_of(run, [run, plain], None) is None
    assert baseline_of(plain, [plain, run], str(folder)).run is run


def test_each_run_has_the_baseline_of_its_own_distribution(plain, tmp_path):
    cold = {"temperature": 0.0}
    slow = read_run(str(write_run(tmp_path / "cold", GREY, PROMPTS, cold, seconds=6.0)), "cold")
    fast = read_run(str(faster(tmp_path)), "adt")
    other = write_run(
        tmp_path / "adt0",
        GREY,
        PROMPTS,
        cold | {"method": "adt", "verifier": "rejection"},
        seconds=2.0,
    )
    runs = [plain, slow, fast, read_run(str(other), "adt0")]
    rows = [speed_row(run, baseline_of(run, runs, None)) for run in runs]
    assert [row.baseline for row in rows] == ["plain", "cold", "plain", "cold"]
    assert [row.speedup.value for row in rows] == [1, 1, 2, 3]
    rows = [speed_row(run, baseline_of(run, runs, str(plain.folder))) for run in runs]
    assert [row[4:6] for row in speed_table(rows).rows][1] == ("-", "-") and rows[3].speedup is None


def test_other_distributions_are_not_compared(plain, tmp_path):
    row = row_of(
        read_run(str(faster(tmp_path, {"temperature": 0.0, "batch_size": 4})), "adt"), plain
    )
    assert row.speedup is row.identical is row.baseline is None
    assert row.warnings == ("not compared with plain: --temperature 0.0, baseline 1.0",)


def test_other_machines_and_batch_sizes_are_marked(plain, tmp_path):
    row = row_of(read_run(str(faster(tmp_path, {"batch_size": 4})), "adt"), plain)
    assert row.warnings == ("--batch_size 4, baseline 1",)
    cells = dict(zip(speed_table([row]).columns, speed_table([row]).rows[0], strict=True))
    assert (
        cells["SR"].startswith("2.00 [")
        and cells["SR"].endswith(" (!)")
        and cells["same tokens"] == "9/9 (!)"
    )


@pytest.mark.parametrize(("seconds", "noise"), [(0.7, False), (0.6, True)])
def test_a_speed_up_above_tau_is_marked_as_noise(plain, tmp_path, seconds, noise):
    row = row_of(read_run(str(faster(tmp_path, seconds=seconds)), "adt"), plain)
    assert row.tau == 3.0 and row.above_tau is noise
    warning = f"a speed-up of {2 / seconds:.2f} exceeds tau 3.00"
    assert any(warning in text for text in row.warnings) is noise
    cells = dict(zip(speed_table([row]).columns, speed_table([row]).rows[0], strict=True))
    assert cells["SR"].endswith(" (!)") is noise and cells["same tokens"] == "9/9"


def test_a_speed_up_over_a_drafted_run_may_exceed_tau(plain, tmp_path):
    slow = write_run(tmp_path / "slow", GREY, PROMPTS, {"method": "static"}, seconds=9.0)
    row = row_of(read_run(str(faster(tmp_path)), "adt"), read_run(str(slow), "slow"))
    assert row.speedup.value == 9.0 and not row.above_tau and not row.warnings


@pytest.mark.parametrize(("temperature", "expected"), [(0.0, True), (1.0, False)])
def test_rejection_draws_the_same_tokens_at_temperature_zero_only(tmp_path, temperature, expected):
    distribution = {"temperature": temperature}
    plain = read_run(str(write_run(tmp_path / "plain", GREY, PROMPTS, distribution)), "plain")
    run = read_run(
        str(faster(tmp_path, distribution | {"verifier": "rejection"}, tokens_sha256="x")), "adt"
    )
    row = row_of(run, plain)
    assert row.lossless and row.same_tokens is expected
    assert any("9 images differ" in text for text in row.warnings) is expected
    assert ("same distribution, other images" in speed_table([row]).rows[0][1]) is not expected


def test_the_papers_figures_are_shown_next_to_the_same_cell(plain, tmp_path):
    cell = {"model": "anole", "prompt": "MSCOCO2017Val", "temperature": 0.0}
    row = row_of(read_run(str(faster(tmp_path, cell, lossless=False)), "adt"), plain)
    assert (row.paper.speedup, row.paper.tau, row.paper.mean_depth) == (3.13, 4.86, 5.15)
    table = speed_table([row_of(plain, plain), row])
    assert table.columns[-3:] == ("paper's SR", "paper's tau", "paper's mean depth")
    assert table.rows[0][-3:] == ("-", "-", "-") and table.rows[1][-3:] == ("3.13", "4.86", "5.15")
    assert "relaxed" in table.rows[1][1]


def test_figures_and_runs_that_rest_on_the_same_share_a_line():
    def scores(count: int) -> list[Score]:
        return [Score(name, 1.0, count, "network", "resize") for name in ("a", "b")]

    table = sources_table({"x": scores(9), "y": scores(9), "z": scores(8)})
    assert [row[:3] for row in table.rows] == [("a, b", "x, y", "9"), ("a, b", "z", "8")]


def test_settings_that_differ_stand_in_columns(plain, tmp_path):
    run = read_run(str(faster(tmp_path, {"nodes": 6})), "adt")
    table, common = settings_table([plain, run])
    rows = {name: tuple(cells) for name, *cells in table.rows}
    assert rows["--method"] == ("ar", "adt") and rows["--nodes"] == ("-", "6")
    assert rows["folder"] == (str(plain.folder), str(run.folder)) and len(rows) == 3
    assert "--temperature 1.0" in common and "hardware device cpu" in common
    assert not settings_table([run])[0].rows and "--nodes 6" in settings_table([run])[1]


def test_differences_of_images():
    from PIL import Image

    one, other = Image.new("RGB", (4, 4), (10, 10, 10)), Image.new("RGB", (4, 4), (10, 16, 10))
    assert difference(one, other)[1] == 2.0
    assert difference(one, Image.new("RGB", (5, 4))) is None
