"""A complete small Emu3.5-Image with random weights; its decoder is transformers' Qwen3."""

import json
from pathlib import Path

import torch
import yaml
from small import randomised, scaled, spread, write_llama_drafter
from small_emu3 import AUTHORS, write_words
from transformers import Qwen3Config, Qwen3ForCausalLM

from models.codecs.vqgan import VqganConfig
from models.codecs.vqgan_network import Vqgan
from models.targets.emu3 import Emu35

FIRST = 256 + len(AUTHORS)  # id of the first image code
CODES = 24


def write_emu3_5(folder: Path) -> Path:
    """Write target and drafter, tokenizer and codec next to them; returns the folder."""
    config = Qwen3Config(
        vocab_size=FIRST + CODES,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=260,
        rms_norm_eps=1e-5,
        rope_theta=1e6,
        tie_word_embeddings=False,
    )
    randomised(Qwen3ForCausalLM(config), 0).save_pretrained(folder)
    entries = public_entries(config)
    (folder / "config.json").write_text(json.dumps(entries))
    home = folder.absolute().parent
    for name, write in (("tokenizer_emu3_ibq", write_words), ("Emu3.5-VisionTokenizer", write_ibq)):
        (home / name).mkdir(exist_ok=True)
        write(home / name, CODES)
    network = Emu35().network(entries)
    network.fill(folder, torch.float32, torch.device("cpu"))
    write_llama_drafter(folder, Emu35().entries(entries), network.module)
    return folder


def public_entries(config: Qwen3Config) -> dict:
    names = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "head_dim",
        "num_attention_heads", "num_key_value_heads", "max_position_embeddings", "rms_norm_eps",
    )  # fmt: skip
    image = {f"{name}_token_id": FIRST - 3 + i for i, name in enumerate(("img", "boi", "eoi"))}
    sizes = {name: getattr(config, name) for name in names}
    fixed = {"hidden_act": "silu", "rope_scaling": None, "tie_word_embeddings": False}
    return {"model_type": "Emu3", "rope_theta": 1e6} | sizes | fixed | image


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
