"""Every package that is imported is required and constrained; the core runs without the extras."""

import re
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from program import FOLDERS, imports
from ran import ran

from configs.schema import ROOT
from support.extras import EXTRAS

LOADER = r'\blibrary\("(\w+)'  # eval.metrics.weights.library(module, package) imports by name
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REQUIRED = {"core": _PROJECT["dependencies"]} | _PROJECT["optional-dependencies"]
DISTRIBUTIONS = packages_distributions()


def names(lines: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(line).name) for line in lines}


def imported(*places: str) -> set[str]:
    """The packages that files or folders import; the standard library and our own have none."""
    modules: set[str] = set()
    for place in places:
        for path in [ROOT / place] if place.endswith(".py") else (ROOT / place).rglob("*.py"):
            modules |= imports(path) | {*re.findall(LOADER, path.read_text(encoding="utf-8"))}
    own = {path.stem for path in ROOT.iterdir()}
    tops = {module.partition(".")[0] for module in modules} - own
    return {canonicalize_name(name) for top in tops for name in DISTRIBUTIONS.get(top, ())}


def test_what_is_imported_is_required_and_nothing_else() -> None:
    allowed = names(sum(REQUIRED.values(), []))
    assert not imported("main.py", *FOLDERS, "tests") - allowed
    apart = ("quantize", "tensorboard", "dev")  # torch imports it
    used = sum((lines for extra, lines in REQUIRED.items() if extra not in apart), [])
    assert not names(used) - imported("main.py", *FOLDERS)


def test_the_constraints_fit_the_requirements() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if line[0] != "#"]
    versions = {canonicalize_name(line.split("==")[0]): line.split("==")[1] for line in lines}
    for requirement in map(Requirement, sum(REQUIRED.values(), [])):
        version = versions[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement}: {version} does not fit"


def test_errors_know_the_extra_of_every_module() -> None:
    for extra, modules in EXTRAS.items():
        packages = {canonicalize_name(DISTRIBUTIONS.get(module, [module])[0]) for module in modules}
        assert packages == names(REQUIRED[extra])


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
