"""The shell scripts: they parse, and all of them choose the interpreter in the same way."""

import os
import subprocess
from pathlib import Path

import pytest

from configs.schema import ROOT

INTERPRETER = "PY=${PY:-$([ -x .venv/bin/python ] && echo .venv/bin/python || echo python)}"
SCRIPTS = sorted((ROOT / "scripts").rglob("*.sh"))


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_a_script_parses_and_takes_the_environment_of_the_checkout(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    lines = script.read_text(encoding="utf-8").splitlines()
    if any('"$PY"' in line for line in lines):
        root = next(i for i, line in enumerate(lines) if line.startswith('cd "$(dirname "$0")'))
        assert lines[root + 1] == INTERPRETER, f"{script}: after cd to the root of the checkout"


def test_the_interpreter_is_the_checkouts_own_unless_named(tmp_path: Path) -> None:
    def chosen(**given: str) -> str:
        environment = {name: value for name, value in os.environ.items() if name != "PY"} | given
        command = ["bash", "-c", f'{INTERPRETER}; echo "$PY"']
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    assert chosen() == "python"
    own = tmp_path / ".venv" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.write_text("")
    assert chosen() == "python", "not a program"
    own.chmod(0o755)
    assert chosen() == ".venv/bin/python"
    assert chosen(PY="python3.12") == "python3.12"
