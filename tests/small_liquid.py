"""A complete small Liquid with random weights, as transformers writes a Gemma."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from small import (
    llama_drafter,
    randomised,
    small_settings,
    special_tokenizer,
    write_drafter,
)
from transformers import GemmaConfig, GemmaForCausalLM

from configs.schema import RunSettings
from models.base import TargetOptions
from models.codecs.vqgan import ImageTokenizer
from models.codecs.vqgan_config import VqganConfig
from models.codecs.vqgan_layout import build_vqmodel
from models.targets.liquid import Liquid

SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<boi>", "<eoi>", "<unconditional>")
# entries that Gemma's first config.json has in place of transformers' of today
FIRST = {"hidden_act": "gelu", "hidden_activation": None, "rope_theta": 10000.0}


@dataclass(frozen=True)
class LiquidSizes:
    """Sizes: `side` x `side` of so many `codes`. Heads together are wider than hidden states."""

    side: int = 4
    codes: int = 24
    hidden: int = 32
    heads: int = 4
    kv_heads: int = 2
    head_dim: int = 16
    positions: int = 160


def write_liquid(
    folder: Path,
    sizes: LiquidSizes = LiquidSizes(),  # noqa: B008
    shard: str = "50GB",
) -> Path:
    """Write target, drafter, tokenizer and VQGAN; returns the folder. shard: size of a file."""
    tokenizer = special_tokenizer(SPECIAL)
    words = tokenizer.get_vocab_size()
    config = GemmaConfig(
        vocab_size=words + sizes.codes,
        hidden_size=sizes.hidden,
        intermediate_size=2 * sizes.hidden + 8,
        num_hidden_layers=2,
        num_attention_heads=sizes.heads,
        num_key_value_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        max_position_embeddings=sizes.positions,
        vq_config={"num_embeddings": sizes.codes},
        **{
            f"{name}_token_id": tokenizer.token_to_id(f"<{name}>") for name in ("pad", "bos", "eos")
        },
    )
    small_gemma(config).save_pretrained(folder, max_shard_size=shard)
    tokenizer.save(str(folder / "tokenizer.json"))
    vqgan = VqganConfig(
        ch=8, ch_mult=(1, 2), num_res_blocks=1, z_channels=4, embed_dim=4, n_embed=sizes.codes,
        resolution=2 * sizes.side, num_groups=4,
    )  # fmt: skip
    torch.manual_seed(7)
    ImageTokenizer(build_vqmodel(vqgan), vqgan).save(folder / "tokenizer")
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


def liquid_settings(folder: Path, dtype: str = "fp64", **sampling: float) -> RunSettings:
    """Return the settings of a run on a small checkpoint, with its drafter."""
    return small_settings(folder, dtype, "liquid", **{"cfg": 3.0, **sampling})
