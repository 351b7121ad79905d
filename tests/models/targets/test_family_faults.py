"""Files of every family that are missing, damaged or different: each fault is one clear line."""

import json
from pathlib import Path

import huggingface_hub.constants
import pytest
import torch
from browser import thinned
from damage import Damage, content, entries, gone, pickled, tensors, text, vqgan, with_code
from families import PLAIN, SMALL
from small import small_settings
from transformers import BertConfig

from configs.model import EngineSettings
from configs.schema import MethodSettings
from models.targets.llamagen import LlamaGen
from runs.session import open_session
from scripts.checkpoints.chameleon import byte_tokenizer
from scripts.checkpoints.llamagen import LlamaGenSizes, small_janus, write_llamagen, write_vq
from scripts.checkpoints.lumina2 import CODEC, write_codec

T5 = "../t5/flan-t5-xl"


def only_pieces(folder: Path) -> None:
    """Leave the text encoder the tokenizer of its authors alone."""
    (folder / T5 / "tokenizer.json").rename(folder / T5 / "spiece.model")


EMU3_NORM = "text_model.model.layers.1.input_layernorm.weight"
EMU3_CODEC = "vqmodel.decoder.up_block.up.0.block.0.conv1.weight"
JANUS_LAYER = "model.language_model.layers.1.self_attn.q_proj.weight"
JANUS_CODEC = "model.vqmodel.decoder.up.1.block.0.conv1.weight"
QUERY_NORM = "model__layers__0__self_attn__q_norm__weight"
KEY_NORM = "model.layers.1.self_attn.k_norm.weight"
LUMINA2_NORM = "model.layers.1.self_attn.q_norm.weight"
CONV_Y = "decoder.norm_out.conv_y.weight"
IBQ, EMU3_5_WORDS = "../Emu3.5-VisionTokenizer", "../tokenizer_emu3_ibq"
NAMES, SIDE = "tokenizer_config.json", "<reserved08801>"
ENCODER = "--text_encoder_path: .*"
LINEAR, YARN = {"rope_type": "linear", "factor": 2.0}, {"rope_type": "yarn"}
NO_EMU3_CODEC = r"weights vqmodel\.\* does not fit.*missing key vqmodel\.decoder"
NO_JANUS_CODEC = r"vqmodel\.\* does not fit.*missing key .*\.decoder\.conv_blocks\.1\.res"
FOURS = "channels per head: expected a multiple of 4, got 32 /"
NO_NORM = rf"{ENCODER}missing key encoder\.fin"
DOWN, WORDS = "model.layers.1.mlp.down_proj.weight", "tokenizer/text_tokenizer.json"
NO_DOWN = rf"{DOWN} has shape \(1, 72\), expected \(32, 72\)"
INTEGERS = torch.zeros(32, 64, dtype=torch.int8)
NO_INTEGERS = "drafter: fc.weight: expected floating-point numbers, got int8"
NO_VQGAN = [("double_z", True), ("attn_resolutions", [16]), ("ch", "many"), ("ch_mult", [])]
NO_VQGAN += [("ch", 33)]


def two_more_tokens(folder: Path) -> None:
    """So that the image codes begin at higher ids."""
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    last = tokenizer["added_tokens"][-1]
    tokenizer["added_tokens"] += [last | {"id": 263 + i, "content": f"<x{i}>"} for i in (0, 1)]
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


