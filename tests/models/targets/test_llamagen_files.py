"""LlamaGen's files: each fault is a ValueError that names the flag or file;
and the command line reads them.
"""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from small_llamagen import (
    LlamaGenSizes,
    llamagen_settings,
    open_llamagen,
    small_janus,
    write_llamagen,
    write_vq,
)
from transformers import BertConfig

from configs.schema import MethodSettings, RunSettings
from main import main
from models.base import TargetOptions
from models.files.network import Network
from models.registry import FAMILIES
from models.targets.text_encoder import TextEncoder
from runs.session import Session, open_session


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    return write_llamagen(tmp_path_factory.mktemp("llamagen"))


@pytest.fixture
def folder(original, tmp_path) -> Path:
    """A copy that a test may damage, with text encoder and image tokenizer next to it."""
    return Path(shutil.copytree(original.parent, tmp_path / "copy")) / original.name


def load(folder: Path, method: str = "adt") -> Session:
    return open_llamagen(llamagen_settings(folder).with_method(MethodSettings(method)))


def change_json(path: Path, **entries: object) -> None:
    content = json.loads(path.read_text()) | entries
    path.write_text(
        json.dumps({name: value for name, value in content.items() if value is not None})
    )


def change_weights(path: Path, **entries: torch.Tensor | None) -> None:
    names = {name.replace("__", "."): value for name, value in entries.items()}
    state = (load_file(path) if path.suffix == ".safetensors" else torch.load(path)) | names
    state = {name: value for name, value in state.items() if value is not None}
    save_file(state, path, {"format": "pt"}) if path.suffix == ".safetensors" else torch.save(
        state, path
    )


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("block_size", None, "block_size is None"),
        ("block_size", 15, "block_size is 15; allowed: a square"),
        ("block_size", 25, "block_size is 25, expected 16: .*--model llamagen .*--model llamagen2"),
        ("cls_token_num", "120", "cls_token_num is '120'"),
        ("caption_dim", 0, "caption_dim is 0"),
        ("input_type", "c2i", "input_type is 'c2i'; allowed: 't2i'"),
        ("pretraining_tp", 2, "pretraining_tp is 2"),
        ("attention_bias", True, "attention_bias is True"),
        ("hidden_size", None, "lacks the entry 'hidden_size'"),
        ("num_attention_heads", 16, "32 / 16 channels per head; allowed: a multiple of 4"),
        ("hidden_size", 40, "hidden_size is 40, the weights hold 32"),
        ("cls_token_num", 10, "cls_token_num is 10, the weights hold 9"),
        ("vocab_size", 25, r"config\.json: vocab_size is 25, the weights hold 24"),
    ],
)
def test_a_config_that_does_not_fit(entry, value, message, folder) -> None:
    change_json(folder / "config.json", **{entry: value})
    with pytest.raises(ValueError, match=message):
        load(folder, "ar")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "model__cls_embedding__cap_proj__fc2__weight",
            None,
            "missing key model.cls_embedding.cap_proj.fc2.weight",
        ),
        (
            "model__layers__1__input_layernorm__weight",
            None,
            "missing key model.layers.1.input_layernorm.weight",
        ),
        ("model__layers__0__self_attn__q_norm__weight", torch.ones(2), "unexpected key .*q_norm"),
        ("lm_head__weight", torch.ones(24, 8), r"lm_head\.weight has shape \(24, 8\)"),
    ],
)
def test_weights_that_do_not_fit(key, value, message, folder) -> None:
    change_weights(folder / "model.safetensors", **{key: value})
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_weights_in_a_bin_file(folder, original) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    found, expected = (
        load(folder).target.transformer.state_dict(),
        load(original).target.transformer.state_dict(),
    )
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_codec_with_another_number_of_codes(folder) -> None:
    write_vq(folder.parent / "vq_ds16_t2i.pt", small_janus(25, 4))
    with pytest.raises(
        ValueError, match=r"--vq_path: .*vq_ds16_t2i\.pt has 25, .*config\.json has vocab_size 24"
    ):
        load(folder)


def t5_of(folder: Path) -> Path:
    return folder.parent / "t5" / "flan-t5-xl"


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:300])


def run_code(t5: Path) -> None:
    (t5 / "model.safetensors").unlink()
    with (t5 / "pytorch_model.bin").open("wb") as file:
        pickle.dump({"shared.weight": print}, file)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda t5: shutil.rmtree(t5),
         r"--text_encoder_path: .*flan-t5-xl' is neither a folder nor a hub id"),
        (lambda t5: (t5 / "config.json").unlink(), r"missing file: .*flan-t5-xl/config\.json"),
        (lambda t5: (t5 / "config.json").write_text("{"),
         r"flan-t5-xl/config\.json: found no JSON"),
        (lambda t5: (t5 / "config.json").write_text(BertConfig().to_json_string()),
         "type 'bert'; allowed: 't5'"),
        (lambda t5: (t5 / "model.safetensors").unlink(), "--text_encoder_path: .*cannot be read"),
        (lambda t5: cut(t5 / "model.safetensors"), "--text_encoder_path: .*cannot be read"),
        (run_code, "--text_encoder_path: .*cannot be read"),
        (
            lambda t5: change_weights(t5 / "model.safetensors",
            encoder__final_layer_norm__weight=None),
            r"--text_encoder_path: .*lacks the weights encoder\.final_layer_norm\.weight",
        ),
        (
            lambda t5: change_weights(t5 / "model.safetensors",
            encoder__final_layer_norm__weight=torch.ones(3)),
            "--text_encoder_path: .*cannot be read",
        ),
        (lambda t5: (t5 / "tokenizer.json").write_text("{}"),
         "--text_encoder_path: .*cannot be read"),
        (lambda t5: change_json(t5 / "tokenizer_config.json", pad_token=None),
         "without a padding token"),
    ],
    ids=["folder", "no config", "cut config", "other model", "no weights", "cut weights",
    "runs code", "missing key",
         "shape", "tokenizer", "padding"],
)  # fmt: skip
def test_a_text_encoder_that_cannot_be_used(damage, message, folder) -> None:
    damage(t5_of(folder))
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_a_text_encoder_of_another_width(folder, tmp_path) -> None:
    other = write_llamagen(tmp_path / "other", LlamaGenSizes(width=24))
    settings = RunSettings(
        prompt="a cat",
        model="llamagen",
        model_path=str(folder),
        text_encoder_path=str(t5_of(other)),
        device="cpu",
    )
    with pytest.raises(
        ValueError, match=r"--text_encoder_path: .* has 24, .*config\.json has caption_dim 16"
    ):
        open_llamagen(settings)


