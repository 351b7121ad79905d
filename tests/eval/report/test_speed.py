"""Speed rows by hand, their tables and their words."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from made_runs import made_record, write_records, write_run

from configs.model import TIMED
from eval.metrics.base import Score
from eval.report.evaluate import _remarks
from eval.report.report import summary
from eval.report.run import Run, read_run
from eval.report.speed import SpeedRow, baseline_of, compared, speed_row
from eval.report.tables import metric_table, settings_table, sources_table, speed_table

GREY = [np.full((8, 8, 3), 20 * number, dtype=np.uint8) for number in range(9)]
PROMPTS = [f"prompt {number}" for number in range(9)]
FASTER = {"seconds": 1.0, "target_forwards": 86, "mean_nodes": 6.0, "tau": 3.0}
FASTER |= {"mean_drafted_depth": 5.0, "mean_verified_depth": 4.0}


@pytest.fixture
def make(tmp_path):
    """Write and read a run of nine images with other settings and records than plain decoding."""

    def run(name: str, settings: dict | None = None, **record: object) -> Run:
        return read_run(str(write_run(tmp_path / name, GREY, PROMPTS, settings, **record)), name)

    return run


@pytest.fixture
def plain(make) -> Run:
    return make("plain")


@pytest.fixture
def adt(make):
    """The same for a run by adt, which is twice as fast."""
    return lambda settings=None, **record: make(
        "adt", {"method": "adt"} | (settings or {}), **(FASTER | record)
    )


def row_of(run: Run, baseline: Run) -> SpeedRow:
    return speed_row(run, compared(run, baseline))


def cells_of(row: SpeedRow) -> dict[str, str]:
    table = speed_table([row])
    return dict(zip(table.columns, table.rows[0], strict=True))


def test_runs_of_other_distributions_are_marked(make):
    rows = [speed_row(make(f"k{k}", {"top_k": k, "cfg": 3.0}), None) for k in (0, 4)]
    table = speed_table(rows)
    column = table.columns.index("distribution")
    assert [cells[column] for cells in table.rows] == ["top_k 0", "top_k 4"]
    score = Score("clip", value=-0.00001, count=2, network="n", resize="r", higher=True)
    images = metric_table({row.run: {"clip": score} for row in rows}, rows)
    assert images.columns == ("figure", "k0 (top_k 0)", "k4 (top_k 4)")
    assert images.rows[0][1] == "0.0000"
    assert "distribution" not in speed_table(rows[:1]).columns
    assert metric_table({"k0": {"clip": score}}, rows[:1]).columns == ("figure", "k0")


def test_figures_by_hand(plain, adt):
    row = row_of(adt(), plain)
    assert (row.images, row.seconds, row.forwards) == (9, 1.0, 86)
    assert (row.drafted_depth, row.verified_depth) == (5.0, 4.0)
    assert row.tau == 255 / 85
    assert (row.speedup.value, row.compression) == (2.0, pytest.approx(256 / 86))
    assert (row.common, row.identical, row.warnings, row.paper) == (9, 9, (), None)


def test_images_are_matched_by_prompt_and_seed(plain, adt):
    run = adt()
    same = plain.records["00005_0"]["tokens_sha256"]
    records = [
        made_record("00007_0", "prompt 3", seed=3, seconds=1.0, tokens_sha256="other"),
        made_record("00003_0", "prompt 3", seed=4, seconds=9.0, tokens_sha256="x"),
        made_record("00005_0", "prompt 5", seed=5, seconds=4.0, tokens_sha256=same),
    ]
    write_records(run.folder, records)
    row = row_of(read_run(str(run.folder), "adt"), plain)
    assert (row.images, row.common, row.identical) == (3, 2, 1)
    assert row.speedup.value == (2 + 2) / (1 + 4) and row.speedup.low is None
    assert any("1 images differ from plain's" in text for text in row.warnings)
    assert (
        "compared with plain on 2 of 3 images; seconds, tau and forward passes are of all"
        in row.warnings
    )


def test_nothing_in_common_and_no_baseline(plain, adt):
    run = adt(seed=77)
    row = row_of(run, plain)
    assert row.common == 0 and row.speedup is None and "no image" in row.warnings[-1]
    assert speed_row(run, None).speedup is None
    assert baseline_of(run, [run], None) is None and baseline_of(run, [run, plain], None) is None
    assert baseline_of(plain, [plain, run], str(run.folder)).run is run


def test_a_baseline_of_slices_is_the_run_of_all_of_them(make):
    first = make("first")
    one, two = (replace(first, folders=(*first.folders, make(name).folder)) for name in ("a", "b"))
    for run in (first, one, two):
        given = "+".join(map(str, run.folders))
        assert baseline_of(first, [one, two, first], given).run is run


def test_each_run_has_the_baseline_of_its_own_distribution(plain, make, adt):
    cold = {"temperature": 0.0}
    other = make("adt0", cold | {"method": "adt", "verifier": "rejection"}, seconds=2.0)
    runs = [plain, make("cold", cold, seconds=6.0), adt(), other]
    rows = [speed_row(run, baseline_of(run, runs, None)) for run in runs]
    assert [row.baseline for row in rows] == ["plain", "cold", "plain", "cold"]
    assert [row.speedup.value for row in rows] == [1, 1, 2, 3]
    rows = [speed_row(run, baseline_of(run, runs, str(plain.folder))) for run in runs]
    assert speed_table(rows).rows[1][4:6] == ("-", "-") and rows[3].speedup is None


def test_other_distributions_are_not_compared_and_other_batch_sizes_are_marked(plain, adt, make):
    row = row_of(adt({"temperature": 0.0, "batch_size": 4}), plain)
    assert row.speedup is row.identical is row.baseline is None
    assert row.warnings == ("not compared with plain: --temperature 0.0, baseline 1.0",)
    row = row_of(make("batch", {"method": "adt", "batch_size": 4}, **FASTER), plain)
    assert row.warnings == ("--batch_size 4, baseline 1",)
    cells = cells_of(row)
    assert cells["sequential speed-up"].startswith("2.00 [") and cells[
        "sequential speed-up"
    ].endswith(" (!)")
    assert cells["same images"] == "9/9 (!)"


def test_other_ways_to_run_are_marked(plain, make):
    assert row_of(make("off", {"compile": "off"}), plain).warnings == (
        "--compile 'off', baseline 'auto'",
    )
    other = {"cfg_mode": "sequential", "device_map": "auto"}
    assert row_of(plain, make("other", other)).warnings == (
        "--cfg_mode 'parallel', baseline 'sequential'",
        "--device_map 'single', baseline 'auto'",
    )
    two = replace(plain, manifest=plain.manifest | {"processes": 2})
    assert row_of(two, plain).warnings == ("other number of processes than plain",)
    by_torch, compiled = (
        replace(plain, manifest=plain.manifest | {"hardware": {"device": "cpu", "kernels": name}})
        for name in ("torch", "compiled")
    )
    assert row_of(by_torch, compiled).warnings == ("other hardware (kernels) than plain",)


@pytest.mark.parametrize(
    ("earlier", "doubted"),
    [
        ({}, None),
        ({"batch_size": 4}, "batch_size"),
        ({"compile": "off"}, "compile"),
        ({"cfg_mode": "sequential"}, "cfg_mode"),
        ({"device_map": "auto"}, "device_map"),
        ({"processes": 2}, "number of processes"),
        ({"hardware": {"device": "cuda"}}, "hardware (device)"),
        ({"versions": {"torch": "y"}}, "versions (torch)"),
        ({"revision": None}, None),  # without git
        ({"revision": "a+changes"}, "revision"),
    ],
)
def test_a_run_resumed_under_other_conditions_is_marked(plain, adt, earlier, doubted) -> None:
    run = adt()
    usual = TIMED | {name: run.manifest[name] for name in ("hardware", "versions", "processes")}
    commands = [usual, usual | earlier]
    resumed = replace(run, manifest=run.manifest | {"revision": "a", "earlier": commands})
    for run, baseline, words in ((resumed, plain, ""), (plain, resumed, "baseline ")):
        row = row_of(run, baseline)
        assert row.warnings == ((f"{words}resumed with other {doubted}",) if doubted else ())
        assert row.doubtful is bool(doubted)
    assert row_of(resumed, resumed).warnings == ()


@pytest.mark.parametrize(
    ("seconds", "baseline", "noise"),
    [(0.7, "ar", False), (0.6, "ar", True), (0.2, "static", False)],
)
def test_only_a_speed_up_over_plain_decoding_cannot_exceed_tau(adt, make, seconds, baseline, noise):
    row = row_of(adt(seconds=seconds), make("baseline", {"method": baseline}))
    assert row.tau == 3.0 and row.spoilt is noise
    warning = f"a speed-up of {2 / seconds:.2f} exceeds tau 3.00"
    assert any(warning in text for text in row.warnings) is noise
    cells = cells_of(row)
    assert cells["sequential speed-up"].endswith(" (!)") is noise and cells["same images"] == "9/9"


@pytest.mark.parametrize(
    ("spent", "gpu", "share"), [(1.9, None, None), (0.7, None, "35%"), (0.7, "H100", None)]
)
def test_time_that_was_not_decoding_marks_a_speed_up(make, plain, spent, gpu, share) -> None:
    """As of a run that was stopped for a while; on a GPU the process waits anyway."""
    run = make("adt", {"method": "adt"}, target_forwards=86, cpu_seconds=spent)
    machine = {"hardware": {"device": "cpu", "gpu": gpu}}
    row = row_of(*(replace(one, manifest=one.manifest | machine) for one in (run, plain)))
    said = [text for text in row.warnings if "the process had the CPU for only" in text]
    start = f"the process had the CPU for only {share}"
    assert [text.startswith(start) for text in said] == ([True] if share else [])
    assert cells_of(row)["sequential speed-up"].endswith(" (!)") is bool(share)


@pytest.mark.parametrize(("seconds", "marked"), [(0.09, False), (0.3, True)])
@pytest.mark.parametrize(("which", "named"), [("adt", ""), ("plain", "plain: ")])
def test_a_process_that_was_stopped_marks_a_speed_up_on_any_device(
    make, seconds, marked, which, named
) -> None:
    pauses = {which: {"stopped_seconds": seconds}}
    runs = [
        make("adt", {"method": "adt"}, **FASTER | pauses.get("adt", {})),
        make("plain", **pauses.get("plain", {})),
    ]
    gpu = {"hardware": {"gpu": "H100"}}
    row = row_of(*(replace(run, manifest=run.manifest | gpu) for run in runs))
    said = [text for text in row.warnings if text.startswith(f"{named}the process was stopped")]
    assert len(said) == row.spoilt == marked


@pytest.mark.parametrize(("spent", "said"), [((8.0, 4.0), 0), ((16.0, 4.0), 1)])
def test_many_threads_hide_no_pause(make, spent, said) -> None:
    """A process with eight threads that was stopped half of the time had the CPU for 400 %."""
    runs = [
        make(name, {"method": name}, **FASTER | {"seconds": seconds, "cpu_seconds": cpu})
        for name, seconds, cpu in (("ar", 2.0, spent[0]), ("adt", 1.0, spent[1]))
    ]
    row = row_of(runs[1], runs[0])
    assert sum("CPU time 4.00, more than 20% apart" in text for text in row.warnings) == said
    assert row.spoilt is bool(said) and len(row.warnings) == said


@pytest.mark.parametrize(("temperature", "expected"), [(0.0, True), (1.0, False)])
def test_rejection_draws_the_same_tokens_at_temperature_zero_only(make, temperature, expected):
    distribution = {"temperature": temperature}
    rejection = distribution | {"method": "adt", "verifier": "rejection"}
    run = make("adt", rejection, **FASTER, tokens_sha256="x")
    row = row_of(run, make("plain", distribution))
    assert row.lossless and row.same_tokens is expected
    assert any("9 images differ" in text for text in row.warnings) is expected
    assert ("same distribution, other images" in cells_of(row)["method"]) is not expected


def test_the_papers_figures_are_shown_next_to_the_same_cell(plain, adt, make):
    cell = {"model": "anole", "prompt": "MSCOCO2017Val", "temperature": 0.0}
    relaxed = cell | {"method": "adt", "verifier": "path_relax"}
    assert row_of(make("path_relax", relaxed, **FASTER, lossless=False), plain).paper is None
    row = row_of(adt(cell | {"verifier": "lantern"}, lossless=False), plain)
    assert (row.paper.speedup, row.paper.tau, row.paper.drafted_depth) == (3.13, 4.86, 5.15)
    table = speed_table([row_of(plain, plain), row])
    assert table.columns[-3:] == ("paper's speed-up", "paper's tau", "paper's drafted depth")
    assert table.rows[0][-3:] == ("-", "-", "-") and table.rows[1][-3:] == ("3.13", "4.86", "5.15")
    assert "relaxed" in table.rows[1][1]


def test_figures_and_runs_that_rest_on_the_same_share_a_row():
    def scores(count: int) -> dict[str, Score]:
        return {name: Score(name, 1.0, count, "network", "resize") for name in ("a", "b")}

    table = sources_table({"x": scores(9), "y": scores(9), "z": scores(8)})
    assert [row[:3] for row in table.rows] == [("a, b", "x, y", "9"), ("a, b", "z", "8")]


def test_settings_that_differ_stand_in_columns(plain, adt):
    run = adt({"nodes": 6})
    table, common = settings_table([plain, run])
    rows = {name: tuple(cells) for name, *cells in table.rows}
    assert rows["--method"] == ("ar", "adt") and rows["--nodes"] == ("-", "6")
    assert rows["folder"] == (str(plain.folder), str(run.folder)) and len(rows) == 3
    assert "--temperature 1.0" in common and "hardware device cpu" in common
    assert not settings_table([run])[0].rows and "--nodes 6" in settings_table([run])[1]


@pytest.mark.parametrize(
    ("record", "same", "colour"),
    [
        ({}, "9 of 9 images identical to plain's", "good"),
        ({"mean_nodes": 0.0}, "9 of 9 images identical to plain's, inconclusive: no", ""),
        ({"tokens_sha256": "x"}, "0 of 9 images identical to plain's", "bad"),
        ({"lossless": False}, "9 of 9 images identical to plain's; a relaxed rule, other", "bad"),
    ],
)
def test_words_for_whether_images_are_the_same(plain, adt, record, same, colour) -> None:
    words = summary(row_of(adt(**record), plain))
    assert words.fast == "speed-up 2.00 over plain; 1 s per image"
    assert words.same.startswith(same) and words.colour == colour


def test_words_for_doubts_and_runs_that_are_compared_with_nothing(plain, adt, make) -> None:
    assert summary(row_of(plain, plain)).fast == "2 s per image: the baseline"
    assert "plain (!);" in summary(row_of(make("fast", {"method": "adt"}, seconds=0.1), plain)).fast
    words = summary(speed_row(adt(), None))
    assert "no baseline" in words.fast and "no baseline" in words.same
    rejection = {"verifier": "rejection"}
    assert summary(row_of(make("rejection", rejection), plain)).colour == ""


def test_a_doubt_about_the_baseline_is_said_once() -> None:
    doubts = {"ar": ("it waited",), "adt": ("ar: it waited", "noise")}
    rows = [SimpleNamespace(run=r, warnings=w, distribution={}) for r, w in doubts.items()]
    assert _remarks({}, rows, []) == [["ar: it waited", "adt: noise"], []]
