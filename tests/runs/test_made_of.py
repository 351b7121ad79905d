"""A folder goes on only with the files and plugins that it was begun with."""

import importlib
import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import numpy as np
import pytest
from fake_session import FakeEngine, FakeSession, fake_opener, fake_run
from huggingface_hub import constants
from made_runs import write_run

import main
from configs import recipes
from configs.fields import SettingsError
from configs.model import EngineSettings
from configs.schema import MethodSettings
from eval.bench import contest
from eval.bench.measurements import Measurements
from models.codecs.codebook import find_table
from models.files import folders
from runs.generate import generate_images
from runs.made_of import _code_id, made_of
from scripts.checkpoints.chameleon import write_checkpoint
from scripts.checkpoints.glm_image import write_glm_image

_HUB = "models--me--small"


def point_to(cache: Path, commit: str, told: bool = True) -> None:
    """Let the id lead to a commit. told: for the next command, not in the middle of one."""
    (cache / _HUB / "refs/main").write_text(commit)
    if told:
        folders._READ.clear()


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
    assert first.files == made_of({flag: str(hub / _HUB / "snapshots" / ("a" * 40))}).files
    point_to(hub, "b" * 40)
    other = made_of({flag: "me/small"})
    assert other.files.keys() == first.files.keys() and other.files != first.files
    assert (first.commits, other.commits) == ({flag: "a" * 40}, {flag: "b" * 40})


def test_a_commit_that_comes_while_a_model_is_loaded_is_not_what_is_written(hub) -> None:
    loaded = folders.checkpoint_folder("me/small", "--model_path")
    point_to(hub, "b" * 40, told=False)
    made = made_of({"model_path": "me/small", "drafter_path": "me/small"})
    assert {*made.commits.values()} == {loaded.name} == {"a" * 40}


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


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("new", ["weights", "pytorch_model.bin"])
def test_files_that_change_while_they_are_read_are_refused(tmp_path, begun, new):
    run = fake_run(tmp_path, method=MethodSettings("ar"), num_images=1 + begun)
    opened = fake_opener(FakeEngine())
    if begun:
        generate_images(fake_run(tmp_path, method=MethodSettings("ar")), opened)
    before = sorted((tmp_path / "out").rglob("*"))

    def replaced(settings: EngineSettings) -> FakeSession:
        weights = tmp_path / "model/model.safetensors"
        if new != "weights":
            weights.rename(weights.with_name(new))
        else:
            weights.with_name("x").write_bytes(b"")
            weights.with_name("x").replace(weights)
        return opened(settings)

    said = r"model/model.safetensors.*: expected the file that was .*, got another file meanwhile"
    with pytest.raises(SettingsError, match=said):
        generate_images(run, replaced)
    assert sorted((tmp_path / "out").rglob("*")) == (before or [tmp_path / "out/.lock"])


def test_measurements_are_of_the_files_that_were_loaded(tmp_path):
    write_checkpoint(folder := tmp_path / "model")
    engine = fake_run(tmp_path, method=MethodSettings("ar"), model_path=str(folder)).engine
    kept = Measurements(tmp_path / "measurements.jsonl", engine)
    kept.conditions(MethodSettings("ar"))
    (folder / "config.json").write_text("{}")
    larger = kept.of(replace(engine, batch_size=2))
    with pytest.raises(SettingsError, match="config.json: .*got another file meanwhile"):
        larger.conditions(MethodSettings("ar"))


def test_a_dry_run_fetches_nothing(hub, tmp_path, monkeypatch, capsys):
    """A commit that came since is not asked for."""

    def snapshot(path: str, local_files_only: bool, **_: object) -> str:
        assert local_files_only
        return str(hub / _HUB / "snapshots" / ("a" * 40))

    def words(command: str, *more: str) -> list[str]:
        flags = "--model_path=me/small --prompt=x --device=cpu --compile=off --dtype=fp64"
        return [command, *flags.split(), *more]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(contest, "MOST_TURNS", 1)  # of tune, whatever the machine does meanwhile
    write_run(tmp_path / "pictures", [np.zeros((16, 16, 3), np.uint8)], ["a cat"])
    commands = [words("generate_images", "--method=ar", "--output_dir=out")]
    commands += [words("benchmark", "--methods=jacobi", "--output_dir=timed", "--repeats=1")]
    commands += [words("tune", "--methods=jacobi", "--output=t.yaml")]
    for command in commands:
        assert main.main(command) == 0
    commands += [words("generate_images", "--config=t.yaml", "--output_dir=new")]
    commands += [["evaluate", "--output_dir=pictures", "--clip_path=me/clip", "--metrics=clip"]]
    folders._READ.clear()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", None)
    for command in commands:
        assert main.main([*command, "--dry_run"]) == 0, command
    assert "computing clip of their images" in capsys.readouterr().out


