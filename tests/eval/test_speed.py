"""Speed rows by hand, and their tables."""

import csv
import io

import numpy as np
import pytest
from made_runs import made_record, write_records, write_run

from eval.pictures import accepted_lengths, difference
from eval.runs import read_run
from eval.speed import baseline_of, speed_row
from eval.tables import Table, speed_table

GREY = [np.full((8, 8, 3), 20 * number, dtype=np.uint8) for number in range(9)]
PROMPTS = [f"prompt {number}" for number in range(9)]


@pytest.fixture
def plain(tmp_path):
    return read_run(str(write_run(tmp_path / "plain", GREY, PROMPTS)), "plain")


def faster(tmp_path, settings=None, **record):
    figures = {"seconds": 1.0, "target_forwards": 86, "mean_depth": 4.0, "tau": 3.0}
    return write_run(tmp_path / "adt", GREY, PROMPTS, {"method": "adt"} | (settings or {}), **figures | record)


def test_figures_by_hand(plain, tmp_path):
    row = speed_row(read_run(str(faster(tmp_path)), "adt"), plain)
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
            "00005_0", "prompt 5", seed=5, seconds=4.0, tokens_sha256=plain.records["00005_0"]["tokens_sha256"]
        ),
    ]
    write_records(folder, lines)
    row = speed_row(read_run(str(folder), "adt"), plain)
    assert (row.images, row.common, row.identical) == (3, 2, 1)
    assert row.speedup.value == (2 + 2) / (1 + 4) and row.speedup.low is None
    assert any("1 images differ from plain's" in text for text in row.warnings)


def test_nothing_in_common_and_no_baseline(plain, tmp_path):
    folder = faster(tmp_path, seed=77)
    run = read_run(str(folder), "adt")
    row = speed_row(run, plain)
    assert row.common == 0 and row.speedup is None and "no image" in row.warnings[-1]
    assert speed_row(run, None).speedup is None
    assert baseline_of([run], None) is None and baseline_of([run, plain], None) is plain
    assert baseline_of([plain, run], str(folder)) is run


def test_other_laws_and_machines_are_warned_of(plain, tmp_path):
    row = speed_row(read_run(str(faster(tmp_path, {"temperature": 0.0, "batch_size": 4})), "adt"), plain)
    assert row.warnings == ("--temperature 0.0, baseline 1.0", "--batch_size 4, baseline 1")


def test_the_papers_figures_stand_beside_the_same_cell(plain, tmp_path):
    cell = {"model": "anole", "prompt": "MSCOCO2017Val", "temperature": 0.0}
    row = speed_row(read_run(str(faster(tmp_path, cell, lossless=False)), "adt"), plain)
    assert (row.paper.speedup, row.paper.tau, row.paper.mean_depth) == (3.13, 4.86, 5.15)
    table = speed_table([speed_row(plain, plain), row])
    assert table.columns[-3:] == ("paper's SR", "paper's tau", "paper's mean depth")
    assert table.rows[0][-3:] == ("-", "-", "-") and table.rows[1][-3:] == ("3.13", "4.86", "5.15")
    assert "relaxed" in table.rows[1][1]


def test_tables_in_every_format():
    table = Table("t", ("a_b", "50 %"), (("x|y", "1, 2"), ("~", "&")))
    assert table.markdown().splitlines() == ["| a_b | 50 % |", "| --- | --- |", "| x\\|y | 1, 2 |", "| ~ | & |"]
    assert list(csv.reader(io.StringIO(table.csv()))) == [["a_b", "50 %"], ["x|y", "1, 2"], ["~", "&"]]
    assert r"a\_b & 50 \% \\" in table.latex() and r"\textasciitilde{} & \& \\" in table.latex()
    assert "<td>&amp;</td>" in table.html()


def test_accepted_lengths_by_position():
    rounds = [{"position": 1, "accepted": 2}, {"position": 4, "accepted": 0}, {"position": 5, "accepted": 3}]
    lengths = accepted_lengths(rounds, 8, 4)
    assert np.isnan(lengths[0, 0])
    assert lengths.reshape(-1)[1:].tolist() == [2, 2, 2, 0, 3, 3, 3]


def test_differences_of_images():
    from PIL import Image

    one, other = Image.new("RGB", (4, 4), (10, 10, 10)), Image.new("RGB", (4, 4), (10, 16, 10))
    assert difference(one, other)[1] == 2.0
    assert difference(one, Image.new("RGB", (5, 4))) is None