FAULTS: dict[str, list[tuple[Damage, str]]] = {
    "tiny": [
        (tensors(**{DOWN: torch.zeros(1, 72)}), NO_DOWN),
        (tensors(lm_head__weight=torch.ones(20, 32)), r"lm_head.weight has shape \(20, 32\)"),
        (tensors(lm_head__weight=torch.ones(576, 32)), r"shape \(576, 32\), expected 288 rows"),
        (tensors(model__norm__weight=torch.tensor(1.0)), r"model.norm.weight has shape \(\)"),
        (pickled(".", [torch.zeros(2)]), r"pytorch_model\.bin"),
        (pickled(".", {"model.norm.weight": 1.0}), r"pytorch_model\.bin"),
        (entries(rope_parameters=LINEAR), r"config\.json: rope_parameters"),
        (entries(hidden_act="gelu"), r"config\.json: hidden_act"),
        (entries(mlp_bias=True), r"config\.json: mlp_bias"),
        # a VQGAN with other codes would fail at the very end
        (lambda folder: byte_tokenizer(23).save(f"{folder}/{WORDS}"), "23 image codes.*24 codes"),
        (gone("drafter"), "--drafter_path"),
        (tensors("drafter/model.safetensors", fc__weight=INTEGERS), NO_INTEGERS),
        *((vqgan(name, value), f"vqgan.yaml.*{name}") for name, value in NO_VQGAN),
    ],
    "emu3": [
        (entries("text_config", num_hidden_layers=3), "num_hidden_layers is 3, the weights hold 2"),
        (entries("text_config", num_key_value_heads=1), r"k_proj.weight has shape \(16, 32\), exp"),
        (entries("text_config", rope_scaling={"type": "linear"}), "rope_scaling: expected"),
        (entries("text_config", max_position_embeddings=24), "an image of 4 x 5 tokens takes 24"),
        (entries("vq_config", codebook_size=25), r"embedding.weight has shape \(24, 4\), expected"),
        (entries("vq_config", double_latent=True), "vq_config.double_latent: expected Fal"),
        (entries("vq_config", channel_multiplier="x"), "vq_config: "),
        (entries("vq_config", hidden_size=0), "vq_config: "),
        (tensors(without=EMU3_NORM), "missing key model.text_model.layers.1.input_layernorm"),
        (tensors(text_model__lm_head__weight=torch.ones(9, 32)), r"\(9, 32\), expected 289 rows"),
        (tensors(without=EMU3_CODEC), NO_EMU3_CODEC),
        (gone("tokenizer.json"), r"missing file: .*tokenizer\.json"),
        (text("tokenizer.json", "extra_200", "x"), r"tokenizer\.json has no token '<\|extra_200"),
        (
            text("tokenizer.json", "token 000020", "x"),
            r"tokenizer\.json names 20 image codes from id 265 on .*; the image tokenizer has 24",
        ),
    ],
    "emu3_5": [
        (entries(head_dim=8), r"q_proj.weight has shape \(64, 32\), expected \(32, 32\)"),
        (entries(head_dim=15), "head_dim: expected even whole numbers from 2, got 15"),
        (tensors(without=KEY_NORM), f"missing key {KEY_NORM}"),
        (text(f"{IBQ}/config.yaml", "- 4\n", "- 8\n"), r"expected \[\] or \[4\], got \[8\]"),
        (content(f"{EMU3_5_WORDS}/emu3.tiktoken", "? 1"), "not a file of tokens and ranks"),
        (gone(f"{EMU3_5_WORDS}/emu3_vision_tokens.txt"), "missing file: .*vision_tokens.txt"),
    ],
    "lumina_mgpt2": [
        (entries(max_position_embeddings=20), "an image of 4 x 4 tokens takes 20"),
        (tensors(without=LUMINA2_NORM), f"missing key {LUMINA2_NORM}"),
        (tensors(**{LUMINA2_NORM: torch.ones(3, 8)}), r"has shape \(3, 8\), expected \(2, 8\)"),
        (entries(file=NAMES, eos_token=None), f"{NAMES} has no bos_token and no eos_token"),
        (entries(file=NAMES, bos_token="<s>"), r"tokenizer\.json has no token '<s>'"),
        (text("tokenizer.json", SIDE, "x"), f"no token for a side of 32 pixels, '{SIDE}'"),
        (
            lambda folder: write_codec(folder.parent / CODEC, 25),
            "has 25 codes, .*155000; config.json has only 155024 ids",
        ),
        (tensors(f"../{CODEC}", CONV_Y), f"movqgan_270M.ckpt does not fit .*missing key {CONV_Y}"),
        (content(f"../{CODEC}", "junk"), "cannot read .*movqgan_270M.ckpt: damaged"),
    ],
    "janus_pro": [
        (entries("text_config", head_dim=8), "head_dim: expected 16"),
        (entries("text_config", hidden_act="gelu"), "hidden_act: expected 'silu'"),
        (entries("text_config", max_position_embeddings=16), "embeddings is 16; an image of 4 x 4"),
        (entries("text_config", rope_parameters=YARN), "rope_parameters: expected"),
        (entries("vq_config", num_embeddings=0), r"vq_config\.num_embeddings: expected whole"),
        (entries("vq_config", num_hidden_layers=3), r"vq_config\.num_hidden_layers: expected"),
        (entries("vq_config", num_embeddings=25), "the codec has 24 codes, config.json 25"),
        (entries("vision_config", image_size=65), "image_size: expected multiples of 16"),
        (entries("vision_config", num_image_tokens=9), "num_image_tokens: expected 16"),
        (tensors(without=JANUS_LAYER), f"missing key {JANUS_LAYER}"),
        (tensors(without=JANUS_CODEC), NO_JANUS_CODEC),
    ],
    "janus_pro of the authors": [
        (entries(gen_aligner_config=None), r"lacks the entry 'gen_aligner_config\.params'"),
        (entries("gen_aligner_config.params", depth=1), r"depth: expected 2"),
        (entries("gen_vision_config", cls="VQ-8"), "cls: expected 'VQ-16'"),
        (entries("gen_head_config.params", image_token_embed=None), "image_token_embed: expected"),
        (entries("language_config", hidden_size=64), "hidden_size is 64, the weights hold"),
    ],
    "liquid": [
        (entries(head_dim=8), r"q_proj.weight has shape \(64, 32\), expected \(32, 32\)"),
        (entries(head_dim=15), "head_dim: expected even"),
        (entries(hidden_act="silu"), "hidden_act: expected 'gelu' or 'gelu_pytorch_tanh"),
        (entries(hidden_activation="relu"), "hidden_activation: expected 'gelu_pytorch"),
        (entries(tie_word_embeddings=False), "tie_word_embeddings: expected True"),
        (text("tokenizer.json", "<boi>", "<unused0>"), r"tokenizer\.json has no token '<boi>'"),
        (two_more_tokens, "24 codes, .* first has the id 265; config.json has only 287 ids"),
        (gone("tokenizer"), "found no vqgan.yaml .*, or name it by --tokenizer_path"),
        (text("tokenizer/vqgan.yaml", "n_embed: 24", "n_embed: 25"), "25, the weights hold 24"),
    ],
    "glm_image": [
        (entries("text_config", hidden_size="x"), "hidden_size: expected whole numbers from 1"),
        (entries("text_config", head_dim=15), "head_dim: expected even whole numbers from 2"),
    ],
    "llamagen": [
        (entries(block_size=15), "block_size: expected a square"),
        (entries(block_size=25), "block_size is 25, expected 16"),
        (entries(cls_token_num="120"), "cls_token_num: expected"),
        (entries(caption_dim=0), "caption_dim: expected"),
        (entries(input_type="c2i"), "input_type: expected 't2i'"),
        (entries(pretraining_tp=2), "pretraining_tp: expected"),
        (entries(hidden_size=None), "lacks the entry 'hidden_size'"),
        (entries(rms_norm_eps="abc"), "rms_norm_eps: expected numbers above 0"),
        (entries(num_attention_heads=16), FOURS),
        (entries(cls_token_num=10), "cls_token_num is 10, the weights hold 9"),
        (tensors(without="model.cls_embedding.cap_proj.fc2"), "missing key .*cap_proj.fc2.weight"),
        (tensors(**{QUERY_NORM: torch.ones(2)}), "unexpected key .*q_norm"),
        (
            lambda folder: write_vq(folder.parent / "vq_ds16_t2i.pt", small_janus(25, 4)),
            r"--vq_path: .*vq_ds16_t2i\.pt has 25, .*config\.json has vocab_size 24",
        ),
        (gone(T5), r"--text_encoder_path: .*flan-t5-xl' is neither a folder nor a hub id"),
        (gone(f"{T5}/config.json"), r"missing file: .*flan-t5-xl/config\.json"),
        (content(f"{T5}/config.json", BertConfig().to_json_string()), "expected 't5', got 'bert'"),
        (with_code(T5), f"{ENCODER}damaged, or more than tensors"),
        (tensors(f"{T5}/model.safetensors", "encoder.final"), NO_NORM),
        (entries(file=f"{T5}/{NAMES}", pad_token=None), "without a padding token"),
        (only_pieces, "spiece.model needs sentencepiece: `pip install sentencepiece`, or add tok"),
        (
            tensors("drafter/pytorch_model.bin", layers__0__input_layernorm__weight=torch.ones(32)),
            "unexpected key layers.0.input_layernorm.weight",
        ),
    ],
}
CASES = [(name, *case) for name, cases in FAULTS.items() for case in thinned(thinned(cases))]


