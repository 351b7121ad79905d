"""Where LlamaGen's parts lie, what is asked before anything is loaded, and its recipes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from stand_ins import empty_llamagen

from configs.fields import SettingsError
from configs.schema import ROOT, RunSettings, SamplingSettings
from configs.tools import InspectSettings
from runs.commands import run_settings
from support.provenance import checkpoint_id


@pytest.fixture
def folder(tmp_path) -> Path:
    return empty_llamagen(tmp_path)


def test_parts_lie_next_to_the_folder_unless_the_flags_say_where(folder) -> None:
    settings = RunSettings(prompt="a cat", model="llamagen", model_path=str(folder))
    assert settings.text_encoder_path == str(folder.parent / "t5" / "flan-t5-xl")
    assert settings.vq_path == str(folder.parent / "vq_ds16_t2i.pt")
    assert set(settings.identity()) >= {"text_encoder_path", "vq_path"}
    hub = RunSettings(prompt="a cat", model="llamagen2", model_path="jadohu/LlamaGen-T2I-2")
    assert hub.vq_path == str(ROOT / "ckpts/llamagen/vq_ds16_t2i.pt")
    given = RunSettings(
        prompt="a cat", model="llamagen", text_encoder_path="google/flan-t5-xl", vq_path="~/vq.pt"
    )
    assert given.text_encoder_path == "google/flan-t5-xl" and given.vq_path == str(
        Path("~/vq.pt").expanduser()
    )


def test_a_codec_is_told_by_its_contents(folder) -> None:
    """A folder of images belongs to one codec, wherever that lies."""
    file = folder.parent / "vq_ds16_t2i.pt"
    before = checkpoint_id(file)
    assert checkpoint_id(file) == before
    file.write_text("{ }")
    assert checkpoint_id(file) != before


def test_what_readers_get_with_a_checkpoint_is_no_part_of_it(folder) -> None:
    before = checkpoint_id(folder)
    (folder / "README.md").write_text("A model.")
    (folder / "samples.png").write_bytes(b"a picture")
    assert checkpoint_id(folder) == before
    (folder / "config.json").write_text("{ }")
    assert checkpoint_id(folder) != before


@pytest.mark.parametrize("stage", ["llamagen", "llamagen2"])
def test_recipes_are_those_of_the_public_sample_script(stage, folder) -> None:
    texts = {
        "config": str(ROOT / f"configs/{stage}.yaml"),
        "prompt": "a cat",
        "model_path": str(folder),
    }
    texts["drafter_path"] = str(folder / "drafter")
    settings = run_settings(texts)
    assert (settings.model, settings.dtype) == (stage, "bf16")
    assert settings.sampling == SamplingSettings(temperature=1.0, top_k=1000, top_p=1.0, cfg=7.5)


@pytest.mark.parametrize("flag", ["text_encoder_path", "vq_path"])
def test_models_without_parts_refuse_the_flags(flag) -> None:
    message = f"--{flag}: 'x' works only with --model .*llamagen or llamagen2"
    with pytest.raises(SettingsError, match=message):
        RunSettings(prompt="a cat", **{flag: "x"})
    with pytest.raises(SettingsError, match=message):
        InspectSettings(model="anole", **{flag: "x"})


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("vq_ds16_t2i.pt", "--vq_path .*does not exist"),
        ("t5", "--text_encoder_path .*expected a folder such as .*t5/flan-t5-xl, or"),
        (
            "t5/flan-t5-xl/tokenizer.json",
            "--text_encoder_path .*without tokenizer.json or spiece.model",
        ),
        ("t5/flan-t5-xl/model.safetensors", "--text_encoder_path .*without model.safetensors"),
        ("LlamaGen-T2I/model.safetensors", "--model_path .*without model.safetensors"),
        ("LlamaGen-T2I/drafter/pytorch_model.bin", "--drafter_path .*without"),
    ],
)
def test_missing_files_are_named_before_anything_is_loaded(place, message, folder) -> None:
    path = folder.parent / place
    path.unlink() if path.is_file() else shutil.rmtree(path)
    with pytest.raises(SettingsError, match=message):
        run_settings({"prompt": "a cat", "model": "llamagen", "model_path": str(folder)})
