"""Lumina-mGPT 2.0 with random weights in the public format."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from tokenizers import Tokenizer

from configs.targets import TARGETS
from models.codecs.vqgan import VqganConfig
from models.codecs.vqgan_network import Vqgan
from models.targets.chameleon import FIRST_CODE
from scripts.checkpoints.chameleon import (
    Sizes,
    anole_config,
    public_config,
    size_words,
    write_networks,
)
from scripts.checkpoints.parts import special_tokenizer, write_json
from scripts.checkpoints.published import Published, State

CODEC = TARGETS["lumina_mgpt2"].parts["vq_path"]
TURN = "<reserved08706>"
CODES, IDS, POSITIONS = 16_384, 171_385, 10_240  # of Alpha-VLLM/Lumina-mGPT-2.0


def words_to(cells: int) -> tuple[str, ...]:
    """Return the special tokens, with those of sides of up to so many cells."""
    return ("<|endoftext|>", "<racm3:break>", "<eoss>", *size_words(cells), TURN)


# for tests, and for every size of image
LUMINA2 = Sizes(hidden=16, positions=210, shared_norm=True, words=words_to(2))
WHOLE = replace(LUMINA2, positions=POSITIONS, words=words_to(48))


def write_lumina2(folder: Path, sizes: Sizes = LUMINA2, bos: str | None = None) -> Path:
    """Write target, drafter and tokenizer, and the codec next to the folder, which is returned."""
    tokenizer = write_tokenizer(folder, sizes.words, bos)
    config = public_config(sizes, tokenizer) | {"vocab_size": FIRST_CODE + sizes.codes}
    write_json(folder / "config.json", config)
    write_networks(folder, config, sizes)
    write_codec(folder.parent / CODEC, sizes.codes)
    return folder


def write_tokenizer(folder: Path, words: Sequence[str], bos: str | None = None) -> Tokenizer:
    """Write the two files of the tokenizer, which is returned; bos: its own token for prompts."""
    eos = {"__type": "AddedToken", "content": "<|endoftext|>", "special": True}
    write_json(folder / "tokenizer_config.json", {"bos_token": bos, "eos_token": eos})
    tokenizer = special_tokenizer(words)
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


def write_codec(path: Path, codes: int) -> None:
    """Write a codec as ai-forever's file; weights depend on the public names only."""
    config = VqganConfig(
        ch=32, ch_mult=(1, 1, 1, 1), num_res_blocks=1, z_channels=4, embed_dim=4,
        n_embed=codes, resolution=32, coarse_attention=True, spatial_norm=True,
    )  # fmt: skip
    with torch.device("meta"):
        shapes = Vqgan(config).state_dict()
    generator, state = torch.Generator().manual_seed(0), {}
    for key in sorted(shapes):
        noise = torch.randn(shapes[key].shape, generator=generator)
        scale = 1.0 if key.startswith("quantize") else noise[0].numel() ** -0.5
        vector = 0.2 * noise + (key.endswith("weight"))  # norms around 1, biases around 0
        state[key] = vector if noise.ndim == 1 else scale * noise
    extra = {"ema_encoder.decay": torch.tensor(0.9999), "loss.logvar": torch.zeros(1)}
    torch.save(state | extra, path)


def write_parts(folder: Path) -> State:
    """Write the tokenizer, and the codec, narrow, next to the folder."""
    write_tokenizer(folder, WHOLE.words)
    write_codec(folder.parent / CODEC, CODES)
    return {}


SMALL = {"lumina_mgpt2": partial(write_lumina2, sizes=WHOLE)}
FULL = {
    "lumina_mgpt2": Published(
        "lumina_mgpt2",
        anole_config() | {"vocab_size": IDS, "max_position_embeddings": POSITIONS},
        write_parts,
        head_norm=(1, 128),
    )
}
