"""Emu3.5-Image with random weights; its decoder is transformers' Qwen3."""

import base64
from functools import partial
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import Qwen3Config, Qwen3ForCausalLM

from models.codecs.vqgan import VqganConfig
from models.codecs.vqgan_network import Vqgan
from models.targets.emu3 import Emu35
from scripts.checkpoints import parts
from scripts.checkpoints.parts import add_drafter, randomised, scaled, spread, write_json
from scripts.checkpoints.published import Published, State

AUTHORS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205)),
    "<|image token|>", "<|image start|>", "<|image end|>",
)  # fmt: skip
CODES, WORDS, POSITIONS = 131_072, 151_643, 32_768  # of BAAI/Emu3.5-Image


def write_emu3_5(folder: Path, positions: int = 260) -> Path:
    """Write target and drafter, tokenizer and codec next to them; returns the folder."""
    entries = public_config(
        words=256, codes=parts.CODES, hidden_size=32, intermediate_size=40, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        max_position_embeddings=positions,
    )  # fmt: skip
    sizes = {name: value for name, value in entries.items() if name != "model_type"}  # its authors'
    randomised(Qwen3ForCausalLM(Qwen3Config(**sizes)), 0).save_pretrained(folder)
    write_json(folder / "config.json", entries)
    write_files(folder, words=256, codes=parts.CODES)
    add_drafter(Emu35(), folder, "64")
    return folder


def public_config(words: int, codes: int, **sizes: int) -> dict[str, Any]:
    """Return a config.json for a tokenizer of so many byte strings, special tokens and codes."""
    first = words + len(AUTHORS)
    image = {f"{name}_token_id": first - 3 + i for i, name in enumerate(("img", "boi", "eoi"))}
    return {
        "model_type": "Emu3", "vocab_size": first + codes, "rms_norm_eps": 1e-5, "rope_theta": 1e6,
        "hidden_act": "silu", "rope_scaling": None, "tie_word_embeddings": False,
    } | sizes | image  # fmt: skip


def write_files(folder: Path, words: int, codes: int) -> None:
    """Write the tokenizer and the codec next to a target's folder."""
    for name in ("tokenizer_emu3_ibq", "Emu3.5-VisionTokenizer"):
        (folder.absolute().parent / name).mkdir(parents=True, exist_ok=True)
    write_words(folder.absolute().parent / "tokenizer_emu3_ibq", words, codes)
    write_ibq(folder.absolute().parent / "Emu3.5-VisionTokenizer", codes)


def write_words(folder: Path, words: int, codes: int) -> None:
    """Write the authors' tokenizer: byte strings, shortest first, AUTHORS and image codes."""
    strings = chain.from_iterable(product(range(256), repeat=length) for length in (1, 2, 3))
    lines = (
        f"{base64.b64encode(bytes(string)).decode()} {rank}\n"
        for rank, string in enumerate(islice(strings, words))
    )
    (folder / "emu3.tiktoken").write_text("".join(lines))
    names = (f"<|visual token {code:06d}|>" for code in range(codes))
    (folder / "emu3_vision_tokens.txt").write_text("\n".join([*AUTHORS[-3:], *names]) + "\n")


def write_ibq(folder: Path, codes: int) -> None:
    """Write the codec as in BAAI/Emu3.5-VisionTokenizer; latents spread as the encoder's do."""
    config = VqganConfig(32, (1, 1, 1, 1, 2), 1, 8, 8, codes, 64, coarse_attention=True)
    torch.manual_seed(7)
    model = scaled(Vqgan(config))
    pixels = (torch.rand(8, 3, 4, 4) * 2 - 1).repeat_interleave(16, 2).repeat_interleave(16, 3)
    latents = model.quant_conv(model.encoder(pixels)).transpose(0, 1).flatten(1)
    spread(model.quantize.embedding.weight, latents)
    torch.save(model.state_dict(), folder / "model.ckpt")
    sizes = {"ch": 32, "ch_mult": [1, 1, 1, 1, 2], "num_res_blocks": 1, "z_channels": 8}
    fixed = {"double_z": False, "in_channels": 3, "out_ch": 3, "dropout": 0.0}
    content = {
        "ddconfig": sizes | fixed | {"resolution": 64, "attn_resolutions": [4]},
        "n_embed": codes, "embed_dim": 8, "beta": 0.25,
    }  # fmt: skip
    (folder / "config.yaml").write_text(yaml.safe_dump(content))


def write_parts(folder: Path) -> State:
    """Write the tokenizer and the codec, narrow, next to the folder."""
    write_files(folder, WORDS, CODES)
    return {}


SMALL = {"emu3_5": partial(write_emu3_5, positions=POSITIONS)}
FULL = {"emu3_5": Published(
    "emu3_5",
    public_config(
        WORDS, CODES, hidden_size=5120, intermediate_size=25_600, num_hidden_layers=64,
        num_attention_heads=64, num_key_value_heads=8, head_dim=128,
        max_position_embeddings=POSITIONS,
    ),
    write_parts, head_norm=(128,),
)}  # fmt: skip
