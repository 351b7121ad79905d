"""The READMEs name modules, scripts and files that exist."""

import re
from pathlib import Path

import pytest

from configs.schema import ROOT

READMES = ("README.md", "ckpts/tiny/README.md", "configs/prompts/README.md")
ABSENT = (
    "ckpts/anole",
    "ckpts/lumina_mgpt",
    "ckpts/llamagen",
)  # public weights: users put them there
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
