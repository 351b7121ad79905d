"""Models of published size with random bf16 weights, written with little memory.

Their weights are those that the program reads, by their public names. Distributions are random, so
drafts are hardly ever right: they serve to time rounds, not speed-ups.
"""

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import split_torch_state_dict_into_shards
from safetensors.torch import save_file
from torch import Tensor

from drafters.loading import drafter_network
from models.files.network import Network
from models.registry import family_of
from scripts.checkpoints.parts import drafter_config, is_head_norm
from support.durable import encode_json, give_usual_mode, replace_file

SHARD_BYTES = 2**29
THREADS = 8  # at most
State = dict[str, Tensor]
Writer = Callable[[Path], object]  # into the target's folder, and next to it


@dataclass(frozen=True)
class Published:
    """A model of published size."""

    model: str
    config: dict[str, Any]  # its config.json
    # Writes tokenizer and codec for a target's folder, with as many codes as are published but
    # narrow networks; returns the weights that lie among the target's own.
    write_parts: Callable[[Path], State]
    head: dict[str, Any] | None = None  # the drafter's config.json; None: a layer of the target's
    # Shape of the norms of queries and keys where heads share one; None: a row per head.
    head_norm: tuple[int, ...] | None = None

    def networks(self) -> tuple[Network, dict[str, Any], Network]:
        """Return the target, and the drafter with its config.json, on the meta device."""
        family = family_of(self.model)
        target = family.network(self.config)
        config = self.head or drafter_config(family.entries(self.config))
        spec = target.module.spec
        head = drafter_network(config, family.drafter(config, spec), spec, "config.json")
        return target, config, head

    def __call__(self, folder: Path) -> None:
        """Write target, drafter, tokenizer and codec.

        Up to 1 GB of memory per core is taken, of which up to 8 are used.
        """
        target, config, head = self.networks()
        write_weights(folder / "drafter", config, self.shapes(head))
        parts = self.write_parts(folder)
        # Last, so that a folder with the target's config.json is whole.
        write_weights(folder, self.config, self.shapes(target) | parts)
        weights = sum(weight.numel() for weight in target.module.parameters())
        print(f"{folder}: {weights:,} weights and a drafter", file=sys.stderr)

    def shapes(self, network: Network) -> State:
        """Return bf16 tensors on the meta device by public key, with the rows that nobody reads."""
        tensors, state = network.module.state_dict(), {}
        for key, slot in network.keys.items():
            read = tensors[slot.parameter][slot.rows]
            height = len(read) if slot.height is None else slot.height
            shape = (height, *read.shape[1:])
            if self.head_norm is not None and is_head_norm(key):
                shape = self.head_norm
            state[key] = torch.empty(shape, dtype=torch.bfloat16, device="meta")
        return state


def write_weights(folder: Path, config: dict[str, Any], state: State) -> None:
    """Write config.json and weights, random ones for tensors on the meta device."""
    folder.mkdir(parents=True, exist_ok=True)
    plan = split_torch_state_dict_into_shards(state, max_shard_size=SHARD_BYTES)

    def write_shard(seed: int, name: str, keys: list[str]) -> None:
        random = torch.Generator().manual_seed(seed)
        tensors = {key: _filled(key, state[key], random) for key in keys}
        save_file(tensors, folder / name, {"format": "pt"})
        give_usual_mode(folder / name)
        print(f"{folder / name}: {len(keys)} tensors", file=sys.stderr, flush=True)

    # A thread draws one number after the other. Only as many shards as there are threads are in
    # memory: all of them together are 14 GB or more, which many machines lack.
    with ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1)) as pool:
        shards = plan.filename_to_tensors.items()
        list(pool.map(write_shard, count(), *zip(*shards, strict=True)))
    index = {"metadata": plan.metadata, "weight_map": plan.tensor_to_filename}
    replace_file(folder / "model.safetensors.index.json", encode_json(index))
    replace_file(folder / "config.json", encode_json(config))


def _filled(key: str, tensor: Tensor, random: torch.Generator) -> Tensor:
    """Return a weight that keeps the scale of activations instead of one on the meta device."""
    if not tensor.is_meta:
        return tensor
    weight = torch.empty(tensor.shape, dtype=torch.bfloat16)
    # a new norm's own values: weight 1, bias 0
    if "norm" in key:
        return weight.fill_(float(key.endswith("weight")))
    scale = weight[0].numel() ** -0.5 if weight.ndim > 1 else 0.02
    return weight.normal_(0.0, scale, generator=random)
