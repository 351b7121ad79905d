"""requirements.txt names every package that is imported, and constraints.txt a version of each that
fits.
"""

import ast
import re
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from configs.schema import ROOT

PROGRAM = (
    "main.py",
    *(
        "configs",
        "support",
        "scenes",
        "models",
        "decoding",
        "drafters",
        "runs",
        "eval",
        "adt_tree",
        "scripts",
    ),
)
LOADER = "library"  # eval.metrics.weights.library(module, package) imports by name


def read_requirements() -> list[Requirement]:
    """The lines of requirements.txt."""
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    return [Requirement(line) for line in lines]


def read_tools() -> list[Requirement]:
    """What `make test` installs further."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return [Requirement(word) for word in re.findall(r'"([^"]+)"', text.partition("TOOLS :=")[2])]


def read_constraints() -> dict[str, str]:
    """Versions by package."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def names_of(requirements: list[Requirement]) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in requirements}


@cache
def modules_of(place: Path) -> set[str]:
    """Top-level modules that a file, or the files of a folder, import, anywhere in their code."""
    found: set[str] = set()
    for path in [place] if place.is_file() else place.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(str(node.module))
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == LOADER:
                found |= {word.value for word in node.args[:1] if isinstance(word, ast.Constant)}
    return {name.partition(".")[0] for name in found}


def packages_of(*places: str) -> set[str]:
    """The packages that these modules come from; the standard library and our own have none."""
    distributions, own = packages_distributions(), {path.stem for path in ROOT.iterdir()}
    return {
        canonicalize_name(package)
        for place in places
        for module in modules_of(ROOT / place) - own
        for package in distributions.get(module, ())
    }


@pytest.mark.parametrize("place", PROGRAM)
def test_what_the_program_imports_is_required(place: str) -> None:
    missing = packages_of(place) - names_of(read_requirements())
    assert not missing, f"requirements.txt lacks {', '.join(missing)}"


def test_what_tests_import_is_required_or_installed_by_make_test() -> None:
    allowed = names_of(read_requirements()) | names_of(read_tools()) | {"packaging"}  # of pytest
    assert not packages_of("tests") - allowed


def test_what_is_required_is_imported() -> None:
    idle = names_of(read_requirements()) - packages_of(*PROGRAM)
    assert not idle, f"nothing imports {', '.join(idle)}"


def test_the_constraints_fit_the_requirements() -> None:
    versions = read_constraints()
    for requirement in [*read_requirements(), *read_tools()]:
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"constraints.txt lacks {requirement.name}"
        assert requirement.specifier.contains(version), f"{requirement}: {version} does not fit"
