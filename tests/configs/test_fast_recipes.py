"""configs/fast: a lossless method for every budget of draft tokens."""

from pathlib import Path

import pytest
from stand_ins import empty_checkpoint

from adt_tree.sources import source_values
from configs.command_line import read_words
from configs.schema import ROOT, RunSettings
from runs.commands import run_settings

PATHS = sorted((ROOT / "configs" / "fast").glob("*.yaml"))


def settings(folder: Path, *words: str) -> RunSettings:
    model = {"prompt": "a cat", "model_path": str(empty_checkpoint(folder / "model"))}
    return run_settings(model | read_words("generate_images", words))


def test_there_is_one_for_every_budget() -> None:
    assert {path.stem for path in PATHS} == {"n16", "n58", "n128"}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_budget_is_the_files_name_and_the_images_are_ars(path, tmp_path) -> None:
    method = settings(tmp_path, f"--config={path}").method
    assert f"n{method.nodes}" == path.stem and method.size == "fixed"
    assert method.lossless and method.same_tokens(0.0) and method.same_tokens(1.0)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_it_joins_a_models_recipe(path, tmp_path) -> None:
    anole = ROOT / "configs" / "anole.yaml"
    drafter = f"--drafter_path={empty_checkpoint(tmp_path / 'other')}/drafter"
    found = settings(tmp_path, f"--config={anole},{path}", drafter)
    alone = settings(tmp_path, f"--config={path}")
    assert found.model == "anole" and found.method == alone.method


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_python_takes_it_as_a_source(path) -> None:
    assert source_values(path, {})["method"] == "graft_similar"
