"""The GPU check, small, on the CPU: every part has its figures, and the same command continues."""

import json
import sys
from contextlib import nullcontext
from pathlib import Path
from subprocess import CompletedProcess
from weakref import ref

import pytest
import torch
from browser import ALL
from ran import ran

from configs.fields import SettingsError
from configs.schema import ROOT
from runs.exactness import Comparison
from scripts.gpu import rounds, tokens
from scripts.gpu.record import Record

CPU = torch.device("cpu")


def check(folder: Path, checkpoint: Path, *words: str) -> CompletedProcess[str]:
    variables = {"PY": sys.executable, "OUT": str(folder), "MODEL": str(checkpoint)}
    return ran(["bash", "scripts/gpu/check.sh", *words], **variables)


def measured(path: Path) -> dict[str, dict]:
    return {line["id"]: line for line in map(json.loads, path.read_text().splitlines())}


@pytest.fixture(scope="module")
def folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    if not ALL:
        pytest.skip("only in make test-all")
    out = tmp_path_factory.mktemp("check") / "out"
    done = check(out, checkpoint, "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith(f"Send back: {out}.tar.gz\n")
    assert (out / "check.md").read_text().startswith("No GPU: skipped CUDA graphs, ")
    return out


def test_tokens_are_compared_for_every_method_and_type(folder: Path) -> None:
    figures = measured(folder / "tokens.jsonl")
    for dtype in ("fp64", "fp32", "bf16"):
        rows = [row for name, row in figures.items() if name.startswith(dtype)]
        assert len(rows) == 5 and all(row.get("wrong", []) == [] for row in rows)
        assert figures[f"{dtype}, --compile auto, configs/paper/adt.yaml"]["wrong"] == []
    assert figures["fp64, --compile auto, configs/paper/adt.yaml"]["identical"] == 1


def test_rounds_keep_the_shape_of_their_trees(folder: Path) -> None:
    figures = measured(folder / "rounds.jsonl")
    rows = {name.split(", ")[0]: row for name, row in figures.items() if "ms_per_round" in row}
    assert len(rows) == 4 and all(row["ms_per_round"] > 0 for row in rows.values())
    assert rows["ar"]["nodes"] == 0 and rows["jacobi"]["nodes"] == 16
    adt, eagle2 = (rows[f"configs/paper/{name}.yaml"] for name in ("adt", "eagle2"))
    assert adt["nodes"] == eagle2["nodes"] > 40, "though random weights accept hardly any draft"


def test_all_tables_are_on_the_page_that_is_sent_back(folder: Path) -> None:
    page = (folder / "check.md").read_text()
    assert "| fp64, --compile auto, jacobi |" in page and "| jacobi, batch 1," in page
    assert "Predicted, not measured: tiny" in page
    assert page.count("| ar (plain decoding) |") == 1 and '{"rows"' not in page
    names = ran(["tar", "-tzf", f"{folder}.tar.gz"]).stdout.split()
    assert "./tokens.jsonl" in names and "./methods_batch2/benchmark.json" in names
    assert not any("random_anole" in name for name in names), "15 GB"


def test_the_same_command_repeats_nothing(folder: Path, checkpoint: Path) -> None:
    before = (folder / "rounds.jsonl").read_text()
    done = check(folder, checkpoint, "--device", "cpu")
    assert done.returncode == 0 and (folder / "rounds.jsonl").read_text() == before
    assert "random_anole" not in done.stderr and "turn" not in done.stderr
    assert done.stderr.count(": skipped") == 0 and done.stderr.count("done (") == 0


def test_a_table_with_wrong_images_is_made_again_and_so_is_another_models(tmp_path) -> None:
    """With a stand-in for Python, whose benchmark writes its figures and then fails."""
    python, folder = tmp_path / "python", tmp_path / "out/methods_batch2"
    text = f"mkdir -p {folder}; touch {folder}/benchmark.json"
    python.write_text(f'#!/bin/sh\n{text}\n[ "$2" != benchmark ] || exit "$FAILS"\n')
    python.chmod(0o755)

    def code(model: str, fails: str) -> int:
        given = {"PY": str(python), "OUT": str(tmp_path / "out"), "MODEL": model, "FAILS": fails}
        return ran(["bash", "scripts/gpu/check.sh", "--device", "cpu"], **given).returncode

    assert [code("one", "1"), code("one", "1"), code("one", "0"), code("one", "1")] == [1, 1, 0, 0]
    assert [code("two", "1"), code("one", "1")] == [1, 1], "the table is no longer the first's"


def test_wrong_images_end_with_an_error(checkpoint, tmp_path, monkeypatch, capsys) -> None:
    found = Comparison(1, 0, 0, ("00000_0",))
    monkeypatch.setattr(tokens, "compare", lambda *_: found)
    given = {"output": str(tmp_path / "tokens.jsonl"), "model_path": str(checkpoint)}
    with pytest.raises(SystemExit, match="^1$"):
        tokens.compare_tokens(**given, device="cpu", images=1, methods="jacobi")
    assert "- fp64, --compile auto, jacobi: wrong: ['00000_0']" in capsys.readouterr().out
    with pytest.raises(SettingsError, match="got another model_path"):
        tokens.compare_tokens(**given | {"model_path": "other"}, device="cpu", images=1)


def test_a_few_methods_also_go_the_other_ways_of_a_gpu() -> None:
    cuda, listed = torch.device("cuda"), f"ar,jacobi,{ROOT}/configs/fast/block58.yaml"
    names = [(mode, tokens.short(entry)) for mode, entry in tokens.ways_of(cuda, listed)]
    default = [("auto", name) for name in ("ar", "jacobi", "configs/fast/block58.yaml")]
    several = [(mode, default[n][1]) for mode in ("off", "inductor") for n in (0, 2)]
    assert names == default + several
    assert tokens.ways_of(CPU, "ar,jacobi") == default[:2], "a CPU has no other one"
    assert set(tokens.SEVERAL_WAYS) <= {tokens.short(entry) for entry in tokens.METHODS}


def test_other_ways_are_timed_with_one_image(tmp_path, monkeypatch) -> None:
    names = []

    def measure(record: Record, name: str, _) -> None:
        names.append(name)
        record.rows[name] = {"id": name}

    monkeypatch.setattr(Record, "measure", measure)
    monkeypatch.setattr(rounds, "ways_of", lambda *_: [("auto", "ar"), ("off", "ar")])
    given = {"output": str(tmp_path / "rounds.jsonl"), "model_path": "none", "device": "cpu"}
    rounds.time_rounds(**given)
    batches = [("auto", 1), ("auto", 8), ("off", 1)]
    assert names == [f"ar, batch {images}, --compile {mode}" for mode, images in batches]


def test_one_model_is_loaded_at_a_time(monkeypatch) -> None:
    alive = []

    def load(settings: str) -> torch.nn.Module:
        assert not any(model() for model in alive)
        alive.append(ref(model := torch.nn.Identity()))
        return model

    monkeypatch.setattr(tokens, "open_session", load)
    opened = tokens.opener()
    assert [opened(mode) is opened(mode) for mode in ("auto", "off", "auto")] == [True] * 3


@pytest.mark.parametrize(("batches", "fails"), [("1,8", False), ("8", True)])
def test_only_batches_may_run_out_of_memory(batches, fails, tmp_path, monkeypatch, capsys) -> None:
    def measure(opened, count, device) -> dict:
        if opened.args[1] == 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried")
        return {"first_seconds": 1.0}

    monkeypatch.setattr(rounds, "measure_rounds", measure)
    given = {"output": str(tmp_path / "rounds.jsonl"), "model_path": "none", "device": "cpu"}
    with pytest.raises(SystemExit) if fails else nullcontext():
        rounds.time_rounds(**given, batches=batches, methods="ar")
    kind = "error: OutOfMemoryError: " if fails else "skipped: "
    assert f"- ar, batch 8, --compile auto: {kind}CUDA out of memory" in capsys.readouterr().out


def test_a_fault_is_noted_and_tried_again(tmp_path, capsys) -> None:
    outcomes = iter(
        [RuntimeError("CUDA error"), ValueError("no compiler"), {"wrong": ["0"]}, {"wrong": []}, {}]
    )

    def figures() -> dict:
        outcome = next(outcomes)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    for outcome_named in ("RuntimeError: CUDA error", "no compiler", "done", "done", ""):
        Record(tmp_path / "record.jsonl", CPU).measure("one", figures)
        assert outcome_named in capsys.readouterr().err
    assert next(outcomes) == {}, "what is measured is kept"
    with pytest.raises(SettingsError, match="got another images"):
        Record(tmp_path / "record.jsonl", CPU, images=3)


def test_an_interrupted_run_times_all_methods_before_it_profiles_one(tmp_path, monkeypatch) -> None:
    """With stand-ins for the measurements; the first timing of `jacobi` is interrupted."""
    made, interrupted = [], [False, True]

    def measure(opened, count, device) -> dict:
        made.append("timed")
        if interrupted and interrupted.pop(0):
            raise KeyboardInterrupt
        return {"ms_per_round": float(len(made)), "first_seconds": 1.0}

    def profile(opened, count, milliseconds) -> dict:
        made.append(milliseconds)
        return {"launches": 9.0}

    monkeypatch.setattr(rounds, "pick_device", lambda _: torch.device("cuda"))
    ways = [("auto", "ar"), ("auto", "jacobi")]
    monkeypatch.setattr(rounds, "ways_of", lambda *_: ways)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "a GPU")
    monkeypatch.setattr(rounds, "measure_rounds", measure)
    monkeypatch.setattr(rounds, "profile_rounds", profile)
    given = {"output": str(tmp_path / "rounds.jsonl"), "model_path": "none", "batches": "1"}
    with pytest.raises(KeyboardInterrupt):
        rounds.time_rounds(**given, methods="ar,jacobi")
    for _ in range(2):
        rounds.time_rounds(**given, methods="ar,jacobi")
    assert made == ["timed", "timed", "timed", 3.0, 1.0], "the last command measures nothing"
    row = measured(tmp_path / "rounds.jsonl")["jacobi, batch 1, --compile auto"]
    assert (row["ms_per_round"], row["launches"]) == (3.0, 9.0)


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(tmp_path) -> None:
    done = check(tmp_path / "out", ROOT / "ckpts" / "tiny", "--small", "--device", "cuda")
    assert done.returncode == 0, done.stdout
    rows = measured(tmp_path / "out" / "rounds.jsonl").values()
    assert all(row["launches"] > 0 for row in rows if "ms_per_round" in row)
