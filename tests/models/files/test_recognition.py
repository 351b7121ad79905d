"""Folders and hub ids: of another model, or of none; what they hold is named."""

import shutil
from dataclasses import replace
from pathlib import Path

import huggingface_hub
import pytest
import safetensors.numpy
from damage import Damage, entries, generated, refused
from huggingface_hub import constants
from huggingface_hub.errors import HTTPError, LocalEntryNotFoundError
from ran import without_progress
from small import loaded, small_settings

import main
from configs.methods import MethodSettings
from models.files.folders import checkpoint_folder, open_folder
from runs.session import open_session


def named(name: str) -> Damage:
    return lambda folder: folder.rename(folder.parent / name)


def authors_files(folder: Path) -> None:
    (folder / "config.json").rename(folder / "params.json")
    (folder / "model.safetensors").rename(folder / "consolidated.pth")


LUMINA, LUMINA2, ANOLE = "Lumina-mGPT-7B-768", "Lumina-mGPT-2.0", "Anole-7b-v0.1-hf"


@pytest.mark.parametrize(
    ("model", "holds", "change", "message"),
    [
        ("anole", "janus_pro", None, "holds Janus-Pro, .*use --model janus_pro"),
        ("anole", "llamagen", None, "LlamaGen, .*--model llamagen or --model llam"),
        ("anole", "liquid", None, "holds Liquid, .*use --model liquid"),
        ("anole", "tiny", entries(model_type="glm_image"), "GLM-Image, .*--model glm_image"),
        ("anole", "tiny", named("SimpleAR-1.5B-RL"), "holds SimpleAR, .*no --model"),
        ("anole", "tiny", entries(_name_or_path="x/lumina_768/"), "--model lumina_mgpt"),
        ("anole", "tiny", named(LUMINA), "use --model lumina_mgpt"),
        ("anole", "lumina_mgpt2", named("Lumina-mGPT2-mine"), "use --model lumina_mgpt2"),
        ("emu3", "janus_pro", None, "Janus-Pro, as its config.json says; use --model janus_pro"),
        ("emu3", "tiny", None, "for --model emu3, got 'chameleon'"),
        (
            "emu3",
            "emu3",
            entries(model_type="Emu3"),
            "holds Emu3 in its authors' files, .*use BAAI/Emu3-Gen-hf",
        ),
        ("emu3", "emu3_5", None, "holds Emu3.5, .*use --model emu3_5"),
        ("emu3", "emu3", entries(model_type="Emu3", vocab_size=282926), "holds Emu3.5"),
        ("emu3", "emu3", named("Emu3-Chat-hf"), "holds Emu3-Chat"),
        ("emu3", "emu3", entries("text_config", max_position_embeddings=131_072), "Emu3-Chat"),
        (
            "emu3",
            "emu3",
            lambda folder: entries(model_type="Emu3")(folder) or named("Emu3-Stage1")(folder),
            "holds Emu3-Stage1, .*no --model here reads Emu3-Stage1",
        ),
        ("anole", "tiny", named("chameleon-7b"), "holds Meta's Chameleon, .*use --model anole"),
        ("anole", "tiny", authors_files, "It holds the authors' files, .*Get it: .*leloy/Anole"),
        ("emu3_5", "emu3", None, "holds Emu3, .*use --model emu3"),
        ("emu3_5", "tiny", None, "for --model emu3_5, got 'chameleon'"),
        ("janus_pro", "tiny", None, "for --model janus_pro, got 'chameleon'"),
        ("janus_pro", "emu3", None, "holds Emu3, .*use --model emu3"),
        ("janus_pro", "liquid", None, "holds Liquid, .*use --model liquid"),
        ("liquid", "janus_pro", None, "holds Janus-Pro, .*use --model janus_pro"),
        ("liquid", "tiny", None, "for --model liquid, got 'chameleon'"),
        ("liquid", "tiny", named(ANOLE), "use --model anole"),
        ("liquid", "liquid", entries(vocab_size=256_000), "is 256000, the weights hold 287"),
        ("lumina_mgpt", "lumina_mgpt2", entries(vocab_size=171_385), "use --model lumina_mgpt2"),
        ("lumina_mgpt", "tiny", named(LUMINA2), "holds Lumina-mGPT 2.0"),
        ("lumina_mgpt", "tiny", named(ANOLE), "--model anole or --mod"),
        ("lumina_mgpt2", "tiny", None, "vocab_size: expected more than 155000, the id of.*got 288"),
        ("lumina_mgpt2", "tiny", named(LUMINA), "--model lumina_mgpt"),
        ("lumina_mgpt2", "janus_pro", None, "use --model janus_pro"),
        ("tiny", "emu3", None, "use --model emu3$"),
    ],
)
def test_a_folder_under_another_name_is_refused(
    tmp_path, originals, model, holds, change, message
) -> None:
    folder = Path(shutil.copytree(originals[holds], tmp_path / "a"))
    folder = (change and change(folder)) or folder
    settings = small_settings(folder).with_method(MethodSettings("ar"))
    with pytest.raises(ValueError, match=message):
        open_session(replace(settings, model=model))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("anole", "Anole-7b-v0.1-hf"),
        ("tiny", "anole"),
        ("tiny", "illumina"),
        ("anole", "anole-from-lumina"),
        ("lumina_mgpt", "Chameleon_7B_mGPT"),
        ("anole", "x"),
        ("lumina_mgpt", "Lumina-mGPT-7B-768"),
        ("lumina_mgpt", "models--Alpha-VLLM--Lumina-mGPT-7B-768/snapshots/1"),
        ("anole", "x/snapshots/lumina"),
    ],
)
def test_folders_that_may_be_the_models(tmp_path, model, name):
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "config.json").write_text('{"model_type": "chameleon"}')
    (tmp_path / name / "model.safetensors").write_bytes(safetensors.numpy.save({}))
    open_folder("model_path", str(tmp_path / name), model)


