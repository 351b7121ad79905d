"""Liquid with random weights, as transformers writes a Gemma."""

from functools import partial
from pathlib import Path

from transformers import GemmaConfig, GemmaForCausalLM

from models.targets.liquid import BEGIN_IMAGE, BOS, PAD, UNCONDITIONAL, Liquid
from scripts.checkpoints import parts
from scripts.checkpoints.parts import (
    BYTES,
    add_drafter,
    byte_level,
    randomised,
    special_tokenizer,
    write_vqgan,
)
from scripts.checkpoints.published import Published, State

SPECIAL = (PAD, "<eos>", BOS, "<unk>", BEGIN_IMAGE, "<eoi>", UNCONDITIONAL)
SIDE, CODES, IDS, POSITIONS = 32, 8192, 256_000, 8192  # of Junfeng5/Liquid_V1_7B


def write_liquid(
    folder: Path, side: int = parts.SIDE, halvings: int = 1, positions: int = 160
) -> Path:
    """Write target, drafter, tokenizer and VQGAN; returns the folder."""
    tokenizer = special_tokenizer(SPECIAL)
    words, codes = tokenizer.get_vocab_size(), parts.CODES
    config = GemmaConfig(
        vocab_size=words + codes,
        hidden_size=32,
        intermediate_size=72,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=positions,
        vq_config={"num_embeddings": codes},
        **{
            f"{name}_token_id": tokenizer.token_to_id(f"<{name}>") for name in ("pad", "bos", "eos")
        },
    )
    small_gemma(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_vqgan(folder / "tokenizer", side, codes, halvings)
    add_drafter(Liquid(), folder)
    return folder


def small_gemma(config: GemmaConfig) -> GemmaForCausalLM:
    """Return a random Gemma; signs of its final norm are random, or it would repeat tokens."""
    model = randomised(GemmaForCausalLM(config), 0)
    for name, weight in model.named_parameters():
        if "norm" in name:  # around 0
            weight.data = 5 * (weight - 1) - 1 if name == "model.norm.weight" else weight - 1
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            weight.data *= 0.6
    model.model.embed_tokens.weight.data *= config.hidden_size**-0.5
    return model


def write_parts(folder: Path) -> State:
    """Write a tokenizer of Gemma's size and the VQGAN, narrow."""
    write_vqgan(folder / "tokenizer", SIDE, CODES, halvings=4)
    names = [*SPECIAL, *BYTES]
    names += [f"<unused{number}>" for number in range(IDS - len(names))]
    byte_level(names).save(str(folder / "tokenizer.json"))
    return {}


SMALL = {"liquid": partial(write_liquid, side=SIDE, halvings=4, positions=POSITIONS)}
FULL = {
    "liquid": Published(
        "liquid",
        {
            "architectures": ["GemmaForCausalLM"],
            "model_type": "gemma",
            "vocab_size": IDS + CODES,
            "vq_config": {"num_embeddings": CODES},
        },
        write_parts,
    )
}