def test_what_is_read_beside_a_model_counts(tmp_path):
    values = {"model": "tiny", "model_path": str(tmp_path / "model"), "lantern_k": 3}
    write_checkpoint(tmp_path / "model")
    known = [made_of(values).files]
    for file in ("chameleon/tokenizer/vqgan.yaml", "model/vq_distances/top_7_indices.npy"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        for content in ("one", "two"):
            (tmp_path / file).write_text(content)
            assert made_of(values).files not in known
            known.append(made_of(values).files)
    (tmp_path / "model/vq_distances/top_2_indices.npy").write_text("narrower than --lantern_k")
    assert made_of(values).files == known[-1]
    assert made_of(values | {"tokenizer_path": "x"}).files != known[-1]  # its own is read


def test_a_part_of_a_whole_repository_is_what_is_read(tmp_path):
    """GLM-Image's parts lie side by side in one folder, which users name as a whole."""
    inner = write_glm_image(tmp_path / "vision_language_encoder")
    values = {"model": "glm_image", "model_path": str(tmp_path)}
    known = made_of(values).files
    assert known == made_of(values | {"model_path": str(inner)}).files
    weights = sorted(inner.glob("*.safetensors"))[-1]
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert made_of(values).files != known


def test_a_table_of_nearest_codes_is_not_written_into_the_hubs_cache(
    hub, tmp_path, monkeypatch, capsys
):
    def files() -> list[Path]:
        return sorted(hub.rglob("*"))

    monkeypatch.chdir(tmp_path)
    before, given = files(), {"model_path": "me/small", "lantern_k": 5}
    words = ["--model_path=me/small", "--prompt=a cat", "--method=static", "--compile=off"]
    words = ["generate_images", *words, "--verifier=lantern", "--lantern_k=5", "--output_dir=out"]
    words += [f"--drafter_path={hub / _HUB / 'snapshots' / ('a' * 40) / 'drafter'}"]
    assert main.main(words) == 2 and "vq_distances" in capsys.readouterr().err
    assert main.main(["vq_distances", "--model_path=me/small"]) == 0
    (table,) = Path("outputs/vq_distances").glob("*small*/top_23_indices.npy")
    assert capsys.readouterr().out.startswith(f"{table}: 24 codes")
    assert files() == before
    assert main.main(words) == 0
    found = made_of(given).files["nearest codes"]
    table.write_bytes(b"another")
    assert made_of(given).files["nearest codes"] != found


def test_a_table_of_nearest_codes_of_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    folder = write_checkpoint(tmp_path / "model")
    assert main.main(["vq_distances", f"--model_path={folder}", "--neighbours=5"]) == 0
    assert find_table(folder, 24, 5, "tiny").is_relative_to("outputs/vq_distances")
    assert not (folder / "vq_distances").exists()


_PLUGIN = {  # by file; `other` is imported by nobody
    "plugins/mine.py": "import helper, json\ndef later():\n    from late.parts import one\n",
    "plugins/helper.py": "from elsewhere import *\n",
    "plugins/late/parts/__init__.py": "from . import one\n",
    "plugins/late/parts/one.py": "import not_installed\n",
    "shared/elsewhere.py": "",
    "plugins/other.py": "",
}


def test_a_plugin_is_its_code_and_what_it_imports(tmp_path, monkeypatch):
    """At once or later, from beside it or another folder of the path."""
    monkeypatch.setattr(recipes, "PLUGINS", {})
    for name, text in _PLUGIN.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)

    for folder in ("plugins", "shared"):
        monkeypatch.syspath_prepend(tmp_path / folder)

    def imported() -> dict[str, str]:
        for name in ("mine", "helper", "late", "late.parts", "elsewhere"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        _code_id.cache_clear()
        recipes.import_plugin("mine")
        return made_of({}).files

    last = imported()
    assert list(last) == ["plugin mine"]
    for edited, text in _PLUGIN.items():
        (tmp_path / edited).write_text(text + "# edited\n")
        before, last = last, imported()
        assert (last == before) == ("other" in edited), edited
