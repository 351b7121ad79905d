"""The GPU check, small, on the CPU: every part has its figures, and the same command continues."""

import sys
from contextlib import nullcontext
from pathlib import Path
from subprocess import CompletedProcess
from weakref import ref

import pytest
import torch
from browser import ALL
from ran import ran

from configs.schema import ROOT
from runs.exactness import Comparison
from scripts.gpu import rounds, tokens
from support.json_lines import read_lines

CPU = torch.device("cpu")


def check(folder: Path, checkpoint: Path, *words: str) -> CompletedProcess[str]:
    variables = {"PY": sys.executable, "OUT": str(folder), "MODEL": str(checkpoint)}
    return ran(["bash", "scripts/gpu/check.sh", *words], **variables)


def rows(folder: Path, name: str) -> list[list[str]]:
    """The cells of a table, without its heading."""
    lines = (folder / name).read_text().splitlines()
    return [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")][2:]


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
    found = rows(folder, "tokens.md")
    for dtype in ("fp64", "fp32", "bf16"):
        assert len([cells for cells in found if cells[0].startswith(dtype)]) == 5
    assert all(cells[4] in ("[]", "-") for cells in found), "none is wrong"
    assert ["fp64, --compile auto, configs/paper/adt.yaml", "1", "1"] in [c[:3] for c in found]


def test_rounds_keep_the_shape_of_their_trees(folder: Path) -> None:
    nodes = {cells[0].split(", ")[0]: float(cells[1]) for cells in rows(folder, "rounds.md")}
    assert len(nodes) == 4 and nodes["ar"] == 0 and nodes["jacobi"] == 16
    adt, eagle2 = (nodes[f"configs/paper/{name}.yaml"] for name in ("adt", "eagle2"))
    assert adt == eagle2 > 40, "though random weights accept hardly any draft"


def test_all_tables_are_on_the_page_that_is_sent_back(folder: Path) -> None:
    page = (folder / "check.md").read_text()
    assert "| fp64, --compile auto, jacobi |" in page and "| jacobi, batch 1," in page
    assert "Predicted, not measured: tiny" in page
    assert page.count("| ar (plain decoding) |") == 1 and '{"rows"' not in page
    names = ran(["tar", "-tzf", f"{folder}.tar.gz"]).stdout.split()
    assert "./measurements.jsonl" in names and "./methods_batch2/benchmark.json" in names
    assert not any("random_anole" in name for name in names), "15 GB"


def test_the_same_command_repeats_nothing(folder: Path, checkpoint: Path) -> None:
    files = [folder / "measurements.jsonl", folder / "methods_batch2/measurements.jsonl"]
    before = [path.read_bytes() for path in files]
    assert check(folder, checkpoint, "--device", "cpu").returncode == 0
    assert [path.read_bytes() for path in files] == before


def test_wrong_images_end_with_an_error(checkpoint, tmp_path, monkeypatch, capsys) -> None:
    found = Comparison(1, 0, 0, ("00000_0",))
    monkeypatch.setattr(tokens, "compare", lambda *_: found)
    given = {"output": str(tmp_path / "lines.jsonl"), "model_path": str(checkpoint)}
    with pytest.raises(SystemExit, match="^1$"):
        tokens.compare_tokens(**given, device="cpu", images=1, methods="jacobi")
    assert "- fp64, --compile auto, jacobi: wrong: ['00000_0']" in capsys.readouterr().out
    monkeypatch.undo()
    tokens.compare_tokens(**given, device="cpu", images=1, methods="jacobi")
    assert "wrong: " not in capsys.readouterr().out


def test_a_few_methods_also_go_the_other_ways_of_a_gpu() -> None:
    cuda, listed = torch.device("cuda"), f"ar,jacobi,{ROOT}/configs/fast/block58.yaml"
    names = [(mode, tokens.short(entry)) for mode, entry in tokens.ways_of(cuda, listed)]
    default = [("auto", name) for name in ("ar", "jacobi", "configs/fast/block58.yaml")]
    several = [(mode, default[n][1]) for mode in ("off", "inductor") for n in (0, 2)]
    assert names == default + several
    assert tokens.ways_of(CPU, "ar,jacobi") == default[:2], "a CPU has no other one"
    assert set(tokens.SEVERAL_WAYS) <= {tokens.short(entry) for entry in tokens.METHODS}


def test_one_model_is_loaded_at_a_time(monkeypatch) -> None:
    alive = []

    def load(settings: str) -> torch.nn.Module:
        assert not any(model() for model in alive)
        alive.append(ref(model := torch.nn.Identity()))
        return model

    monkeypatch.setattr(tokens, "open_session", load)
    opened = tokens.opener()
    assert [opened(mode) is opened(mode) for mode in ("auto", "off", "auto")] == [True] * 3


@pytest.mark.parametrize("size, kind", [(8, "skipped"), (1, "error")])
def test_only_batches_may_run_out_of_memory(
    size, kind, checkpoint, tmp_path, monkeypatch, capsys
) -> None:
    def measure(opened, count, device) -> dict:
        if opened.args[1] == size:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried")
        return {"ms_per_round": 1.0, "first_seconds": 1.0}

    monkeypatch.setattr(rounds, "measure_rounds", measure)
    given = {"output": str(tmp_path / "lines.jsonl"), "device": "cpu", "methods": "ar"}
    with nullcontext() if kind == "skipped" else pytest.raises(SystemExit):
        rounds.time_rounds(**given, model_path=str(checkpoint), batches="1,8")
    said = capsys.readouterr().out
    assert f"- ar, batch {size}, --compile auto: {kind}: " in said and "CUDA out of memory" in said
    assert len(read_lines(tmp_path / "lines.jsonl")) == 1, "what is measured is kept"


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu(tmp_path) -> None:
    done = check(tmp_path / "out", ROOT / "ckpts" / "tiny", "--small", "--device", "cuda")
    assert done.returncode == 0, done.stdout
    assert all(float(cells[4]) > 0 for cells in rows(tmp_path / "out", "rounds.md"))
