"""The error texts of the troubleshooting page are those of the program."""

import ast
import re
import shlex
from functools import cache

import pytest
from markdown_pages import blocks
from program import FOLDERS

import main
from configs.commands import COMMANDS
from configs.targets import ROOT

PAGE = "docs/troubleshooting.md"
LEAST = 6  # letters of a piece that say anything


def pieces(text: str) -> list[str]:
    """The pieces of a text between its gaps."""
    return [piece.strip() for piece in re.split("…|\n", text) if piece.strip()]


@cache
def strings() -> str:
    """The text of all string constants of the program; what is put in later is a gap."""
    found = []
    for path in ROOT.rglob("*.py"):
        if path.relative_to(ROOT).parts[0] in (*FOLDERS, "main.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.JoinedStr):
                    parts = (v.value if isinstance(v, ast.Constant) else "…" for v in node.values)
                    found.append("".join(map(str, parts)))
                elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                    found.append(node.value)
    return "\n".join(found)


@pytest.mark.parametrize("text", [b.text for b in blocks(PAGE) if b.language == "text"])
def test_a_text_occurs_in_the_code(text: str) -> None:
    told = [piece for piece in pieces(text) if len(piece) >= LEAST]
    assert told
    for piece in told:
        assert piece in strings(), piece


@pytest.mark.parametrize("text", [b.text for b in blocks(PAGE) if b.language == "console"])
def test_a_command_says_so(text, capsys, tmp_path, monkeypatch) -> None:
    """Commands that end before anything is loaded."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    typed, said = text.strip().split("\n")
    words = shlex.split(typed.removeprefix("$ python main.py"))
    assert words[0] in COMMANDS
    assert main.main(words) == 2
    wanted = ".*".join(re.escape(piece) for piece in said.split("…"))
    *_, told = capsys.readouterr().err.strip().split("\n")  # libraries warn on lines before it
    assert re.fullmatch(wanted, told)
