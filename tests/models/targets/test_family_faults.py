"""Files of every family that are missing, damaged or different: each fault is one clear line."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from families import SMALL
from safetensors.torch import load_file, save_file
from small_emu3 import AUTHORS, Emu3Sizes, emu3_settings, write_emu3
from small_llamagen import LlamaGenSizes, llamagen_settings, small_janus, write_llamagen, write_vq
from transformers import BertConfig

from configs.schema import MethodSettings, RunSettings
from models.targets.llamagen import LlamaGen
from runs.session import open_session

Damage = Callable[[Path], object]


def entries(part: str = "", file: str = "config.json", **values: object) -> Damage:
    """Change entries of a JSON file; None removes one. part: dots lead into it."""

    def change(folder: Path) -> None:
        content = json.loads((folder / file).read_text())
        section = content
        for name in filter(None, part.split(".")):
            section = section[name]
        section.update(values)
        for name in [name for name, value in values.items() if value is None]:
            del section[name]
        (folder / file).write_text(json.dumps(content))

    return change


def weights(file: str = "model.safetensors", without: str = "", **values: torch.Tensor) -> Damage:
    """Drop the weights whose keys start so, and put others in (dots of keys are written __)."""

    def change(folder: Path) -> None:
        path = folder / file
        pickled = path.suffix != ".safetensors"
        state = torch.load(path) if pickled else load_file(path)
        # copies, since safetensors maps the file that is written again
        state = {key: value.clone() for key, value in state.items()}
        if without:
            state = {key: value for key, value in state.items() if not key.startswith(without)}
        state |= {name.replace("__", "."): value for name, value in values.items()}
        torch.save(state, path) if pickled else save_file(state, path, {"format": "pt"})

    return change


def text(file: str, old: str, new: str) -> Damage:
    def change(folder: Path) -> None:
        content = (folder / file).read_text()
        assert old in content
        (folder / file).write_text(content.replace(old, new))

    return change


def content(file: str, content: str | bytes) -> Damage:
    data = content.encode() if isinstance(content, str) else content
    return lambda folder: (folder / file).write_bytes(data)


def without(file: str) -> Damage:
    def change(folder: Path) -> None:
        path = folder / file
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def cut(file: str) -> Damage:
    return lambda folder: (folder / file).write_bytes((folder / file).read_bytes()[:300])


def code(file: str) -> Damage:
    """A pickle that would call a function when it is read, in place of the weights."""

    def change(folder: Path) -> None:
        for path in (folder / file).parent.glob("model.safetensors"):
            path.unlink()
        (folder / file).write_bytes(pickle.dumps({"shared.weight": print}, 2))

    return change


def both(*changes: Damage) -> Damage:
    return lambda folder: [change(folder) for change in changes]


T5 = "../t5/flan-t5-xl"
EMU3_NORM = "text_model.model.layers.1.input_layernorm.weight"
EMU3_CODEC = "vqmodel.decoder.up_block.up.0.block.0.conv1.weight"
JANUS_LAYER = "model.language_model.layers.1.self_attn.q_proj.weight"
JANUS_HEAD = "model.generation_head.vision_head.bias"
JANUS_CODEC = "model.vqmodel.decoder.up.1.block.0.conv1.weight"
LIQUID_NORM = "model.layers.1.input_layernorm.weight"
T5_NORM = "encoder__final_layer_norm__weight"
QUERY_NORM = "model__layers__0__self_attn__q_norm__weight"
ENCODER = "--text_encoder_path: .*"

FAULTS: dict[str, list[tuple[Damage, str]]] = {
    "emu3": [
        (entries(model_type="janus"), "holds Janus-Pro, as its config.json says; use --model jan"),
        (entries("text_config", vocab_size=999), "vocab_size is 999, the weights hold 289"),
        (entries("text_config", num_hidden_layers=3), "num_hidden_layers is 3, the weights hold 2"),
        (entries("text_config", num_key_value_heads=3), "heads: expected divisors of 4"),
        (entries("text_config", num_key_value_heads=1), r"k_proj.weight has shape \(16, 32\), exp"),
        (entries("text_config", rope_scaling={"type": "linear"}), "rope_scaling: expected"),
        (entries("text_config", max_position_embeddings=24), "an image of 4 x 5 tokens takes 24"),
        (entries("vq_config", codebook_size=25), r"embedding.weight has shape \(24, 4\), expected"),
        (entries("vq_config", double_latent=True), "vq_config.double_latent: expected Fal"),
        (entries("vq_config", base_channels=33), "vq_config: ch_mult: found"),
        (entries("vq_config", channel_multiplier="x"), "vq_config: "),
        (weights(without=EMU3_NORM), "missing key model.text_model.layers.1.input_layernorm"),
        (weights(x=torch.ones(2)), "unexpected key x"),
        (weights(text_model__lm_head__weight=torch.ones(9, 32)), r"\(9, 32\), expected 289 rows"),
        (
            weights(without=EMU3_CODEC),
            r"weights vqmodel\.\* does not fit.*missing key vqmodel\.decoder",
        ),
        (weights(**{EMU3_CODEC: torch.ones(2)}), r"conv1.weight has shape \(2,\), expected"),
        (weights(without="vqmodel."), "no image codec among the weights"),
        (without("tokenizer.json"), r"found no tokenizer\.json, nor emu3\.tiktoken and emu3_vis"),
        (text("tokenizer.json", "extra_200", "x"), r"tokenizer\.json has no token '<\|extra_200"),
        (
            text("tokenizer.json", "token 000020", "x"),
            r"tokenizer\.json names 20 image codes from id 265 on .*; the image tokenizer has 24",
        ),
    ],
    "janus_pro": [
        (entries(model_type="chameleon"), "got 'chameleon'"),
        (entries("text_config", hidden_size="32"), "hidden_size: expected"),
        (entries("text_config", head_dim=8), "head_dim: expected 16"),
        (entries("text_config", hidden_act="gelu"), "hidden_act: expected 'silu'"),
        (entries("text_config", max_position_embeddings=16), "embeddings is 16; an image of 4 x 4"),
        (
            entries("text_config", rope_parameters={"rope_type": "yarn"}),
            "rope_parameters: expected",
        ),
        (entries("vq_config", num_embeddings=0), r"vq_config\.num_embeddings: expected whole"),
        (entries("vq_config", num_hidden_layers=3), r"vq_config\.num_hidden_layers: expected"),
        (entries("vq_config", num_embeddings=25), "the codec has 24 codes, config.json 25"),
        (entries("vision_config", image_size=65), "image_size: expected multiples of 16"),
        (entries("vision_config", num_image_tokens=9), "num_image_tokens: expected 16"),
        (weights(without=JANUS_LAYER), f"missing key {JANUS_LAYER}"),
        (weights(**{JANUS_HEAD: torch.ones(23)}), r"vision_head\.bias has shape \(23,\)"),
        (weights(model__language_model__x=torch.ones(2)), r"unexpected key model\.language_model"),
        (weights(without="model.vqmodel."), r"among the weights \(keys model\.vqmodel\.\*\)"),
        (
            weights(without=JANUS_CODEC),
            r"vqmodel\.\* does not fit.*missing key .*\.decoder\.conv_blocks\.1\.res",
        ),
        (without("tokenizer.json"), r"missing file: .*tokenizer\.json"),
        (content("tokenizer.json", "{}"), r"tokenizer\.json is not a tokenizer file"),
        (text("tokenizer.json", "begin_of_image", "x"), "json has no token '<begin_of_image>'"),
    ],
    "janus_pro of the authors": [
        (entries(gen_aligner_config=None), r"lacks the entry 'gen_aligner_config\.params'"),
        (entries("gen_aligner_config.params", depth=1), r"depth: expected 2"),
        (entries("gen_vision_config", cls="VQ-8"), "cls: expected 'VQ-16'"),
        (entries("gen_head_config.params", image_token_embed=None), "image_token_embed: expected"),
        (entries("language_config", hidden_size=64), "hidden_size is 64, the weights hold"),
        (entries("language_config", num_hidden_layers=1), "layers is 1, the weights hold 2"),
        (code("pytorch_model.bin"), r"cannot read .*pytorch_model\.bin: damaged, or more"),
    ],
    "liquid": [
        (entries(model_type="llama"), "got 'llama'"),
        (entries(vocab_size=999), "vocab_size is 999, the weights hold 287"),
        (entries(head_dim=8), r"q_proj.weight has shape \(64, 32\), expected \(32, 32\)"),
        (entries(head_dim=15), "head_dim: expected even"),
        (entries(hidden_act="silu"), "hidden_act: expected 'gelu' or 'gelu_pytorch_tanh"),
        (entries(hidden_activation="relu"), "hidden_activation: expected 'gelu_pytorch"),
        (entries(tie_word_embeddings=False), "tie_word_embeddings: expected True"),
        (entries(max_position_embeddings=16), "an image of 4 x 4 tokens takes 16"),
        (weights(without=LIQUID_NORM), f"missing key {LIQUID_NORM}"),
        (weights(**{LIQUID_NORM: torch.ones(2)}), r"has shape \(2,\), expected \(32,\)"),
        (without("tokenizer.json"), r"missing file: .*tokenizer\.json"),
        (text("tokenizer.json", "<boi>", "<unused0>"), r"tokenizer\.json has no token '<boi>'"),
        (without("tokenizer"), "found no vqgan.yaml .*--tokenizer_path names another folder"),
        (text("tokenizer/vqgan.yaml", "n_embed: 24", "n_embed: 25"), "25, the weights hold 24"),
    ],
    "llamagen": [
        (entries(block_size=None), "block_size: expected"),
        (entries(block_size=15), "block_size: expected a square"),
        (entries(block_size=25), "block_size is 25, expected 16"),
        (entries(cls_token_num="120"), "cls_token_num: expected"),
        (entries(caption_dim=0), "caption_dim: expected"),
        (entries(input_type="c2i"), "input_type: expected 't2i'"),
        (entries(pretraining_tp=2), "pretraining_tp: expected"),
        (entries(attention_bias=True), "attention_bias: expected"),
        (entries(hidden_size=None), "lacks the entry 'hidden_size'"),
        (
            entries(num_attention_heads=16),
            "channels per head: expected a multiple of 4, got 32 /",
        ),
        (entries(cls_token_num=10), "cls_token_num is 10, the weights hold 9"),
        (entries(num_key_value_heads="2"), "num_key_value_heads: expected"),
        (entries(rope_parameters=[1]), r"rope_parameters: expected"),
        (entries(rms_norm_eps="abc"), "rms_norm_eps: expected"),
        (entries(rope_theta=-1.0), "rope_theta: expected"),
        (weights(without="model.cls_embedding.cap_proj.fc2"), "missing key .*cap_proj.fc2.weight"),
        (weights(**{QUERY_NORM: torch.ones(2)}), "unexpected key .*q_norm"),
        (weights(lm_head__weight=torch.ones(24, 8)), r"lm_head\.weight has shape \(24, 8\)"),
        (
            lambda folder: write_vq(folder.parent / "vq_ds16_t2i.pt", small_janus(25, 4)),
            r"--vq_path: .*vq_ds16_t2i\.pt has 25, .*config\.json has vocab_size 24",
        ),
        (without(T5), r"--text_encoder_path: .*flan-t5-xl' is neither a folder nor a hub id"),
        (without(f"{T5}/config.json"), r"missing file: .*flan-t5-xl/config\.json"),
        (content(f"{T5}/config.json", "{"), r"flan-t5-xl/config\.json: .*JSON"),
        (content(f"{T5}/config.json", BertConfig().to_json_string()), "expected 't5', got 'bert'"),
        (without(f"{T5}/model.safetensors"), f"{ENCODER}no weights in .*flan-t5-xl"),
        (cut(f"{T5}/model.safetensors"), f"{ENCODER}damaged"),
        (code(f"{T5}/pytorch_model.bin"), f"{ENCODER}damaged, or more than tensors"),
        (
            weights(f"{T5}/model.safetensors", "encoder.final"),
            rf"{ENCODER}missing key encoder\.fin",
        ),
        (weights(f"{T5}/model.safetensors", **{T5_NORM: torch.ones(3)}), rf"{ENCODER}shape \(3,\)"),
        (content(f"{T5}/tokenizer.json", "{}"), f"{ENCODER}cannot be read as a tokenizer"),
        (entries(file=f"{T5}/tokenizer_config.json", pad_token=None), "without a padding token"),
        (weights("drafter/pytorch_model.bin", "fc.bias"), "missing key fc.bias"),
        (
            weights("drafter/pytorch_model.bin", layers__0__input_layernorm__weight=torch.ones(32)),
            "unexpected key layers.0.input_layernorm.weight",
        ),
    ],
}
CASES = [(name, *case) for name, cases in FAULTS.items() for case in cases]


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> dict[str, Path]:
    """Whole folders by layout, each in a folder of its own."""
    return {name: SMALL[name].write(tmp_path_factory.mktemp("family")) for name in FAULTS}


@pytest.fixture
def copied(originals, tmp_path) -> Iterator[Callable[[str], Path]]:
    """Return what copies a layout, with the parts next to it, so that a test may damage it."""

    def copy(name: str) -> Path:
        shutil.copytree(originals[name].parent, tmp_path / "copy")
        return tmp_path / "copy" / originals[name].name

    return copy


def load(name: str, folder: Path) -> object:
    method = MethodSettings("adt" if name == "llamagen" else "ar")
    return SMALL[name].load(folder, method).target


@pytest.mark.parametrize(("name", "damage", "message"), CASES, ids=[case[2] for case in CASES])
def test_a_fault_is_one_clear_line(name, damage, message, copied) -> None:
    folder = copied(name)
    damage(folder)
    with pytest.raises(ValueError, match=message) as caught:
        load(name, folder)
    assert "\n" not in str(caught.value)


CODEC, RANKS = "../Emu3-VisionTokenizer", "emu3.tiktoken"


@pytest.fixture(scope="module")
def authors(tmp_path_factory) -> Path:
    """Emu3 in the authors' layout, with the codec next to it."""
    folder = tmp_path_factory.mktemp("authors") / "Emu3-Gen"
    return write_emu3(folder, Emu3Sizes(words=AUTHORS), "authors")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without(CODEC), r"no image codec among .*no folder .*Emu3-VisionTokenizer: `hf download"),
        (without(f"{CODEC}/config.json"), r"missing file: .*Emu3-VisionTokenizer/config\.json"),
        (without(RANKS), r"missing file: .*emu3\.tiktoken"),
        (content(RANKS, "? 1"), r"emu3\.tiktoken is not a file of tokens and ranks"),
        (without("emu3_vision_tokens.txt"), r"missing file: .*emu3_vision_tokens\.txt"),
    ],
    ids=["codec", "codec's config", "no ranks", "damaged ranks", "image tokens"],
)
def test_an_authors_folder_of_emu3_that_is_not_whole(damage, message, authors, tmp_path) -> None:
    shutil.copytree(authors.parent, tmp_path / "copy")
    damage(tmp_path / "copy" / "Emu3-Gen")
    with pytest.raises(ValueError, match=message):
        open_session(
            emu3_settings(tmp_path / "copy" / "Emu3-Gen").with_method(MethodSettings("ar"))
        )


