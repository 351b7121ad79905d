"""What small random checkpoints are made of; their distributions are neither flat nor certain."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from torch import Tensor, nn

from drafters.eagle import EagleHead
from drafters.kinds import eagle_keys
from models.base import TargetOptions
from models.codecs.vqgan import ImageTokenizer, VqganConfig
from models.codecs.vqgan_files import save_vqgan
from models.codecs.vqgan_network import Vqgan
from models.files.network import public_state
from models.files.weights import read_config
from models.targets.family import Family
from models.targets.llama import llama_spec
from models.transformer import Transformer
from scenes.training.make_tokenizer import make_byte_level

CODES, SIDE = 24, 4  # of small checkpoints: codes, and rows and columns of image tokens
OPTIONS = TargetOptions(torch.float32, torch.device("cpu"))
BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
Module = TypeVar("Module", bound=nn.Module)


def byte_level(names: Sequence[str]) -> Tokenizer:
    """Return a tokenizer of bytes without merges; names: of all ids, the bytes' among them."""
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    make_byte_level(tokenizer)
    return tokenizer


def special_tokenizer(names: Sequence[str]) -> Tokenizer:
    """Return a tokenizer of bytes without merges; special tokens of these names follow them."""
    tokenizer = byte_level(BYTES)
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a table to a file in a folder that may be new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content))


def randomised(module: Module, seed: int, shared_norm: bool = False) -> Module:
    """Fill a network with random weights; activations keep their scale.

    shared_norm: all heads share the norm of queries or keys.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, weight in module.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if "norm" in name:
            noise = noise[:1].expand_as(noise) if shared_norm and weight.ndim == 2 else noise
            weight.data = (0.2 * noise + (name.endswith("weight"))).to(weight)
        elif name.endswith("bias"):
            weight.data = 0.1 * noise.to(weight)
        elif "embed" in name:
            weight.data = noise.to(weight)
        else:
            # 0.8 is about the standard deviation of logits
            gain = 0.8 if name.endswith("head.weight") else 1.0
            weight.data = (gain * noise / weight[0].numel() ** 0.5).to(weight)
    return module.requires_grad_(False).eval()


def is_head_norm(key: str) -> bool:
    """Tell the norms of queries and keys from others."""
    return ".q_norm." in key or ".k_norm." in key


def make_kin(target: Transformer, head: EagleHead) -> None:
    """Make features of both depend most on the last token, so that drafts are often right."""
    for module, share in ((target, 0.6), (head, 0.4)):
        for name, weight in module.named_parameters():
            if name.endswith(("out.weight", "down.weight")):
                weight.data *= share
    head.embedding.weight.data.copy_(target.embedding.weight)
    head.fc.weight.data *= 0.2
    head.fc.weight.data[:, : target.spec.hidden] += torch.diag(target.norm.weight)


def drafter_config(entries: dict[str, Any]) -> dict[str, Any]:
    """Return the config.json of a drafter for a target of these entries."""
    config = entries | {"num_hidden_layers": 1, "bias": True}
    return {name: value for name, value in config.items() if "token_id" not in name}


def write_llama_drafter(folder: Path, entries: dict[str, Any], target: Transformer) -> None:
    """Write a random drafter for a Llama target of these entries, and make the two alike."""
    config, positions = drafter_config(entries), target.spec.max_positions
    spec = replace(llama_spec(config), max_positions=positions, first_norm=False)
    head = randomised(EagleHead(spec), 1)
    make_kin(target, head)
    write_drafter(folder / "drafter", config, public_state(head, eagle_keys(head.spec, True)))


def add_drafter(family: Family, folder: Path, target_size: str | None = None) -> None:
    """Write a random drafter for the target in a checkpoint folder."""
    target = family.load(folder, replace(OPTIONS, target_size=target_size)).transformer
    write_llama_drafter(folder, family.entries(read_config(folder)), target)


def write_drafter(folder: Path, config: dict[str, Any], state: dict[str, Tensor]) -> None:
    """Write a drafter's two files."""
    write_json(folder / "config.json", config)
    save_file(state, folder / "model.safetensors")


def write_vqgan(folder: Path, side: int, codes: int, halvings: int = 1) -> None:
    """Write Chameleon's VQGAN for side x side codes, each of 2^halvings x 2^halvings pixels."""
    config = VqganConfig(
        ch=8, ch_mult=(1,) * halvings + (2,), num_res_blocks=1, z_channels=4, embed_dim=4,
        n_embed=codes, resolution=2**halvings * side, num_groups=4,
    )  # fmt: skip
    torch.manual_seed(7)
    save_vqgan(ImageTokenizer(Vqgan(config), config), folder)


def scaled(codec: Module) -> Module:
    """Give a codec random weights; activations keep their scale."""
    for name, weight in codec.named_parameters():
        if weight.ndim > 1:
            weight.data = torch.randn_like(weight) / weight[0].numel() ** 0.5
        elif "norm" in name:
            weight.data += 0.2 * torch.randn_like(weight)
    return codec.requires_grad_(False).eval()


def spread(table: nn.Parameter, latents: Tensor) -> None:
    """Spread a codebook's vectors as the encoder's outputs (channels, positions) are."""
    table.data = latents.mean(1) + latents.std(1) * torch.randn_like(table)
