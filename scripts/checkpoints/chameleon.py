"""Anole and Lumina-mGPT with random weights, in the layout of ckpts/tiny."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from drafters.eagle import EagleHead
from drafters.kinds import eagle_keys
from models.codecs.codebook import table_path
from models.codecs.vqgan_files import load_vqgan
from models.files.network import public_state
from models.targets.llama import decoder_keys, decoder_spec
from models.transformer import Transformer
from scenes.training.make_tokenizer import CLOSING_NAMES, LEADING_NAMES, image_token_name
from scripts.checkpoints import parts
from scripts.checkpoints.parts import (
    BYTES,
    byte_level,
    drafter_config,
    is_head_norm,
    make_kin,
    randomised,
    write_drafter,
    write_json,
    write_vqgan,
)
from scripts.checkpoints.published import Published, State

# of leloy/Anole-7b-v0.1-hf
CODES, IDS, HIDDEN, INTERMEDIATE, HEADS, LAYERS = 8192, 65536, 4096, 11008, 32, 32
POSITIONS = 4096
NEIGHBOURS = 101  # columns of the table of nearest codes, enough for the paper's LANTERN


def size_words(cells: int) -> tuple[str, ...]:
    """Return Lumina-mGPT's tokens of a row's end and of sides of up to so many cells."""
    return tuple(f"<reserved{8799 + number:05d}>" for number in range(cells + 2))


@dataclass(frozen=True)
class Sizes:
    """Sizes of a checkpoint: `side` x `side` image tokens out of `codes` codes."""

    side: int = parts.SIDE
    codes: int = parts.CODES
    hidden: int = 32
    layers: int = 2
    heads: int = 2
    kv_heads: int = 2
    positions: int = 160
    swin_norm: bool = False
    shared_norm: bool = False  # query/key norms of the shape (1, head_dim), as in Lumina's drafter
    halvings: int = 1  # how often the VQGAN halves an image's side
    words: tuple[str, ...] = ()  # more names of the tokenizer


ANOLE = Sizes(side=32, halvings=4, positions=POSITIONS)
# sides of up to 64 cells of 32 pixels: 2,048 x 512
LUMINA = Sizes(halvings=4, positions=POSITIONS, words=size_words(64))


def write_checkpoint(folder: Path, sizes: Sizes = Sizes(), seed: int = 0) -> Path:
    """Write target, drafter, tokenizer and VQGAN; returns the folder."""
    write_networks(folder, write_files(folder, sizes), sizes, seed)
    return folder


def write_networks(folder: Path, config: dict[str, Any], sizes: Sizes, seed: int = 0) -> None:
    """Write the weights of target and drafter, and the drafter's config.json."""
    spec = decoder_spec(config)
    target = randomised(Transformer(spec, spec.vocab), seed, sizes.shared_norm)
    state = public_state(target, decoder_keys(spec))
    save_file(stored_norms(state, sizes), folder / "model.safetensors")
    head_config = drafter_config(config)
    head = randomised(EagleHead(decoder_spec(head_config)), seed + 1, sizes.shared_norm)
    make_kin(target, head)
    state = public_state(head, eagle_keys(head.spec, True))
    write_drafter(folder / "drafter", head_config, stored_norms(state, sizes))


def stored_norms(state: State, sizes: Sizes) -> State:
    """Return weights with a single row for the norms that all heads share."""
    once = [key for key in state if sizes.shared_norm and is_head_norm(key)]
    return state | {key: state[key][:1].clone() for key in once}


def write_files(folder: Path, sizes: Sizes) -> dict[str, Any]:
    """Write config.json, the tokenizer and the VQGAN; returns the configuration."""
    tokenizer = byte_tokenizer(sizes.codes, sizes.words)
    write_tokenizer(folder, tokenizer, sizes)
    config = public_config(sizes, tokenizer)
    write_json(folder / "config.json", config)
    return config


