"""The documentation names modules, files and flags that exist, and commands that can be typed."""

import re
import shlex
from pathlib import Path

import pytest
from markdown_pages import PAGES, blocks, prose, read

from configs.command_line import read_words
from configs.commands import COMMANDS, flags_of
from configs.gone import GONE_FLAGS
from configs.schema import ROOT

ABSENT = (
    "ckpts/anole",
    "ckpts/lumina_mgpt",
    "ckpts/llamagen",
    "ckpts/janus_pro",
    "ckpts/emu3",
    "ckpts/emu3_5",
    "ckpts/glm_image",
    "ckpts/liquid",
    "ckpts/lumina_mgpt2",
    "ckpts/metrics",
)  # users put public weights there
PLACES = ("configs", "scripts", "eval", "docs", "ckpts", "tests")
# of scripts, of torchrun and the hub's client, of fire
OTHERS = {"runs", "nproc_per_node", "local", "help", "small", "thin", "output", "images", "tau"}
OTHERS |= {"measured", "version"}


@pytest.mark.parametrize("page", PAGES)
def test_modules_that_are_run_exist(page: str) -> None:
    for module in re.findall(r"python -m ((?:scripts|scenes|eval)[\w.]*\w)", read(page)):
        source = ROOT / Path(*module.split(".")).with_suffix(".py")
        assert "run_script" in source.read_text(encoding="utf-8"), f"{page}: {module}"


@pytest.mark.parametrize("page", PAGES)
def test_files_of_the_checkout_exist(page: str) -> None:
    found = re.findall(rf"(?:^|[\s`(=,])((?:{'|'.join(PLACES)})/[\w./-]*\w)", read(page))
    made = {block.mark("file") for block in blocks(page)}
    missing = {
        name for name in found if not (ROOT / name).exists() and not name.startswith(ABSENT)
    } - made
    assert not missing, f"{page} names {', '.join(missing)}"


@pytest.mark.parametrize("page", PAGES)
def test_commands_can_be_typed(page: str) -> None:
    """Their flags exist and have values, once each; what the values mean is not looked at."""
    for command, *rest in commands(page):
        if not {"--help", "-h", "--version"} & {command, *rest}:
            read_words(command, rest)


def test_every_command_is_shown() -> None:
    assert {words[0] for page in PAGES for words in commands(page)} >= set(COMMANDS)


def commands(page: str) -> list[list[str]]:
    """The words of a page's commands."""
    text = "".join(block.text for block in blocks(page) if block.language == "bash")
    text = re.sub(r"\$\([^)]*\)", "1", text)  # what the shell puts in place
    lines = text.replace("\\\n", " ").splitlines()
    starts = ("python main.py", "adt-tree", ".venv/bin/adt-tree")
    found = []
    for line in map(str.strip, lines):
        if start := next((s for s in starts if line.startswith(f"{s} ")), None):
            found.append(_before_shell(shlex.split(line, comments=True)[len(start.split()) :]))
    return found


def _before_shell(words: list[str]) -> list[str]:
    """The words of a command before a pipe or a redirection."""
    ends = [n for n, word in enumerate(words) if word[0] in "|>&;"]
    return words[: min(ends, default=len(words))]


@pytest.mark.parametrize("page", [page for page in PAGES if page != "docs/commands.md"])
def test_flags_in_the_text_exist(page: str) -> None:
    known = {name for command in COMMANDS for name in flags_of(command)} | OTHERS
    for name in re.findall(r"--([a-z]\w*)(?!\*)\b", prose(page)):
        gone = page == "docs/results/tried.md" and name in GONE_FLAGS
        assert gone or {name, name.removeprefix("no")} & known, f"{page}: --{name}"
