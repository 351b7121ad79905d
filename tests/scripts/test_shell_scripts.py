"""The shell scripts: they parse, and all of them choose the interpreter in the same way."""

from pathlib import Path
from subprocess import CompletedProcess

import pytest
from ran import ran

from configs.recipes import listed_method
from configs.schema import ROOT
from support.script import run_script

INTERPRETER = "PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}"


@pytest.mark.parametrize("script", sorted((ROOT / "scripts").rglob("*.sh")), ids=lambda p: p.name)
def test_a_script_parses_and_takes_the_environment_of_the_checkout(script: Path) -> None:
    assert ran(["bash", "-n", script]).returncode == 0
    lines = script.read_text(encoding="utf-8").splitlines()
    if any('"$PY"' in line for line in lines):
        root = next(i for i, line in enumerate(lines) if line.startswith('cd "$(dirname "$0")'))
        assert lines[root + 1] == INTERPRETER, f"{script}: after cd to the root of the checkout"


def test_the_interpreter_is_the_checkouts_own_unless_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.delenv("PY", raising=False)

    def chosen(**given: str) -> str:
        return ran(["bash", "-c", f'{INTERPRETER}; echo "$PY"'], tmp_path, **given).stdout.strip()

    assert chosen() == "python"
    own = tmp_path / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.write_text("")
    assert chosen() == "python", "not a program"
    own.chmod(0o755)
    assert chosen() == ".venv/bin/python"
    assert chosen(PY="python3.12") == "python3.12"


CELLS = 2 * 2 * 3 * 2  # types, guidance scales, filters, batches


def check(
    folder: Path, *arguments: str, fails: str = "", root: Path = ROOT, **variables: str
) -> CompletedProcess[str]:
    """Run the script with a stand-in for Python that fails where its words contain a text."""
    python = folder / "python"
    python.write_text(
        f'#!/usr/bin/env bash\necho "$*" >> {folder}/commands\n[[ "$*" != *{fails or "never"}* ]]\n'
    )
    python.chmod(0o755)
    words = ["bash", root / "scripts/exactness.sh", *arguments]
    return ran(words, PY=str(python), OUT=str(folder / "out"), **variables)


def test_wrong_images_in_one_cell_fail_the_check_and_are_named(tmp_path) -> None:
    failed = check(tmp_path, fails="fp32*--cfg?3*--top_k*--batch_size?3")
    commands = (tmp_path / "commands").read_text().splitlines()
    assert len(set(commands)) == CELLS
    assert failed.returncode == 1 and failed.stderr.count("outputs") == 0
    assert "dtype_fp32_cfg_3_top_k_200_top_p_0.9_batch_size_3" in failed.stderr
    assert check(tmp_path).returncode == 0


def test_its_methods_are_lossless_ones_and_thin_takes_two_prompts(tmp_path) -> None:
    check(tmp_path, "--thin")
    words = (tmp_path / "commands").read_text().splitlines()[0].split()
    given = {name: words[words.index(f"--{name}") + 1] for name in ("methods", "num_images")}
    assert given["num_images"] == words[words.index("--samples_per_prompt") + 1] == "2"
    methods = [listed_method(entry, {}) for entry in given["methods"].split(",")]
    assert len(set(methods)) == len(methods) > 20
    assert all(method.same_tokens(1.0) for method in methods)


@pytest.mark.parametrize("name", ["exactness.sh", "gpu/check.sh", "paper/run.sh"])
def test_a_script_says_how_it_is_called(name: str, tmp_path: Path) -> None:
    unknown, asked = (
        ran(["bash", ROOT / "scripts" / name, word], PY="never", OUT=str(tmp_path / "out"))
        for word in ("--thick", "--help")
    )
    assert (unknown.returncode, asked.returncode) == (2, 0)
    assert unknown.stderr == asked.stdout and unknown.stdout == asked.stderr == ""
    assert f"bash scripts/{name} " in asked.stdout and "set -euo" not in asked.stdout
    assert not (tmp_path / "out").exists()


CALLS: list[dict] = []


def script(
    *, output: str = "here", runs: str | None = None, images: int = 8, thin: bool = False
) -> None:
    CALLS.append({"output": output, "runs": runs, "images": images, "thin": thin})


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ([], {"output": "here"}),
        (["--output=2024_01_01"], {"output": "2024_01_01"}),
        (["--output", "010", "--runs", "ar,adt"], {"output": "010", "runs": "ar,adt"}),
        (["--output=a", "--images=3", "--thin"], {"images": 3, "thin": True}),
        (["--output=a", "--nothin"], {"runs": None, "thin": False}),
    ],
)
def test_texts_stay_as_typed_and_numbers_are_numbers(monkeypatch, words, found):
    CALLS.clear()
    monkeypatch.setattr("sys.argv", ["script", *words])
    run_script(script)
    assert len(CALLS) == 1 and found.items() <= CALLS[0].items()


def test_names_without_a_flag_stay_as_typed(monkeypatch):
    CALLS.clear()
    monkeypatch.setattr("sys.argv", ["script", "a,b", "2024"])

    def of_folders(*folders: str, output: str = "") -> None:
        CALLS.append({"folders": folders})

    run_script(of_folders)
    assert CALLS == [{"folders": ("a,b", "2024")}]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--imags", "3"], "flags: expected --output, --runs, --images or --thin, got --imags"),
        (["--images", "--thin"], "--images: expected a value, got nothing"),
        (["--thin", "--runs"], "--runs: expected a value, got nothing"),
    ],
)
def test_a_wrong_flag_is_refused_before_a_script_runs(words, said, monkeypatch, capsys) -> None:
    CALLS.clear()
    monkeypatch.setattr("sys.argv", ["script", "--output=x", *words])
    with pytest.raises(SystemExit) as stop:
        run_script(script)
    assert stop.value.code == 2 and not CALLS
    assert capsys.readouterr().err == f"error: {said}\n"