def test_gemma_without_image_codes(copied) -> None:
    folder = copied("liquid")
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    added = [{**tokenizer["added_tokens"][-1], "id": 263 + i, "content": f"<x{i}>"} for i in (0, 1)]
    tokenizer["added_tokens"] += added
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ValueError, match="24 codes, .* first has the id 265; config.json has 287"):
        load("liquid", folder)


def test_a_text_encoder_of_another_width(originals, tmp_path) -> None:
    other = write_llamagen(tmp_path / "other", LlamaGenSizes(width=24))
    settings = llamagen_settings(originals["llamagen"]).with_method(MethodSettings("ar"))
    object.__setattr__(settings, "text_encoder_path", str(other.parent / "t5" / "flan-t5-xl"))
    message = r"--text_encoder_path: .* has 24, .*config\.json has caption_dim 16"
    with pytest.raises(ValueError, match=message):
        SMALL["llamagen"].open(settings)


def test_a_text_encoder_of_the_hub_offline(originals, monkeypatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    settings = llamagen_settings(originals["llamagen"]).with_method(MethodSettings("ar"))
    object.__setattr__(settings, "text_encoder_path", "nobody/t5-that-is-not-there")
    with pytest.raises(ValueError, match="--text_encoder_path: 'nobody/t5.*HF_HUB_OFFLINE is set"):
        SMALL["llamagen"].open(settings)


def test_stages_of_llamagen(tmp_path) -> None:
    """The stage is that of --model, and the drafter's has to be the same."""
    folder = write_llamagen(tmp_path, LlamaGenSizes(side=16))
    entries(file="drafter/config.json", input_type="t2i2")(folder)
    with pytest.raises(ValueError, match="input_type is 't2i2'; the target needs 't2i'"):
        open_session(llamagen_settings(folder))
    other = RunSettings(prompt="a cat", model="llamagen2", model_path=str(folder), device="cpu")
    with pytest.raises(ValueError, match="is 256, expected 1024: .*--model llamagen has 256"):
        open_session(other)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (entries(file="drafter/config.json", hidden_size=64), "hidden_size"),
        (content("../vq_ds16_t2i.pt", "nonsense"), "vq_ds16_t2i"),
        (entries(file=f"{T5}/config.json", d_model=8), "--text_encoder_path"),
    ],
    ids=["drafter", "codec", "text encoder"],
)
def test_faults_of_parts_are_found_before_the_weights_are_read(
    damage, message, copied, monkeypatch
) -> None:
    monkeypatch.setattr(LlamaGen, "network", None)
    folder = copied("llamagen")
    damage(folder)
    with pytest.raises(ValueError, match=message):
        load("llamagen", folder)
