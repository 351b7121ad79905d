"""A complete small Liquid with random weights, as transformers writes a Gemma."""

import json
from pathlib import Path

import torch
from small import llama_drafter, randomised, special_tokenizer, write_drafter
from transformers import GemmaConfig, GemmaForCausalLM

from models.base import TargetOptions
from models.codecs.vqgan import ImageTokenizer, VqganConfig
from models.codecs.vqgan_files import build_vqmodel, save_vqgan
from models.targets.liquid import Liquid

SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<boi>", "<eoi>", "<unconditional>")
# entries that Gemma's first config.json has in place of transformers' of today
FIRST = {"hidden_act": "gelu", "hidden_activation": None, "rope_theta": 10000.0}


SIDE, CODES = 4, 24  # images of SIDE x SIDE out of CODES codes


def write_liquid(folder: Path, positions: int = 160) -> Path:
    """Write target, drafter, tokenizer and VQGAN; returns the folder."""
    tokenizer = special_tokenizer(SPECIAL)
    words = tokenizer.get_vocab_size()
    config = GemmaConfig(
        vocab_size=words + CODES,
        hidden_size=32,
        intermediate_size=72,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=positions,
        vq_config={"num_embeddings": CODES},
        **{
            f"{name}_token_id": tokenizer.token_to_id(f"<{name}>") for name in ("pad", "bos", "eos")
        },
    )
    small_gemma(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    vqgan = VqganConfig(
        ch=8, ch_mult=(1, 2), num_res_blocks=1, z_channels=4, embed_dim=4, n_embed=CODES,
        resolution=2 * SIDE, num_groups=4,
    )  # fmt: skip
    torch.manual_seed(7)
    save_vqgan(ImageTokenizer(build_vqmodel(vqgan), vqgan), folder / "tokenizer")
    entries = Liquid().entries(json.loads((folder / "config.json").read_text()))
    target = Liquid().load(folder, TargetOptions(torch.float32, torch.device("cpu")))
    write_drafter(folder / "drafter", *llama_drafter(entries, target.transformer))
    return folder


def small_gemma(config: GemmaConfig) -> GemmaForCausalLM:
    """Return a random Gemma.

    Signs of the final norm are random: a head that is the embedding would else repeat the last
    token.
    """
    model = randomised(GemmaForCausalLM(config), 0)
    for name, weight in model.named_parameters():
        if "norm" in name:  # around 0
            weight.data = 5 * (weight - 1) - 1 if name == "model.norm.weight" else weight - 1
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.data *= 0.6
    model.model.embed_tokens.weight.data *= config.hidden_size**-0.5
    return model