def test_a_run_of_another_model_leaves_no_folder(checkpoint, capsys):
    said = refused(capsys, checkpoint, "--model=emu3", "--method=ar")
    assert "for --model emu3, got 'chameleon'" in said
    assert not (checkpoint.parent / "out").exists()


def test_the_folder_around_it_makes_a_remark(tmp_path, checkpoint, capsys):
    folder = shutil.copytree(checkpoint, tmp_path / "lumina" / "checkpoint")
    code, said = generated(capsys, folder, "--method=ar", "--device=cpu")
    assert code == 0 and "lumina/checkpoint holds Lumina-mGPT" in said


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/at/all", "nowhere", "a/b/c", "my model/x"])
def test_a_path_that_is_no_folder_names_the_flag(path) -> None:
    with pytest.raises(ValueError, match=f"--drafter_path.*{path}"):
        checkpoint_folder(path, "--drafter_path")


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (LocalEntryNotFoundError("x"), "/cache; the hub did .*: x. Download .* `hf download a/b "),
        (HTTPError("closed"), "the hub did not deliver it: closed"),  # breaks off; no OSError
    ],
    ids=repr,
)
def test_a_hub_id_without_network_names_the_flag(error, said, monkeypatch) -> None:
    def snapshot(path: str, local_files_only: bool, ignore_patterns: tuple[str, ...]) -> str:
        assert not local_files_only
        raise error

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", "/cache")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    with pytest.raises(ValueError, match=f"--model_path: 'a/b' is no folder.*{said}"):
        checkpoint_folder("a/b", "--model_path")


def test_an_empty_cache_offline_is_one_line_of_the_command(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    words = "generate_images --model=anole --model_path=nobody/nothing --method=ar --prompt=cat"
    assert main.main([*words.split(), f"--output_dir={tmp_path / 'out'}"]) == 2
    *notes, told = without_progress(capsys.readouterr().err).splitlines()
    why = f"{tmp_path / 'cache'}; HF_HUB_OFFLINE is set: `hf download nobody/nothing`"
    assert told.startswith("error: --model_path: 'nobody/nothing' is no folder") and why in told
    assert all(note.startswith("note: --dtype bf16") for note in notes)  # told once a process


def test_a_snapshot_in_the_cache_is_read_offline(monkeypatch, checkpoint, tmp_path) -> None:
    def snapshot(path: str, local_files_only: bool, ignore_patterns: tuple[str, ...]) -> str:
        assert (path, local_files_only) == ("owner/name", True)
        return str(checkpoint)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr("models.files.folders._READ", {})
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert checkpoint_folder("owner/name", "--model_path") == checkpoint
    assert loaded("owner/name", "anole").vocab.size == 24
