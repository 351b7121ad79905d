"""A complete small Lumina-mGPT 2.0 with random weights in the public format."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from small import Sizes, public_config, special_tokenizer, write_networks

from models.codecs.vqgan import VqganConfig
from models.codecs.vqgan_network import Vqgan
from models.targets.chameleon import FIRST_CODE

SIZE_WORDS = tuple(f"<reserved{8799 + i:05d}>" for i in range(4))  # row end, 0 to 2 cells
SPECIAL = ("<|endoftext|>", "<racm3:break>", "<eoss>", *SIZE_WORDS, "<reserved08706>")
LUMINA2 = Sizes(hidden=16, positions=210, shared_norm=True)
CODEC = "movqgan_270M.ckpt"


def write_lumina2(folder: Path, words: Sequence[str] = SPECIAL, bos: str | None = None) -> Path:
    """Write target, drafter and tokenizer, and the codec next to the folder, which is returned."""
    folder.mkdir(parents=True)
    tokenizer = special_tokenizer(words)
    tokenizer.save(str(folder / "tokenizer.json"))
    eos = {"__type": "AddedToken", "content": "<|endoftext|>", "special": True}
    names = {"bos_token": bos, "eos_token": eos}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    config = public_config(LUMINA2, tokenizer) | {"vocab_size": FIRST_CODE + LUMINA2.codes}
    (folder / "config.json").write_text(json.dumps(config))
    write_networks(folder, config, LUMINA2)
    write_codec(folder.parent / CODEC, LUMINA2.codes)
    return folder


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
