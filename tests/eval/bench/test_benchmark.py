"""`benchmark`: what it prints is what was measured, against our own baseline; `--sweep`: a cell is
measured once, whatever interrupts, and table and pictures show it.
"""

import csv
import json
import re
import shutil
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from browser import thinned
from matplotlib.figure import Figure
from PIL import Image

import main
from configs.methods import MethodSettings
from decoding.engine import Engine
from eval.bench.bench import Bench
from eval.bench.picture import _points, draw_speed
from runs.measure import BASELINE, warm_up
from runs.session import Session
from support.json_lines import read_lines
from support.locks import claim
from support.output import remark
from support.progress import Progress
from support.provenance import CONTENT

pytestmark = pytest.mark.usefixtures("read_once")
METHODS = "ar,static:tree=chain,eagle2:proposal=topk,eagle2:depth=3:width=4:nodes=8,adt"


def benchmark(checkpoint: Path, *words: str) -> int:
    given = ["--prompt=a cat, #1", f"--model_path={checkpoint}", "--device=cpu", "--dtype=fp64"]
    return main.main(["benchmark", *given, *words])


@pytest.fixture(scope="module")
def document(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder, out, err = tmp_path_factory.mktemp("benchmark"), StringIO(), StringIO()
    words = (f"--methods={METHODS}", "--num_images=2", "--repeats=2", f"--output_dir={folder}")
    with redirect_stdout(out), redirect_stderr(err):
        assert benchmark(checkpoint, *words) == 0
    assert err.getvalue().count(" s an image by ar: ") == 1  # how long all will take
    heading, blank, columns, _, *rows, last = out.getvalue().strip().splitlines()
    assert heading.endswith("; prompts: a cat, #1; temperature 1; guidance 3") and not blank
    assert columns.split(" | ")[1:3] == ["seconds per image", "tokens/s"]
    assert columns.endswith("| accepted length | speed-up (95 %) | same images |")
    names = [row.split(" | ")[0] for row in rows]
    assert names[2:4] == ["| eagle2, topk drafts", "| eagle2, depth=3, width=4, nodes=8"]
    assert all(row.startswith("(!) ") for row in rows[5:])  # what a busy machine spoilt
    assert json.loads((folder / "benchmark.json").read_text()) == json.loads(last)
    return json.loads(last)


def test_rows_fit_each_other_and_have_the_tokens_of_the_baseline(document: dict) -> None:
    rows = document["rows"]
    assert [row["method"] for row in rows] == ["ar", "static", "eagle2", "eagle2", "adt"]
    for row in rows:
        assert row["lossless"] and (row["identical"], row["near_ties"], row["wrong"]) == (2, 0, [])
        assert row["tokens_per_second"] * row["seconds_per_image"] == pytest.approx(16)
        assert row["tau"] >= 1 and 0 < row["overhead_share"] < 1
        assert (row["target_forwards"] - 1) * row["tau"] == pytest.approx(15)
        spent = row["ms_per_round"]
        assert spent["draft"] + spent["verify"] <= spent["round"] * 1.001
        assert spent["target_forward"] <= spent["verify"]
        assert row["speedup_low"] is None and row["speedup_cpu"] > 0  # four ratios
    assert 0 < rows[3]["mean_nodes"] <= 8 and rows[3]["mean_verified_depth"] <= 3
    ar = rows[0]  # the round with the empty tree
    assert (ar["tau"], ar["speedup"], ar["target_forwards"]) == (1, 1, 16)
    assert ar["mean_nodes"] == ar["mean_verified_depth"] == 0
    assert ar["proposal"] is None and ar["ms_per_draft_forward"] is None


def test_at_temperature_0_an_image_is_measured_once(checkpoint, capsys) -> None:
    """Or equal images would count as several in the interval of a speed-up."""
    words = ("--num_images=3", "--temperature=0", "--methods=ar", "--repeats=1", "--warmup=0")
    remark.cache_clear()
    assert benchmark(checkpoint, *words) == 0
    said = capsys.readouterr()
    assert "--temperature 0: 1 instead of 3 images" in said.err
    assert json.loads(said.out.splitlines()[-1])["rows"][0]["images"] == 1


def test_figures_of_an_added_baseline_are_on_disk_before_print(checkpoint, tmp_path, capsys):
    words = ("--methods=adt", "--repeats=1", "--warmup=0", "--temperature=0")
    with open("/dev/full", "w") as full, redirect_stdout(full):
        assert benchmark(checkpoint, *words, f"--output_dir={tmp_path}") == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: ")
    rows = json.loads((tmp_path / "benchmark.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["ar", "adt"] and rows[1]["identical"] == 1


@pytest.mark.parametrize("launched", thinned([7, 15]))
def test_replayed_rounds_have_no_times_of_their_parts(
    launched, checkpoint, tmp_path, monkeypatch
) -> None:
    """On a GPU the first rounds are launched, here a part or all of the 15 of `ar`."""
    run, rounds = Engine._run, count()

    def replayed(engine: Engine, *given: object) -> object:
        engine.watch.pause(next(rounds) >= launched)
        return run(engine, *given)

    monkeypatch.setattr(Engine, "_run", replayed)
    words = ("--methods=ar,adt", "--repeats=2", "--warmup=0", f"--output_dir={tmp_path}")
    assert benchmark(checkpoint, *words) == 0
    for row in json.loads((tmp_path / "benchmark.json").read_text())["rows"]:
        assert row["seconds_per_image"] > 0 and list(row["ms_per_round"]) == ["round"]
        names = "ms_per_target_forward", "ms_per_draft_forward", "overhead_share", "draft_forwards"
        assert {row[name] for name in (*names, "levels")} == {None}


def test_warming_up_a_gpu_takes_a_batch(monkeypatch) -> None:
    """For another number of images it would capture rounds again."""
    seen = []
    monkeypatch.setattr("runs.measure.measure", lambda engine, jobs: seen.append(len(jobs)))
    for device in map(torch.device, ("cpu", "cuda")):
        warm_up(SimpleNamespace(target=SimpleNamespace(device=device), batch=2), [None] * 3)
    assert seen == [1, 2]


FILE = """base: adt
axes:
  nodes: [2, 6]
  adt_init: [horizontal, fixed]
methods: eagle2:nodes=4
"""
CELLS = [f"adt:nodes={nodes}:adt_init={i}" for nodes in (2, 6) for i in ("horizontal", "fixed")]
CELLS.append("eagle2:nodes=4")


@pytest.fixture
def sweep(checkpoint, tmp_path, monkeypatch):
    """Run the sweep of FILE in tmp_path/out, as on an idle machine; returns the exit code."""
    monkeypatch.setattr("eval.bench.speedup._doubts", lambda *_: [])
    (tmp_path / "mine.yaml").write_text(FILE)
    place = f"--sweep={tmp_path / 'mine.yaml'}", f"--output_dir={tmp_path / 'out'}"
    return partial(benchmark, checkpoint, *place, "--num_images=2", "--repeats=1", "--warmup=0")


@pytest.fixture
def measured(monkeypatch) -> list[MethodSettings]:
    """The methods that were measured, one by one; after `limit` of them comes a Ctrl-C."""
    measure, seen = Bench._measure, Counted()

    def counted(bench, method, *given):
        if len(seen) == seen.limit:
            raise KeyboardInterrupt
        seen.append(method)
        return measure(bench, method, *given)

    monkeypatch.setattr(Bench, "_measure", counted)
    return seen


class Counted(list):
    limit = None


def lines(folder: Path) -> list[dict]:
    return read_lines(folder / "out" / "measurements.jsonl")


def test_the_progress_says_which_method_runs_and_how_fast() -> None:
    progress = SimpleNamespace(words="")
    seen = Bench(None, None, progress, None)._rounds_per_second("adt, 2 of 3")
    seen()
    assert re.fullmatch(r"now adt, 2 of 3, [0-9.]+ rounds/s", progress.words)


def test_the_rate_counts_the_seconds_of_the_first_image(monkeypatch) -> None:
    """The clock begins before a method is measured, not with its first image."""
    progress = Progress("measuring", 2, shown=False)
    monkeypatch.setattr("eval.bench.bench.measure", lambda *_, **__: progress.started)
    session = SimpleNamespace(open_engine=lambda _: None)
    assert Bench(session, None, progress, lambda _: None)._measure(BASELINE, [], "ar") is not None


def test_an_interrupted_sweep_measures_no_turn_twice(
    sweep, measured, tmp_path, monkeypatch, capsys
) -> None:
    measured.limit = 7  # three turns of two methods, and half of the fourth
    assert sweep() == 130
    assert "the same command continues where it stopped" in capsys.readouterr().err
    before, path = lines(tmp_path), tmp_path / "out" / "measurements.jsonl"
    assert len(before) == 6 and not path.with_name("speed.png").exists()
    path.write_text(path.read_text() + '{"id": "cut')  # a kill in the middle of a line
    measured.limit = None
    assert sweep() == 0
    assert lines(tmp_path)[:6] == before and len(lines(tmp_path)) == 20 == len(measured) - 1
    shown = capsys.readouterr().out.splitlines()
    rows = json.loads(path.with_name("benchmark.json").read_text())["rows"]
    assert [row["cell"] for row in rows] == CELLS
    last = max(rows, key=lambda row: row["speedup"])["cell"]
    assert shown[2].startswith("| cell | seconds per image |")
    assert "| accepted length | drafted depth | speed-up (95 %) |" in shown[2]
    assert [text for text in shown if text.startswith("|")][-1].startswith(f"| {last} |")
    assert json.loads(shown[-1])["best"] is None  # two images are too few for an interval
    assert path.with_name("table.md").read_text().splitlines() == shown[:-1]
    written = list(csv.DictReader(path.with_name("table.csv").open()))
    assert [float(row["speed-up (95 %)"]) for row in written] == sorted(
        float(f"{row['speedup']:.2f}") for row in rows
    )
    assert path.with_name("table.tex").read_text().count(r" \\") == 1 + len(rows)
    picture = Image.open(tmp_path / "out" / "speed.png").convert("RGB")
    assert len(picture.getcolors(2**24)) > 50
    assert (tmp_path / "out" / "speed.pdf").read_bytes().startswith(b"%PDF")
    monkeypatch.setattr("eval.bench.picture.draw_speed", lambda *_: None)
    assert sweep("--cells=1-2") == 0 and len(measured) == 21, "all is there"
    assert sweep("--cells=1-2", "--seed=1") == 0 and len(measured) == 25, "other images"
    row = rows[3]
    assert (row["cell"], row["nodes"], row["adt_init"]) == (CELLS[3], 6, "fixed")
    assert row["ar"]["method"] == "ar" and row["ar"]["tau"] == 1
    ratio = row["ar"]["seconds_per_image"] / row["seconds_per_image"]
    assert ratio / 2 < row["speedup"] < ratio * 2 and row["speedup_low"] is None


def test_the_picture_says_what_its_points_and_lines_are(monkeypatch, tmp_path) -> None:
    drawn = []
    monkeypatch.setattr("eval.bench.picture.save_figure", lambda figure, _: drawn.append(figure))
    ends = {f"{name}_{end}": None for name in ("speedup", "tau") for end in ("low", "high")}
    rows = [
        {"nodes": n, "speedup": 1.5, "tau": 2.0, "doubts": [], "lossless": True} | ends
        for n in (6, 9)
    ]
    rows = [row | {"mean_drafted_depth": 2.0} for row in rows]
    draw_speed(rows, [], ["nodes"], tmp_path)
    draw_speed(
        [row | {"speedup_low": 1.4, "speedup_high": 1.6} for row in rows], [], ["nodes"], tmp_path
    )
    plain, sure = (figure.axes[0] for figure in drawn)
    assert (plain.get_ylabel(), sure.get_ylabel()) == (
        "speed-up over ar",
        "speed-up over ar (95 %)",
    )
    shown = [text.get_text() for text in plain.get_legend().get_texts()]
    assert shown == ["a cell", "the best of each value"]
    assert any(list(line.get_ydata()) == [1, 1] for line in plain.lines)
    colours = {panel.lines[0].get_color() for panel in drawn[0].axes[:2]}
    assert len(colours) == 1


def test_other_conditions_are_measured_apart(checkpoint, tmp_path, measured, monkeypatch) -> None:
    model = shutil.copytree(checkpoint, tmp_path / "model")
    words = "--methods=adt", "--repeats=1", "--warmup=0", f"--output_dir={tmp_path / 'out'}"

    def new(*more: str) -> int:
        before = len(measured)
        assert benchmark(model, *words, *more) == 0
        return len(measured) - before

    assert new() == 2 and new() == 0
    assert (
        new("--temperature=0.5") == 2 and new("--compile=off") == 2 and new("--num_images=2") == 2
    )
    assert new() == 0, "what was measured under the first conditions is still there"
    with (model / "drafter" / "config.json").open("a") as file:
        file.write(" ")
    assert new() == 2, "another drafter"
    monkeypatch.setattr("runs.conditions.cpu_name", lambda: "an abacus")
    assert new() == 2
    monkeypatch.setattr("eval.bench.measurements.program", lambda: "other code")
    assert new() == 2 and new() == 0
    depends = lines(tmp_path)[-1]["conditions"]
    assert depends["model_path"].startswith(CONTENT), "of the weights, not a path"
    assert depends["methods"] == ["ar (plain decoding)", "adt"]


def test_what_is_marked_is_measured_again_only_if_asked(
    checkpoint, tmp_path, measured, monkeypatch
) -> None:
    doubts = ["noise"]
    monkeypatch.setattr("eval.bench.speedup._doubts", lambda *_: doubts)
    words = "--methods=jacobi", "--repeats=1", "--warmup=0", f"--output_dir={tmp_path / 'out'}"
    for more, made in (((), 2), ((), 2), (("--remeasure",), 4)):
        assert benchmark(checkpoint, *words, *more) == 0 and len(measured) == made
    doubts.clear()
    assert benchmark(checkpoint, *words, "--remeasure") == 0 and len(measured) == 4


def test_a_method_that_does_not_fit_into_memory_is_left_out(
    checkpoint, tmp_path, monkeypatch, capsys
) -> None:
    opened = Session.open_engine

    def open_engine(session, method):
        if method.window == 9:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return opened(session, method)

    monkeypatch.setattr(Session, "open_engine", open_engine)
    remark.cache_clear()
    words = "--methods=jacobi:window=9,jacobi", "--repeats=1", f"--output_dir={tmp_path}"
    assert benchmark(checkpoint, *words) == 1
    rows = json.loads((tmp_path / "benchmark.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["ar", "jacobi"] and rows[1]["window"] == 16
    said = capsys.readouterr().err
    assert "note: jacobi, window=9: does not fit into memory, so not measured" in said


def test_a_file_of_another_program_is_named(sweep, tmp_path, capsys) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "measurements.jsonl").write_text("hello\n{}\n")
    assert sweep() == 2
    words = "measurements.jsonl, line 1: expected lines that this program wrote, got 'hello'"
    assert words in capsys.readouterr().err


def test_one_process_at_a_time_measures(sweep, tmp_path, monkeypatch, capsys) -> None:
    (tmp_path / "out").mkdir()
    with claim("", tmp_path / "out" / "measurements.jsonl"):
        assert sweep() == 2
    assert "expected one process at a time, got another process using it" in capsys.readouterr().err
    launch = {"WORLD_SIZE": "2", "RANK": "1", "MASTER_ADDR": "here", "MASTER_PORT": "1"}
    for name, value in launch.items():
        monkeypatch.setenv(name, value)
    assert sweep() == 2
    assert "expected one process, got 2 processes" in capsys.readouterr().err


@pytest.mark.parametrize("doubts, joined", [([], [2.0]), (["noise"], [3.0])])
def test_a_line_joins_relaxed_cells_where_no_lossless_one_is_sure(doubts, joined) -> None:
    panel = Figure().subplots()
    sure = {"nodes": 4, "tau": 3.0, "lossless": False, "doubts": [], "tau_low": None}
    sure["tau_high"] = None
    other = sure | {"nodes": 2, "tau": 2.0, "lossless": True, "doubts": doubts}
    _points(panel, [sure, other], "nodes", "tau")
    points, line = panel.lines
    assert len(points.get_ydata()) == 2 and list(line.get_ydata()) == joined
