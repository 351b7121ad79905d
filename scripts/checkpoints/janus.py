"""Janus-Pro with random weights, in transformers' layout and in the authors'."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from transformers import JanusConfig, JanusForConditionalGeneration

from models.files.network import public_state
from models.targets.janus import BEGIN_IMAGE, BOS, PAD, JanusNetwork, JanusPro, janus_keys
from scripts.checkpoints import parts
from scripts.checkpoints.llamagen import public_vq, small_janus
from scripts.checkpoints.parts import (
    randomised,
    special_tokenizer,
    write_json,
    write_llama_drafter,
)
from scripts.checkpoints.published import Published, State

SPECIAL = (
    BOS, "<｜end▁of▁sentence｜>", PAD, "<|User|>", "<|Assistant|>", "<image_placeholder>",
    BEGIN_IMAGE, "<end_of_image>",
)  # fmt: skip
HIDDEN = 32
# of deepseek-community/Janus-Pro-7B: the codec's sizes are narrow, but for codes and their width
SIDE, CODES, WIDTH, POSITIONS = 24, 16_384, 8, 16_384
LEVELS = (1, 1, 1, 1, 2)  # 16 pixels per token
CODEC: dict[str, Any] = {
    "latent_channels": 8, "base_channels": 32, "num_res_blocks": 2,
    "channel_multiplier": list(LEVELS),
}  # fmt: skip


def write_janus(
    folder: Path,
    authors: bool = False,
    special: Sequence[str] = SPECIAL,
    side: int = parts.SIDE,
    positions: int = 160,
) -> Path:
    """Write target, drafter and tokenizer; returns the folder.

    authors: keys, config.json and .bin as deepseek-ai has them, else as transformers writes them.
    special: control tokens that the tokenizer has.
    """
    tokenizer = special_tokenizer(special)
    config = public_config(tokenizer.get_vocab_size(), side, positions)
    network: JanusNetwork = JanusPro().network(config.to_dict()).module.to_empty(device="cpu")
    target = JanusPro().finish(randomised(network, 0), None)  # type: ignore[arg-type]  # unused
    entries = JanusPro().entries(config.to_dict())
    # first, since it also makes the target's weights more like the drafter's
    write_llama_drafter(folder, entries, target)
    state = whole_state(config, network)
    if authors:
        torch.save(authors_state(state), folder / "pytorch_model.bin")
        write_json(folder / "config.json", authors_config(config))
    else:
        save_file(state, folder / "model.safetensors", {"format": "pt"})
        config.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def public_config(ids: int, side: int, positions: int) -> JanusConfig:
    """Return a config.json of transformers with smaller numbers."""
    return JanusConfig(
        architectures=["JanusForConditionalGeneration"],
        text_config={
            "model_type": "llama", "vocab_size": ids, "hidden_size": HIDDEN,
            "intermediate_size": HIDDEN + 8, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 2, "max_position_embeddings": positions,
        },
        vision_config={
            "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 16 * side, "patch_size": 16, "projection_dim": HIDDEN,
            "num_image_tokens": side**2,
        },
        vq_config=CODEC | {
            "embed_dim": 4, "num_embeddings": parts.CODES, "projection_dim": HIDDEN,
            "image_token_embed_dim": HIDDEN,
        },
    )  # fmt: skip


def authors_config(config: JanusConfig) -> dict[str, Any]:
    """Return the same as deepseek-ai writes it, without entries that are defaults."""
    text, vq = config.text_config, config.vq_config
    names = ("hidden_size", "intermediate_size", "max_position_embeddings", "model_type",
             "num_attention_heads", "num_hidden_layers", "vocab_size")  # fmt: skip
    aligner = {"depth": 2, "input_dim": vq.embed_dim, "n_embed": vq.projection_dim}
    codes = {"image_token_size": vq.num_embeddings}
    head = codes | {"image_token_embed": vq.projection_dim, "n_embed": vq.projection_dim}
    sections: dict[str, tuple[str, dict[str, Any]]] = {
        "aligner": ("MlpProjector", aligner | {"input_dim": 16}),
        "gen_aligner": ("MlpProjector", aligner),
        "gen_head": ("vision_head", head),
        "gen_vision": ("VQ-16", codes | {"n_embed": vq.embed_dim}),
        "vision": ("CLIPVisionTower", {"image_size": config.vision_config.image_size}),
    }
    entries: dict[str, Any] = {
        "model_type": "multi_modality",
        "architectures": ["MultiModalityCausalLM"],
    }
    entries |= {f"{part}_config": {"cls": c, "params": p} for part, (c, p) in sections.items()}
    return entries | {"language_config": {name: getattr(text, name) for name in names}}


def whole_state(config: JanusConfig, network: JanusNetwork) -> State:
    """Return all weights as transformers names them, those of image understanding included."""
    vq, text = config.vq_config, config.text_config.vocab_size
    state = JanusForConditionalGeneration(config).state_dict()
    state |= public_state(network, janus_keys(network.spec, text))
    state |= codec_state(vq.num_embeddings, vq.embed_dim)
    return {key: value.clone().contiguous() for key, value in state.items()}


def codec_state(codes: int, width: int) -> State:
    """Return the codec's weights among those of a checkpoint."""
    codec = small_janus(codes, SIDE, LEVELS, width).state_dict()
    # transformers compares encoder outputs with the vectors as they are stored
    codec["quantize.embedding.weight"] = F.normalize(codec["quantize.embedding.weight"], dim=-1)
    return {"model.vqmodel." + key: value.contiguous() for key, value in codec.items()}


