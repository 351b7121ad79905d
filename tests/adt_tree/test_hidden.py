"""Somebody's own package that hides one of ours is named in one line."""

import sys

import pytest
from ran import ran

from configs.targets import ROOT


@pytest.mark.parametrize("place", ["models/__init__.py", "eval.py"])
def test_a_package_that_hides_ours_is_named(tmp_path, place) -> None:
    own, name = tmp_path / place, place.removesuffix(".py").removesuffix("/__init__")
    own.parent.mkdir(exist_ok=True)
    own.write_text("")
    done = ran([sys.executable, "-c", "import adt_tree"], tmp_path, PYTHONPATH=str(ROOT))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(f"ImportError: adt_tree: {own} hides the package '{name}' of {ROOT}.")
