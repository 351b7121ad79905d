"""Emu3-Gen with random weights, in its two public layouts."""

from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from transformers import Emu3Config, Emu3VQVAE, Emu3VQVAEConfig

from models.files.network import public_state
from models.targets.emu3 import DECODER, Emu3
from models.targets.llama import decoder_keys
from models.transformer import Transformer
from scripts.checkpoints import parts
from scripts.checkpoints.parts import (
    randomised,
    scaled,
    special_tokenizer,
    spread,
    write_llama_drafter,
)
from scripts.checkpoints.published import Published, State

BEFORE = (
    "<|endoftext|>", "<image>", "<|extra_200|>", "<|extra_201|>", "<|extra_203|>",
    "<|extra_204|>", "<|image token|>", "<|image start|>", "<|image end|>",
)  # fmt: skip
CODES, POSITIONS = 32_768, 9216  # of BAAI/Emu3-Gen-hf
CODEC = {
    "base_channels": 32, "hidden_size": 64, "channel_multiplier": [1, 1, 1, 2], "num_res_blocks": 1,
}  # fmt: skip


def write_emu3(folder: Path, layout: str = "new", positions: int = 260) -> Path:
    """Write target, drafter and tokenizer; returns the folder.

    layout: new (of today's transformers) or old (keys of the public files).
    """
    tokenizer = tokenizer_of(parts.CODES)
    config = public_config(tokenizer.get_vocab(), positions)
    spec, entries = Emu3().spec(config.to_dict()), Emu3().entries(config.to_dict())
    target = randomised(Transformer(spec, spec.vocab), 0)
    # first, since it also makes the target's weights more like the drafter's
    write_llama_drafter(folder, entries, target)
    state = public_state(target, decoder_keys(target.spec, None, DECODER))
    state |= movq_state(config.vq_config)
    named = old_names(state) if layout == "old" else state
    save_file(named, folder / "model.safetensors", {"format": "pt"})
    config.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def tokenizer_of(codes: int) -> Tokenizer:
    """Return a tokenizer of bytes, special tokens, and the image codes last."""
    names = (f"<|visual token {code:06d}|>" for code in range(codes))
    return special_tokenizer([*BEFORE, *names])


def old_names(state: State) -> State:
    """Return weights by the keys of the public files."""
    names = (
        ("model.text_model.", "text_model.model."),
        ("model.vqmodel.", "vqmodel."),
        ("lm_head.", "text_model.lm_head."),
    )
    pairs = ((next(p for p in names if key.startswith(p[0])), key) for key in state)
    return {new + key.removeprefix(old): state[key] for (old, new), key in pairs}


def public_config(vocabulary: dict[str, int], positions: int) -> Emu3Config:
    """Return a config.json as the public one, with smaller numbers."""
    return Emu3Config(
        architectures=["Emu3ForConditionalGeneration"],
        vocabulary_map=vocabulary,
        text_config={
            "vocab_size": len(vocabulary), "hidden_size": 32,
            "intermediate_size": 40, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": positions, "pad_token_id": 256,
            "bos_token_id": vocabulary["<|extra_203|>"],
            "eos_token_id": vocabulary["<|extra_204|>"],
        },
        vq_config=CODEC | {"codebook_size": parts.CODES},
    )  # fmt: skip


def movq_state(config: Emu3VQVAEConfig) -> State:
    """Return the codec's weights among those of a checkpoint."""
    torch.manual_seed(0)
    model = scaled(Emu3VQVAE(config))
    colours = torch.rand(8, 1, 3, 4, 4) * 2 - 1
    pixels = colours.repeat_interleave(8, 3).repeat_interleave(8, 4).repeat(1, 4, 1, 1, 1)
    latents = model.quant_conv(model.encoder(pixels).transpose(1, 2)).transpose(0, 1).flatten(1)
    spread(model.quantize.embedding.weight, latents)
    return {f"model.vqmodel.{key}": value.clone() for key, value in model.state_dict().items()}


CONFIG: dict[str, Any] = {
    "architectures": ["Emu3ForConditionalGeneration"],
    "model_type": "emu3",
    "text_config": {"rope_scaling": {"rope_type": "default"}},  # as published, without a theta
    "vq_config": CODEC | {"codebook_size": CODES},
}


def write_parts(folder: Path) -> State:
    """Write the tokenizer; returns the codec's weights, narrow."""
    tokenizer_of(CODES).save(str(folder / "tokenizer.json"))
    return movq_state(Emu3VQVAEConfig(**CONFIG["vq_config"]))


SMALL = {"emu3": partial(write_emu3, positions=POSITIONS)}
FULL = {"emu3": Published("emu3", CONFIG, write_parts)}