def authors_state(state: State) -> State:
    """Return weights by the authors' keys."""
    names = (
        ("model.language_model.", "language_model.model."),
        ("model.generation_embeddings.", "gen_embed."),
        ("model.generation_aligner.fc1.", "gen_aligner.layers.0."),
        ("model.generation_aligner.hidden_layers.0.", "gen_aligner.layers.2."),
        ("model.generation_head.proj_out.", "gen_head.output_mlp_projector."),
        ("model.generation_head.vision_head.", "gen_head.vision_head."),
        ("model.vqmodel.", "gen_vision_model."),
        ("lm_head.", "language_model.lm_head."),
        ("model.vision_model.", "vision_model.vision_tower."),
        ("model.aligner.fc1.", "aligner.layers.0."),
        ("model.aligner.hidden_layers.0.", "aligner.layers.2."),
    )
    renamed: State = {}
    for key, value in state.items():
        old, new = next(pair for pair in names if key.startswith(pair[0]))
        key = new + key.removeprefix(old)
        renamed |= public_vq({key: value}) if new == "gen_vision_model." else {key: value}
    return renamed | {"gen_vision_model.quantize.codebook_used": torch.zeros(65536)}


def write_parts(folder: Path) -> State:
    """Write the tokenizer; returns the codec's weights, narrow."""
    special_tokenizer(SPECIAL).save(str(folder / "tokenizer.json"))
    return codec_state(CODES, WIDTH)


# Entries that are not stated are transformers' defaults, which are the published ones.
SMALL = {"janus_pro": partial(write_janus, side=SIDE, positions=POSITIONS)}
FULL = {"janus_pro": Published(
    "janus_pro",
    {
        "architectures": ["JanusForConditionalGeneration"],
        "model_type": "janus",
        "text_config": {
            "model_type": "llama", "vocab_size": 102_400, "num_hidden_layers": 30,
            "max_position_embeddings": POSITIONS,
        },
        "vision_config": {
            "image_size": 16 * SIDE, "patch_size": 16, "num_image_tokens": SIDE**2,
            "projection_dim": 4096,
        },
        "vq_config": CODEC | {
            "embed_dim": WIDTH, "num_embeddings": CODES, "projection_dim": 4096,
            "image_token_embed_dim": 4096,
        },
    },
    write_parts,
)}  # fmt: skip