def load(name: str, folder: Path) -> object:
    method = MethodSettings("adt" if name in ("llamagen", "tiny") else "ar")
    return SMALL[name].load(folder, method).target


@pytest.mark.parametrize(("name", "damage", "message"), CASES, ids=[case[2] for case in CASES])
def test_a_fault_is_one_clear_line(name, damage, message, folder) -> None:
    damage(folder)
    with pytest.raises(ValueError, match=message) as caught:
        load(name, folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("t5/flan-t5-xl", r"has 24, .*config\.json has caption_dim 16"),
        (None, "'nobody/t5.*HF_HUB_OFFLINE is set"),
    ],
    ids=["of another width", "of the hub, offline"],
)
def test_text_encoders(place, message, originals, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    write_llamagen(tmp_path / "LlamaGen-T2I", LlamaGenSizes(width=24))
    settings = SMALL["llamagen"].settings(originals["llamagen"]).with_method(PLAIN)
    path = str(tmp_path / place) if place else "nobody/t5-that-is-not-there"
    object.__setattr__(settings, "text_encoder_path", path)
    with pytest.raises(ValueError, match=ENCODER + message):
        SMALL["llamagen"].open(settings)


def test_stages_of_llamagen(tmp_path) -> None:
    """The stage is that of --model, and the drafter's has to be the same."""
    folder = write_llamagen(tmp_path / "LlamaGen-T2I", LlamaGenSizes(side=16))
    entries(file="drafter/config.json", input_type="t2i2")(folder)
    with pytest.raises(ValueError, match="input_type is 't2i2'; the target needs 't2i'"):
        open_session(small_settings(folder, model="llamagen"))
    other = EngineSettings(model="llamagen2", model_path=str(folder), device="cpu")
    with pytest.raises(ValueError, match="is 256, expected 1024: .*--model llamagen has 256"):
        open_session(other)


@pytest.mark.parametrize("name", ["llamagen"])
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
    damage, message, name, folder, monkeypatch
) -> None:
    monkeypatch.setattr(LlamaGen, "network", None)
    damage(folder)
    with pytest.raises(ValueError, match=message):
        load(name, folder)
