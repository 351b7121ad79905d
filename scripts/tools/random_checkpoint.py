"""Anole's architecture with random weights, in the public layout, to time what cannot be
downloaded: `python -m scripts.tools.random_checkpoint --scale 8 --output work/random_anole`.

Sizes are those of leloy/Anole-7b-v0.1-hf and jadohu/anole_drafter, with widths divided by `scale`,
all image codes, and a small VQGAN. Distributions are random, so drafts are hardly ever right: it
serves to time rounds, not speed-ups.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor

from configs.fields import refuse
from drafters.eagle import EagleHead
from drafters.kinds import eagle_keys
from models.codecs.codebook import table_path
from models.codecs.vqgan import ImageTokenizer, VqganConfig
from models.codecs.vqgan_files import save_vqgan
from models.codecs.vqgan_network import Vqgan
from models.files.network import public_state
from models.targets.llama import decoder_keys, decoder_spec
from models.transformer import Transformer
from scenes.training.make_tokenizer import image_token_name, make_byte_level
from support.durable import encode_json, give_usual_mode, replace_file
from support.script import run_script

# Of leloy/Anole-7b-v0.1-hf.
CODES, IDS, HIDDEN, INTERMEDIATE, HEADS, LAYERS = 8192, 65536, 4096, 11008, 32, 32
SHARD_BYTES = 2**29
THREADS = 8  # at most
NEIGHBOURS = 101  # columns of the table of nearest codes, enough for the paper's LANTERN
VQGAN = VqganConfig(
    ch=32,
    ch_mult=(1, 1, 2, 2, 4),
    num_res_blocks=1,
    z_channels=32,
    embed_dim=32,
    n_embed=CODES,
    resolution=512,
)


def public_config(scale: int, layers: int) -> dict[str, Any]:
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
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "swin_norm": False,
        "vq_config": {"num_embeddings": CODES},
    }


def vocabulary() -> dict[str, int]:
    """Return Chameleon's ids by name, with bytes instead of its words.

    `<reservedNNNNN>` has the id NNNNN + 4.
    """
    codes = map(image_token_name, range(CODES))
    names = ["<s>", "<pad>", "</s>", "<unk>", *codes, "<eoss>", "<racm3:break>"]
    names += [f"<reserved{i - 4:05d}>" for i in range(len(names), 9000)]
    names += sorted(pre_tokenizers.ByteLevel.alphabet())
    names += [f"<reserved{i - 4:05d}>" for i in range(len(names), IDS)]
    return {name: i for i, name in enumerate(names)}


def write_weights(folder: Path, config: dict[str, Any], shapes: dict[str, Tensor]) -> None:
    """Write config.json and random weights; shapes: by public key, on the meta device, in bf16."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = split_torch_state_dict_into_shards(shapes, max_shard_size=SHARD_BYTES)

    def write_shard(seed: int, name: str, keys: list[str]) -> None:
        random = torch.Generator().manual_seed(seed)
        tensors = {key: _random(key, shapes[key], random) for key in keys}
        save_file(tensors, folder / name, {"format": "pt"})
        give_usual_mode(folder / name)
        print(f"{folder / name}: {len(keys)} tensors", file=sys.stderr, flush=True)

    # A thread draws one number after the other. Only as many shards as there are threads are in
    # memory: all of them together are 14 GB, which many machines lack.
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        shards = plan.filename_to_tensors.items()
        list(pool.map(write_shard, count(), *zip(*shards, strict=True)))
    index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
    replace_file(folder / "model.safetensors.index.json", encode_json(index))
    replace_file(folder / "config.json", encode_json(config))


def _random(key: str, shape: Tensor, random: torch.Generator) -> Tensor:
    """Return a weight that keeps the scale of activations."""
    weight = torch.empty(shape.shape, dtype=torch.bfloat16)
    # a new norm's own values: weight 1, bias 0
    if "norm" in key:
        return weight.fill_(float(key.endswith("weight")))
    scale = weight[0].numel() ** -0.5 if weight.ndim > 1 else 0.02
    return weight.normal_(0.0, scale, generator=random)


def write(*, output: str, scale: int = 1, layers: int = LAYERS) -> None:
    """Write target and drafter in bf16 with their tokenizer, VQGAN and table of nearest codes.

    Args:
        output: the checkpoint's folder. At scale 1 it takes 15 GB of disk and up to 1 GB of
            memory per core, of which up to 8 are used; a minute or two.
        scale: 1, 2, 4, 8, 16 or 32: what widths and heads are divided by.
        layers: of the target.
    """
    if scale not in (1, 2, 4, 8, 16, 32):
        refuse("scale", scale, "1, 2, 4, 8, 16 or 32")
    if (Path(output) / "config.json").exists():  # its weights would stay beside these
        refuse("output", output, "a folder without a checkpoint")
    write_checkpoint(Path(output), public_config(scale, layers))


def write_checkpoint(folder: Path, config: dict[str, Any]) -> None:
    """Write what `write` does for a config.json with Anole's vocabulary."""
    head_config = config | {"num_hidden_layers": 1, "bias": True}  # as jadohu/anole_drafter
    with torch.device("meta"):
        spec = decoder_spec(config)
        target = Transformer(spec, spec.vocab).bfloat16()
        head = EagleHead(decoder_spec(head_config)).bfloat16()
    write_weights(folder / "drafter", head_config, public_state(head, eagle_keys(head.spec, True)))
    (folder / "tokenizer").mkdir(exist_ok=True)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary(), merges=[]))
    make_byte_level(tokenizer)
    torch.manual_seed(0)
    save_vqgan(ImageTokenizer(Vqgan(VQGAN), VQGAN), folder / "tokenizer")
    tokenizer.save(str(folder / "tokenizer" / "text_tokenizer.json"))
    nearest = table_path(folder, CODES, NEIGHBOURS)
    nearest.parent.mkdir(exist_ok=True)
    following = np.arange(CODES)[:, None] + 1 + np.arange(NEIGHBOURS)
    np.save(nearest, (following % CODES).astype(np.uint16))  # any, since the codebook is random
    # Last, so that a folder with the target's config.json is whole.
    write_weights(folder, config, public_state(target, decoder_keys(spec)))
    weights = sum(weight.numel() for weight in target.parameters())
    print(f"{folder}: {weights:,} weights and a drafter", file=sys.stderr)


if __name__ == "__main__":
    run_script(write)
