"""A complete small Liquid with random weights, as transformers writes a Gemma."""

import json
from pathlib import Path

from small import OPTIONS, Sizes, randomised, special_tokenizer, write_llama_drafter, write_vqgan
from transformers import GemmaConfig, GemmaForCausalLM

from models.targets.liquid import Liquid

SPECIAL = ("<pad>", "<eos>", "<bos>", "<unk>", "<boi>", "<eoi>", "<unconditional>")
# entries that Gemma's first config.json has in place of transformers' of today
FIRST = {"hidden_act": "gelu", "hidden_activation": None, "rope_theta": 10000.0}
SIDE, CODES = 4, 24  # images of SIDE x SIDE out of CODES codes


def write_liquid(folder: Path) -> Path:
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
        max_position_embeddings=160,
        vq_config={"num_embeddings": CODES},
        **{
            f"{name}_token_id": tokenizer.token_to_id(f"<{name}>") for name in ("pad", "bos", "eos")
        },
    )
    small_gemma(config).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_vqgan(folder / "tokenizer", Sizes(SIDE, CODES))
    entries = Liquid().entries(json.loads((folder / "config.json").read_text()))
    target = Liquid().load(folder, OPTIONS)
    write_llama_drafter(folder, entries, target.transformer)
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
