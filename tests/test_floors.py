"""The floor plan: no import runs upward or in a circle, and the engine knows only protocols."""

import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
from program import FOLDERS, imports
from ran import ran

from configs.targets import ROOT

FLOORS = (*FOLDERS, "main")
CONCRETE = ("configs", "drafters", "decoding.policies.", "decoding.verifiers.")


def project_modules() -> dict[str, Path]:
    """Return every module of the program, without tests, by its dotted name."""
    files = [ROOT / "main.py"]
    files += [path for floor in FOLDERS for path in (ROOT / floor).rglob("*.py")]
    names = (".".join(path.relative_to(ROOT).with_suffix("").parts) for path in files)
    return {name.removesuffix(".__init__"): path for name, path in zip(names, files, strict=True)}


MODULES = project_modules()


@pytest.mark.parametrize("name", MODULES)
def test_no_import_runs_upward(name):
    below = FLOORS[: FLOORS.index(name.partition(".")[0]) + 1]
    found = imports(MODULES[name]) & MODULES.keys()
    upward = [other for other in found if other.partition(".")[0] not in below]
    assert not upward, f"{name} imports {', '.join(upward)}, which stand above it"


def test_no_import_is_circular():
    nodes = {name for name, path in MODULES.items() if path.name != "__init__.py"}
    graph = {name: imports(path) & nodes - {name} for name, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def test_the_engine_loads_protocols_only():
    done = ran([sys.executable, "-c", "import sys, decoding.engine; print(*sys.modules)"])
    loaded = {*done.stdout.split()} & MODULES.keys()
    assert "decoding.engine" in loaded
    loaded = [name for name in loaded if name.startswith(CONCRETE)]
    assert set(loaded) <= {"decoding.policies.base", "decoding.verifiers.base"}


def test_modules_of_tests_have_names_of_their_own() -> None:
    """pytest imports them by their names alone."""
    names = [path.name for path in (ROOT / "tests").rglob("*.py")]
    assert {name for name in names if names.count(name) > 1} <= {"conftest.py"}
