"""The READMEs name modules, files and flags that exist, and commands that can be typed."""

import re
import shlex
from pathlib import Path

import pytest

from configs.flags import COMMANDS, flags_of
from configs.schema import ROOT
from configs.words import read_words

READMES = ("README.md", "ckpts/tiny/README.md", "configs/prompts/README.md")
ABSENT = (
    "ckpts/anole",
    "ckpts/lumina_mgpt",
    "ckpts/llamagen",
    "ckpts/janus_pro",
    "ckpts/emu3",
)  # users put public weights there
PLACES = ("configs", "scripts", "eval", "docs", "ckpts", "tests")


def words(readme: str, pattern: str) -> list[str]:
    """What a pattern's group finds in a README."""
    return re.findall(pattern, (ROOT / readme).read_text(encoding="utf-8"))


@pytest.mark.parametrize("readme", READMES)
def test_modules_that_are_run_exist(readme: str) -> None:
    for module in words(readme, r"python -m ((?:scripts|scenes|eval)[\w.]*\w)"):
        source = ROOT / Path(*module.split(".")).with_suffix(".py")
        assert "run_script" in source.read_text(encoding="utf-8"), f"{readme}: {module}"


@pytest.mark.parametrize("readme", READMES)
def test_files_of_the_checkout_exist(readme: str) -> None:
    found = words(readme, rf"(?:^|[\s`(=,])((?:{'|'.join(PLACES)})/[\w./-]*\w)")
    assert found or readme != "README.md"
    missing = [name for name in found if not (ROOT / name).exists() and not name.startswith(ABSENT)]
    assert not missing, f"{readme} names {', '.join(missing)}"


def test_commands_can_be_typed() -> None:
    """Their flags exist and have values, once each; what the values mean is not looked at."""
    text = "".join(words("README.md", r"(?s)```bash\n(.*?)```")).replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line.startswith("python main.py")]
    found = [shlex.split(line, comments=True)[2:] for line in lines]
    assert {command for command, *_ in found} == set(COMMANDS) - {"vq_distances"}
    for command, *rest in found:
        read_words(command, rest)


def test_flags_in_the_text_exist() -> None:
    text = re.sub(r"(?s)```.*?```", "", (ROOT / "README.md").read_text(encoding="utf-8"))
    known = {name for command in COMMANDS for name in flags_of(command)}
    known |= {"runs", "nproc_per_node", "help"}  # of a script, of torchrun, of fire
    for name in re.findall(r"--([a-z]\w*)(?!\*)\b", text):
        assert {name, name.removeprefix("no")} & known, f"--{name}"