@pytest.mark.parametrize("path", ["flan-t5-xl", "./google/flan-t5-xl", "a/b/c"])
def test_a_path_that_is_no_hub_id_either(path, folder) -> None:
    with pytest.raises(ValueError, match="--text_encoder_path: .*neither a folder nor a hub id"):
        TextEncoder.load(path, 120, torch.device("cpu"))


def test_a_hub_id_offline(folder, monkeypatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        ValueError, match="--text_encoder_path: nobody/t5-that-is-not-there cannot be read"
    ):
        TextEncoder.load("nobody/t5-that-is-not-there", 120, torch.device("cpu"))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("fc__bias", None, "missing key fc.bias"),
        (
            "layers__0__input_layernorm__weight",
            torch.ones(32),
            "unexpected key layers.0.input_layernorm.weight",
        ),
        (
            "layers__0__mlp__up_proj__weight",
            torch.ones(3, 32),
            r"up_proj\.weight has shape \(3, 32\)",
        ),
    ],
)
def test_a_drafter_that_does_not_fit(key, value, message, folder) -> None:
    change_weights(folder / "drafter" / "pytorch_model.bin", **{key: value})
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_a_drafter_without_an_embedding_takes_the_targets(folder) -> None:
    change_weights(folder / "drafter" / "pytorch_model.bin", embed_tokens__weight=None)
    session = load(folder)
    assert torch.equal(session.drafter.network.embedding.weight, session.target.embedding())


def test_a_drafter_of_the_other_stage(tmp_path) -> None:
    folder = write_llamagen(tmp_path, LlamaGenSizes(side=16))
    change_json(folder / "drafter" / "config.json", input_type="t2i2")
    with pytest.raises(ValueError, match="input_type is 't2i2'; the target needs 't2i'"):
        open_session(llamagen_settings(folder))


def test_the_stage_is_that_of_the_name(tmp_path) -> None:
    folder = write_llamagen(tmp_path, LlamaGenSizes(side=16))
    settings = RunSettings(prompt="a cat", model="llamagen2", model_path=str(folder), device="cpu")
    with pytest.raises(
        ValueError, match="block_size is 256, expected 1024: .*--model llamagen has 256"
    ):
        open_session(settings)


def test_the_command_line_draws_an_image(tmp_path) -> None:
    folder = write_llamagen(tmp_path, LlamaGenSizes(side=16))
    words = f"generate_images --model llamagen --model_path {folder} --device cpu --cfg 7.5"
    assert (
        main(
            [*words.split(), "--output_dir", f"{tmp_path}/out", "--prompt", "a red cat on the mat"]
        )
        == 0
    )
    (path,) = (tmp_path / "out" / "img").iterdir()
    assert Image.open(path).size == (32, 32)


def test_lengths_of_prompts_are_known_without_the_text_encoder(folder, monkeypatch) -> None:
    target = load(folder, "ar").target
    monkeypatch.setattr(TextEncoder, "__call__", None)
    assert target.length("a cat") == LlamaGenSizes().slots


def test_the_table_of_neighbours_is_of_the_stored_vectors(folder) -> None:
    """As published: not of the vectors of length 1 that are decoded."""
    options = TargetOptions(
        torch.float32, torch.device("cpu"), vq_path=str(folder.parent / "vq_ds16_t2i.pt")
    )
    found = FAMILIES["llamagen"].codebook(folder, options)
    assert torch.equal(found, torch.load(options.vq_path)["model"]["quantize.embedding.weight"])
    assert (found.norm(dim=-1) - 1).abs().max() > 0.1


@pytest.mark.parametrize("part", ["drafter", "codec", "text encoder"])
def test_faults_of_parts_are_found_before_the_weights_are_read(part, folder, monkeypatch) -> None:
    monkeypatch.setattr(Network, "fill", None)
    if part == "drafter":
        change_json(folder / "drafter" / "config.json", hidden_size=64)
    elif part == "codec":
        (folder.parent / "vq_ds16_t2i.pt").write_bytes(b"nonsense")
    else:
        change_json(folder.parent / "t5" / "flan-t5-xl" / "config.json", d_model=8)
    with pytest.raises(ValueError, match="hidden_size|vq_ds16_t2i|--text_encoder_path"):
        load(folder)


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        ("num_key_value_heads", "2"),
        ("rope_parameters", [1]),
        ("rms_norm_eps", "abc"),
        ("rope_theta", -1.0),
    ],
)
def test_values_of_other_types_are_named(entry, value, folder) -> None:
    change_json(folder / "config.json", **{entry: value})
    with pytest.raises(ValueError, match=f"config.json: {entry} is "):
        load(folder, "ar")
