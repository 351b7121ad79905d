"""Every package that is imported is required and constrained; an editable install works."""

import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from program import FOLDERS, imports
from ran import ran

from configs.schema import ROOT
from support.extras import EXTRAS, missing_extra

PROGRAM = ("main.py", *FOLDERS)
APART = {"quantize"}  # extras that `make test` leaves out; tests that need them are skipped
LOADER = r'\blibrary\("(\w+)'  # eval.metrics.weights.library(module, package) imports by name


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


REQUIREMENTS = [Requirement(line) for line in text_of("requirements.txt").splitlines()]
PROJECT = tomllib.loads(text_of("pyproject.toml"))["project"]
OPTIONAL: dict[str, list[str]] = PROJECT["optional-dependencies"]  # by extra
_TOOLS = text_of("Makefile").partition("TOOLS :=")[2]
TOOLS = [Requirement(word) for word in re.findall(r'"([^"]+)"', _TOOLS)]  # of `make test`


def names_of(requirements: list[Requirement]) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in requirements}


@cache
def modules_of(place: Path) -> set[str]:
    """Top-level modules that a file, or the files of a folder, import, anywhere in their code."""
    found: set[str] = set()
    for path in [place] if place.is_file() else place.rglob("*.py"):
        found |= imports(path) | {*re.findall(LOADER, path.read_text(encoding="utf-8"))}
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
    missing = packages_of(place) - names_of(REQUIREMENTS)
    assert not missing, f"requirements.txt lacks {', '.join(missing)}"


def test_what_tests_import_is_required_or_installed_by_make_test() -> None:
    allowed = names_of(REQUIREMENTS) | names_of(TOOLS) | {"packaging"}  # of pytest
    assert not packages_of("tests") - allowed


def test_what_is_required_is_imported() -> None:
    idle = names_of(REQUIREMENTS) - packages_of(*PROGRAM)
    assert not idle, f"nothing imports {', '.join(idle)}"


def test_the_constraints_fit_the_requirements() -> None:
    lines = (line for line in text_of("constraints.txt").splitlines() if line[0] != "#")
    versions = {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in lines}
    apart = [Requirement(line) for extra in APART for line in OPTIONAL[extra]]
    for requirement in [*REQUIREMENTS, *TOOLS, *apart]:
        version = versions.get(canonicalize_name(requirement.name))
        assert version is not None, f"constraints.txt lacks {requirement.name}"
        assert requirement.specifier.contains(version), f"{requirement}: {version} does not fit"


def test_requirements_txt_is_the_project_with_all_extras() -> None:
    extras = {name: lines for name, lines in OPTIONAL.items() if name not in APART}
    lines = [*PROJECT["dependencies"], *(line for lines in extras.values() for line in lines)]
    assert sorted(map(str, map(Requirement, lines))) == sorted(map(str, REQUIREMENTS))
    assert f"-e .[{','.join(extras)}]" in text_of("Makefile")


def test_errors_know_the_extra_of_every_module() -> None:
    distributions = packages_distributions()
    assert EXTRAS.keys() == OPTIONAL.keys()
    for extra, modules in EXTRAS.items():
        packages = {canonicalize_name(distributions.get(module, [module])[0]) for module in modules}
        assert packages == names_of([Requirement(line) for line in OPTIONAL[extra]])
    words = missing_extra(ModuleNotFoundError(name="matplotlib.pyplot"))
    assert words is not None and "pip install -e '.[eval]'" in words
    assert missing_extra(ModuleNotFoundError(name="somewhere")) is None


_WITHOUT_EXTRAS = """
import sys
from importlib.machinery import PathFinder

found = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {modules} else found(name, path, target)

PathFinder.find_spec = find_spec
"""
_DRAW = """
from adt_tree import Pipeline

pipe = Pipeline.from_pretrained({folder!r}, device="cpu", progress_bar=False)
print(len(pipe("a cat").images), pipe.compare("a cat", ["adt"]).rows[0]["identical"])
import main
words = ["--model_path={folder}", "--device=cpu", "--prompt=a cat"]
assert main.main(["generate_images", *words, "--output_dir=run"]) == 0
assert main.main(["benchmark", *words, "--methods=ar", "--repeats=1"]) == 0
# each takes seconds to load, and other models and torch.compile alone need them
assert not {{"diffusers", "transformers", "torch._dynamo"}} & sys.modules.keys()
sys.exit(main.main(["evaluate", "--output_dir=run"]))
"""


def test_the_core_needs_no_extra_and_says_which_a_command_needs(checkpoint, tmp_path) -> None:
    modules = sorted(module for modules in EXTRAS.values() for module in modules)
    code = _WITHOUT_EXTRAS.format(modules=modules) + _DRAW.format(folder=str(checkpoint))
    done = ran([sys.executable, "-c", code], tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 1 and done.stdout.startswith("1 1\n"), done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].endswith("pip install -e '.[eval]' in the checkout")


def test_an_editable_install_finds_the_shipped_model_from_any_folder(tmp_path) -> None:
    pytest.importorskip("setuptools", "77", reason="no setuptools of 77 or later is installed")
    project, home = tmp_path / "project", tmp_path / "home"
    project.mkdir(), home.mkdir()
    for path in ROOT.iterdir():  # pip writes next to pyproject.toml
        if not path.name.startswith(".") and path.suffix != ".egg-info":
            (project / path.name).symlink_to(path)
    ran([sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv"])
    binary = tmp_path / "venv/bin"
    (packages,) = (tmp_path / "venv").glob("lib/python*/site-packages")
    here = Path(pytest.__file__).parents[1]
    (packages / "all_else.pth").write_text(f"{here}\n")
    words = ["install", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-e", str(project)]
    pip = [sys.executable, "-m", "pip", "--python", binary / "python"]
    done = ran([*pip, *words], PIP_DISABLE_PIP_VERSION_CHECK="1")
    assert done.returncode == 0, done.stderr
    code = "from adt_tree.sources import source_values as s; import main; print(s('tiny', {}))"
    assert ran([binary / "python", "-c", code], home).stdout == "{'model': 'tiny'}\n"
    done = ran([binary / "adt-tree", "generate_images", "--sede=3"], home)
    assert done.returncode == 2 and done.stderr.startswith("error: --sede: unknown flag")
