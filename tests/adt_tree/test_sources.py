"""What `from_pretrained` finds: names of models, recipes, folders, hub ids; from any folder."""

import json
import shutil

import pytest
from browser import thinned
from families import SMALL

from adt_tree.sources import python_names, source_values
from configs.fields import SettingsError
from configs.schema import ROOT
from configs.targets import TARGETS
from scripts.checkpoints.llamagen import LlamaGenSizes, public_config
from scripts.checkpoints.lumina2 import write_lumina2
from support.output import remark


def test_a_models_name_is_its_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [source_values(name, {})["model"] for name in TARGETS] == [*TARGETS]


def test_a_model_of_your_own_needs_no_recipe(monkeypatch):
    monkeypatch.setitem(TARGETS, "own", TARGETS["tiny"])
    assert source_values("own", {}) == {"model": "own"}


def test_a_folder_gets_its_familys_recipe_and_is_told_so(tmp_path, capsys):
    remark.cache_clear()
    folder = SMALL["janus_pro"].write(tmp_path)
    found = source_values(folder, {"cfg": 4.0})
    assert (found["dtype"], found["cfg"]) == ("bf16", 5.0)
    said = capsys.readouterr().err
    assert said == "note: torch_dtype bf16: as configs/janus_pro.yaml says\n"
    source_values(ROOT / "ckpts/tiny", {})
    (tmp_path / "own.yaml").write_text("model: janus_pro\ncfg: 2\n")
    assert source_values(tmp_path / "own.yaml", {})["dtype"] == "bf16"
    assert not capsys.readouterr().err


def test_the_shipped_model_is_known_by_its_folder(monkeypatch):
    assert source_values(ROOT / "ckpts/tiny", {})["model"] == "tiny"
    monkeypatch.chdir(ROOT / "ckpts")
    assert source_values("tiny", {}) == {"model": "tiny"}
    assert source_values("./tiny", {}) == {"model": "tiny", "model_path": "./tiny"}


def test_a_recipe_is_read_as_by_config(tmp_path):
    (tmp_path / "own.yaml").write_text("model: tiny\ncfg: 2\nnodes: 9\n")
    found = source_values(tmp_path / "own.yaml", {})
    assert found == {"model": "tiny", "cfg": 2.0, "nodes": 9}
    (tmp_path / "bad.yaml").write_text("nods: 9\n")
    with pytest.raises(SettingsError, match="nods: unknown flag"):
        source_values(tmp_path / "bad.yaml", {})


def test_folders_are_known_by_their_files(checkpoint, tmp_path):
    assert source_values(checkpoint, {})["model"] == "tiny"  # the plain Chameleon
    assert source_values(checkpoint, {"model": "anole"})["model"] == "anole"
    lumina = shutil.copytree(checkpoint, tmp_path / "Lumina-mGPT-7B-512")
    assert source_values(lumina, {})["model"] == "lumina_mgpt"
    for name, small in thinned(SMALL.items()):
        (tmp_path / name).mkdir()
        if name != "llamagen":
            assert source_values(small.write(tmp_path / name), {})["model"] == small.model
    second = write_lumina2(tmp_path / "Lumina-mGPT-2.0-Omni")
    assert source_values(second, {})["model"] == "lumina_mgpt2"
    for side, name in ((16, "llamagen"), (32, "llamagen2")):
        (tmp_path / name).mkdir(exist_ok=True)
        config = json.dumps(public_config(LlamaGenSizes(side=side)))
        (tmp_path / name / "config.json").write_text(config)
        assert source_values(tmp_path / name, {})["model"] == name


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("illumina", "tiny"),
        ("illumina/x", "tiny"),
        ("lumina/work/x", "tiny"),  # too far from the files
        ("emu3/x", "tiny"),
        ("anole", "anole"),
        ("Lumina-mGPT-7B-512/x", "lumina_mgpt"),
        ("models--a--Lumina-mGPT/snapshots/1", "lumina_mgpt"),
        ("lumina/anole", "anole"),
    ],
)
def test_names_tell_apart_what_files_do_not(checkpoint, tmp_path, name, model):
    (tmp_path / name).mkdir(parents=True)
    shutil.copy(checkpoint / "config.json", tmp_path / name)
    assert source_values(tmp_path / name, {})["model"] == model


@pytest.mark.parametrize(("name", "told"), [("mine", True), ("anole", False), ("lumina", False)])
def test_a_model_that_files_and_name_do_not_tell_is_said(checkpoint, tmp_path, capsys, name, told):
    """Read as another model's, they make images that are no pictures."""
    folder = shutil.copytree(checkpoint, tmp_path / name)
    source_values(folder, {})
    said = f"note: model tiny: taken, though {folder} may also hold anole or lumina_mgpt"
    assert (said in capsys.readouterr().err) == told


def test_known_hub_ids_need_no_look_at_the_hub():
    found = source_values("leloy/Anole-7b-v0.1-hf", {})
    usual = {"dtype": "bf16", "temperature": 1.0, "top_k": 2000, "top_p": 1.0, "cfg": 3.0}
    assert found == usual | {"model_path": "leloy/Anole-7b-v0.1-hf", "model": "anole"}
    assert source_values("jadohu/LlamaGen-T2I-2", {})["model"] == "llamagen2"
    assert source_values("some/where", {"model": "anole"})["model"] == "anole"


def test_the_folder_around_a_models_own_is_recognised(tmp_path):
    (tmp_path / "Janus-Pro-7B").mkdir()
    assert source_values(tmp_path, {})["model"] == "janus_pro"
    (tmp_path / "Emu3-Gen-hf").mkdir()  # which of the two?
    with pytest.raises(SettingsError, match="missing file: .*config.json"):
        source_values(tmp_path, {})


def test_what_is_none_of_these_is_refused():
    for name in ("nowhere", "a/b/c", "/no/where", ""):
        with pytest.raises(SettingsError, match="expected a folder, owner/name.*got"):
            source_values(name, {})
    with pytest.raises(SettingsError, match="got 'emu_3'. Did you mean emu3"):
        source_values("emu_3", {})


@pytest.mark.parametrize(
    ("name", "entries", "message"),
    [
        ("tiny", {"attention_bias": True}, "attention_bias: expected False, got True$"),
        ("emu3", {"text_config": {"hidden_size": 0}}, "hidden_size: expected whole"),
        ("llamagen", {"block_size": 8}, "block_size: expected a square, got 8$"),
        ("llamagen", {"block_size": 9}, "expected 256.*; config.json: block_size is 9, expected 1"),
    ],
)
def test_a_wrong_entry_is_named(tmp_path, name, entries, message):
    folder = SMALL[name].write(tmp_path)
    config = json.loads((folder / "config.json").read_text()) | entries
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(SettingsError, match=f"^{folder}: config.json: .*{message}"):
        source_values(folder, {})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("modle: tiny", "modle: unknown flag. Did you mean model"),
        ("tuned: 3", "tuned: expected what"),
        ("seed: x", "seed: expected a whole"),
        ("- seed", "expected `name: value` lines"),
    ],
)
def test_errors_of_a_recipe_name_no_flag(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(SettingsError) as refused, python_names():
        source_values(path, {})
    assert str(refused.value).startswith(f"recipe {path}: {message}")


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(SettingsError, match="missing file: .*config.json"):
        source_values(tmp_path, {})
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SettingsError, match="expected the config.json of tiny"):
        source_values(tmp_path, {})
    with pytest.raises(SettingsError, match="model: expected tiny.*got 'anole'"):
        source_values("tiny", {"model": "anole"})
