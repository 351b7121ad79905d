"""A folder goes on only with the files and plugins that it was begun with."""

import importlib
import json
import shutil
import sys
from pathlib import Path

import pytest
from fake_session import FakeEngine, fake_opener, fake_run
from huggingface_hub import constants
from small import write_checkpoint

from configs import recipes
from configs.fields import SettingsError
from configs.schema import MethodSettings
from runs.generate import generate_images
from runs.made_of import made_of

_HUB = "models--me--small"


def point_to(cache: Path, commit: str) -> None:
    (cache / _HUB / "refs/main").write_text(commit)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A cache of the hub with two commits of me/small, which differ in their weights."""
    cache, first = tmp_path / "hub", tmp_path / "hub" / _HUB / "snapshots" / ("a" * 40)
    write_checkpoint(first)
    second = first.with_name("b" * 40)
    shutil.copytree(first, second)
    shutil.copy(first / "drafter/model.safetensors", second / "model.safetensors")
    (cache / _HUB / "refs").mkdir()
    point_to(cache, "a" * 40)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return cache


@pytest.mark.parametrize("flag", ["model_path", "tokenizer_path", "drafter_path", "start_from"])
def test_a_hub_id_is_its_snapshot(hub, flag):
    first = made_of({flag: "me/small"})
    assert first == made_of({flag: str(hub / _HUB / "snapshots" / ("a" * 40))})
    point_to(hub, "b" * 40)
    other = made_of({flag: "me/small"})
    assert other.keys() == first.keys() and other != first


def test_a_run_goes_on_only_with_the_commit_that_it_was_begun_with(hub, tmp_path):
    def generate(images: int) -> None:
        run = fake_run(
            tmp_path, model_path="me/small", method=MethodSettings("ar"), num_images=images
        )
        generate_images(run, fake_opener(FakeEngine()))

    generate(1)
    manifest = json.loads((tmp_path / "out/run.json").read_text())
    assert manifest["commits"] == {"model_path": "a" * 40}
    point_to(hub, "b" * 40)
    with pytest.raises(SettingsError, match="--overwrite or another folder, .*--model_path: other"):
        generate(2)
    point_to(hub, "a" * 40)
    generate(2)


def test_what_is_read_beside_a_model_counts(tmp_path):
    values = {"model": "tiny", "model_path": str(tmp_path / "model"), "lantern_k": 3}
    write_checkpoint(tmp_path / "model")
    known = [made_of(values)]
    for file in ("chameleon/tokenizer/vqgan.yaml", "model/vq_distances/top_7_indices.npy"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        for content in ("one", "two"):
            (tmp_path / file).write_text(content)
            assert made_of(values) not in known
            known.append(made_of(values))
    (tmp_path / "model/vq_distances/top_2_indices.npy").write_text("narrower than --lantern_k")
    assert made_of(values) == known[-1]
    assert made_of(values | {"tokenizer_path": "x"}) != known[-1]  # its own is read


@pytest.mark.parametrize("edited", ["mine.py", "helper.py"])
def test_a_plugin_is_its_code(tmp_path, monkeypatch, edited):
    """Also the code of modules beside it that it imports; another file beside it does not count."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(recipes, "PLUGINS", {})
    (tmp_path / "mine.py").write_text("import helper\n")
    (tmp_path / "helper.py").write_text("")

    def imported() -> dict[str, str]:
        for name in ("mine", "helper"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        from runs import made_of as module

        module._code_id.cache_clear()
        recipes.import_plugin("mine")
        return made_of({})

    first = imported()
    assert list(first) == ["plugin mine"]
    (tmp_path / "other.py").write_text("x = 1")
    assert imported() == first
    (tmp_path / edited).write_text((tmp_path / edited).read_text() + "# edited\n")
    assert imported() != first
