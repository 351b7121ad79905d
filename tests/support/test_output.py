"""What a command prints can be lost; what it does, and its exit code, cannot."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from browser import thinned
from ran import ran

from configs.fields import SettingsError
from configs.targets import ROOT
from support.border import OUT_OF_MEMORY, Failure, run_guarded

# A command that prints a lot, or a letter outside ASCII, and then does its work.
WORKER = """
import sys
from pathlib import Path
from support.border import run_guarded
def work():
    print("\\u00e9", flush=True)
    for number in range(20_000):
        print(number, "a line of the log")
    Path(sys.argv[1]).write_text("done")
sys.exit(run_guarded(work))
"""


def python(tmp_path: Path, shell: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a shell line in which $work is the worker and $main the command line."""
    variables = {"work": f"{sys.executable} -c '{WORKER}' {tmp_path / 'result'}",
                 "main": f"{sys.executable} {ROOT / 'main.py'}"}  # fmt: skip
    for name, text in variables.items():
        shell = shell.replace(f"${name}", text)
    return ran(["bash", "-c", shell], PYTHONPATH=str(ROOT), **environment)


@pytest.mark.parametrize("command", ["$work", *thinned(["$main --help", "$main benchmark --help"])])
@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        ("| head -1 >/dev/null", 0, ""),
        (">/dev/full", 1, "error: standard output: No space left on device\n"),
        (">&-", 0, ""),
        (">/dev/null 2>/dev/full", 0, ""),
        ("2>&-", 0, ""),
    ],
)
def test_a_closed_or_full_output(tmp_path, command, output, code, said):
    done = python(tmp_path, f"set -o pipefail; {command} {output}")
    assert (done.returncode, done.stderr) == (code, said)
    assert (tmp_path / "result").exists() == (command == "$work")


def test_letters_that_the_output_lacks_are_escaped(tmp_path):
    done = python(tmp_path, "$work", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("\\xe9\n") and (tmp_path / "result").exists()


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (SettingsError("--seed: found\n -1; allowed: 0"), 2, "error: --seed: found -1; allowed: 0"),
        (Failure("--data_dir x: found no image"), 1, "error: --data_dir x: found no image"),
        (OSError(28, "No space left", "a/b.json"), 1, "a/b.json: No space left"),
        (OSError(36, "File name too long", "x" * 300), 1, f"{'x' * 200}...: File name too long"),
        (OSError("cannot send"), 1, "error: cannot send"),
        (torch.OutOfMemoryError("CUDA out of memory."), 1, f"{OUT_OF_MEMORY} (CUDA out of"),
        (RuntimeError("CUDA error: out of memory\nCompile"), 1, "(CUDA error: out of memory)"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
)
def test_errors_become_a_line_and_a_code(capsys, error, code, said):
    def fail() -> None:
        raise error

    assert run_guarded(fail) == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1 and said in lines[0]


@pytest.mark.parametrize("mistake", [ZeroDivisionError(), RuntimeError("shapes differ")])
def test_a_mistake_keeps_its_traceback(mistake):
    def fail() -> None:
        raise mistake

    with pytest.raises(type(mistake)):
        run_guarded(fail)


def test_ctrl_c_while_modules_load_ends_without_a_word(tmp_path):
    slow = "import time; print('loading', flush=True); time.sleep(60)"
    (tmp_path / "difflib.py").write_text(slow)  # the first module that main.py imports
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "main.py"), "--help"],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # tests in the background of a shell ignore Ctrl-C, and so would the command
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stdout.readline() == "loading\n"
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 130