def write_tokenizer(folder: Path, tokenizer: Tokenizer, sizes: Sizes) -> None:
    """Write Meta's folder `tokenizer`: the text tokenizer and the VQGAN."""
    write_vqgan(folder / "tokenizer", sizes.side, sizes.codes, sizes.halvings)
    tokenizer.save(str(folder / "tokenizer" / "text_tokenizer.json"))


def public_config(sizes: Sizes, tokenizer: Tokenizer) -> dict[str, Any]:
    """Return a config.json as Chameleon's, with a vq_config that transformers can build."""
    return {
        "architectures": ["ChameleonForConditionalGeneration"],
        "model_type": "chameleon",
        "vocab_size": tokenizer.get_vocab_size(),
        "bos_token_id": 0,
        "pad_token_id": 1,
        "hidden_size": sizes.hidden,
        "intermediate_size": 2 * sizes.hidden + 8,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "max_position_embeddings": sizes.positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "swin_norm": sizes.swin_norm,
        "tie_word_embeddings": False,
        "vq_config": {"embed_dim": 4, "num_embeddings": sizes.codes, "latent_channels": 4,
                      "resolution": 2**sizes.halvings * sizes.side, "base_channels": 32,
                      "channel_multiplier": [1, 1], "num_res_blocks": 1},
        "vocabulary_map": tokenizer.get_vocab(),
    }  # fmt: skip


def byte_tokenizer(codes: int, words: tuple[str, ...] = ()) -> Tokenizer:
    """Return a tokenizer with the tiny model's layout of ids, few image codes and no merges."""
    names = [*LEADING_NAMES, *map(image_token_name, range(codes)), *CLOSING_NAMES]
    return byte_level([*names, *BYTES, *words])


def vocabulary() -> list[str]:
    """Return the names of Chameleon's ids, with bytes instead of its words.

    `<reservedNNNNN>` has the id NNNNN + 4.
    """
    codes = map(image_token_name, range(CODES))
    names = ["<s>", "<pad>", "</s>", "<unk>", *codes, "<eoss>", "<racm3:break>"]
    names += [f"<reserved{i - 4:05d}>" for i in range(len(names), 9000)]
    names += BYTES
    return names + [f"<reserved{i - 4:05d}>" for i in range(len(names), IDS)]


def anole_config(scale: int = 1, layers: int = LAYERS) -> dict[str, Any]:
    """Return Anole's config.json with widths and heads divided by `scale`."""
    return {
        "architectures": ["ChameleonForConditionalGeneration"],
        "model_type": "chameleon",
        "vocab_size": IDS,
        "hidden_size": HIDDEN // scale,
        "intermediate_size": INTERMEDIATE // scale,
        "num_attention_heads": HEADS // scale,
        "num_key_value_heads": HEADS // scale,
        "num_hidden_layers": layers,
        "max_position_embeddings": POSITIONS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "swin_norm": False,
        "vq_config": {"num_embeddings": CODES},
    }


def write_parts(folder: Path) -> State:
    """Write Chameleon's tokenizers, the VQGAN narrow, and a table of nearest codes."""
    write_tokenizer(folder, byte_level(vocabulary()), replace(ANOLE, codes=CODES))
    latents = load_vqgan(folder / "tokenizer").codebook
    nearest = torch.cdist(latents, latents).fill_diagonal_(torch.inf).argmin(1, keepdim=True)
    table = nearest.numpy() + np.arange(NEIGHBOURS)  # then any, since the codebook is random
    path = table_path(folder, CODES, NEIGHBOURS)
    path.parent.mkdir(exist_ok=True)
    np.save(path, (table % CODES).astype(np.uint16))
    return {}


SMALL = {
    "anole": partial(write_checkpoint, sizes=ANOLE),
    "lumina_mgpt": partial(write_checkpoint, sizes=LUMINA),
}
FULL = {
    "anole": Published("anole", anole_config(), write_parts),
    "lumina_mgpt": Published("lumina_mgpt", anole_config(), write_parts, head_norm=(1, 128)),
}
