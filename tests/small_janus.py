"""A complete small Janus-Pro with random weights, in transformers' layout and in the authors'."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from small import randomised, special_tokenizer, write_llama_drafter
from small_llamagen import public_vq, small_janus
from torch import Tensor
from transformers import JanusConfig, JanusForConditionalGeneration

from models.files.network import public_state
from models.targets.janus import BEGIN_IMAGE, BOS, PAD, JanusNetwork, JanusPro, janus_keys

SPECIAL = (
    BOS, "<｜end▁of▁sentence｜>", PAD, "<|User|>", "<|Assistant|>", "<image_placeholder>",
    BEGIN_IMAGE, "<end_of_image>",
)  # fmt: skip
_LEVELS = (1, 1, 1, 1, 2)  # of the codec: 16 pixels per token
SIDE, CODES, HIDDEN = 4, 24, 32  # images of SIDE x SIDE out of CODES codes


def write_janus(folder: Path, authors: bool = False, special: Sequence[str] = SPECIAL) -> Path:
    """Write target, drafter and tokenizer; returns the folder.

    authors: keys, config.json and .bin as deepseek-ai has them, else as transformers writes them.
    special: control tokens that the tokenizer has.
    """
    tokenizer = special_tokenizer(special)
    config = public_config(tokenizer.get_vocab_size())
    network: JanusNetwork = JanusPro().network(config.to_dict()).module.to_empty(device="cpu")
    target = JanusPro().finish(randomised(network, 0), prompts=None)
    entries = JanusPro().entries(config.to_dict())
    # first, since it also makes the target's weights more like the drafter's
    write_llama_drafter(folder, entries, target)
    state = whole_state(config, network)
    if authors:
        torch.save(authors_state(state), folder / "pytorch_model.bin")
        (folder / "config.json").write_text(json.dumps(authors_config(config)))
    else:
        save_file(state, folder / "model.safetensors", {"format": "pt"})
        config.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def public_config(ids: int) -> JanusConfig:
    return JanusConfig(
        architectures=["JanusForConditionalGeneration"],
        text_config={
            "model_type": "llama", "vocab_size": ids, "hidden_size": HIDDEN,
            "intermediate_size": HIDDEN + 8, "num_hidden_layers": 2, "num_attention_heads": 2,
            "num_key_value_heads": 2, "max_position_embeddings": 160,
        },
        vision_config={
            "hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 16 * SIDE, "patch_size": 16, "projection_dim": HIDDEN,
            "num_image_tokens": SIDE**2,
        },
        vq_config={
            "embed_dim": 4, "num_embeddings": CODES, "latent_channels": 8,
            "base_channels": 32, "channel_multiplier": list(_LEVELS), "num_res_blocks": 2,
            "projection_dim": HIDDEN, "image_token_embed_dim": HIDDEN,
        },
    )  # fmt: skip


def authors_config(config: JanusConfig) -> dict:
    """Return the same as deepseek-ai writes it, without entries that are defaults."""
    text, vq = config.text_config, config.vq_config
    names = ("hidden_size", "intermediate_size", "max_position_embeddings", "model_type",
             "num_attention_heads", "num_hidden_layers", "vocab_size")  # fmt: skip
    aligner = {"depth": 2, "input_dim": vq.embed_dim, "n_embed": vq.projection_dim}
    codes = {"image_token_size": vq.num_embeddings}
    head = codes | {"image_token_embed": vq.projection_dim, "n_embed": vq.projection_dim}
    parts = {
        "aligner": ("MlpProjector", aligner | {"input_dim": 16}),
        "gen_aligner": ("MlpProjector", aligner),
        "gen_head": ("vision_head", head),
        "gen_vision": ("VQ-16", codes | {"n_embed": vq.embed_dim}),
        "vision": ("CLIPVisionTower", {"image_size": config.vision_config.image_size}),
    }
    entries = {"model_type": "multi_modality", "architectures": ["MultiModalityCausalLM"]}
    entries |= {f"{part}_config": {"cls": c, "params": p} for part, (c, p) in parts.items()}
    return entries | {"language_config": {name: getattr(text, name) for name in names}}


def whole_state(config: JanusConfig, network: JanusNetwork) -> dict[str, Tensor]:
    """Return all weights as transformers names them, those of image understanding included."""
    keys = janus_keys(network.spec, network.spec.vocab - CODES)
    codec = small_janus(CODES, SIDE, _LEVELS).state_dict()
    # transformers compares encoder outputs with the vectors as they are stored
    codec["quantize.embedding.weight"] = F.normalize(codec["quantize.embedding.weight"], dim=-1)
    state = JanusForConditionalGeneration(config).state_dict() | public_state(network, keys)
    state |= {"model.vqmodel." + key: value for key, value in codec.items()}
    return {key: value.clone().contiguous() for key, value in state.items()}


def authors_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
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
    renamed = {}
    for key, value in state.items():
        old, new = next(pair for pair in names if key.startswith(pair[0]))
        key = new + key.removeprefix(old)
        renamed |= public_vq({key: value}) if new == "gen_vision_model." else {key: value}
    return renamed | {"gen_vision_model.quantize.codebook_used": torch.zeros(65536)}
