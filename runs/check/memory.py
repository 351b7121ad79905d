"""The memory that `inspect` names, by the shapes that an engine allocates.

Of the methods, at their default sizes, the one that takes most counts. Prompts are as long as the
target takes. Keys and values are a GPU's; CPUs keep those of bf16 in fp32, twice the bytes.
"""

import torch

from configs.methods import METHODS, MethodSettings
from configs.tools import InspectSettings
from decoding.cache import CacheShape, KVCache
from decoding.noise import NoiseShape
from decoding.round import TreeShape
from drafters.block import CANDIDATES
from drafters.eagle import drafted_slots
from drafters.jacobi import table_shape
from models.base import ImageGrid, TransformerSpec
from models.codecs.peak import META_DEVICE
from models.files.network import Network
from models.quantize import copies_bytes, weight_bytes
from runs.methods import build_policy
from runs.session import DTYPES


def memory_of(
    settings: InspectSettings,
    target: Network | None,
    drafter: Network | None,
    image: tuple[ImageGrid, int] | None,  # of its tokens, and how many different ones there are
) -> dict[str, int]:
    """Return bytes by what takes them, for the batch of the settings; without what is unknown."""
    grid = ImageGrid(1, 1) if image is None else image[0]  # unknown where parts do not fit together
    trees = largest_trees(grid)
    memory: dict[str, int] = {}
    if target is not None:
        spec = target.module.spec
        slots = spec.max_positions + max(grid.block(tree.nodes) for tree in trees.values())
        memory |= _weights("target", target, settings, settings.quantize)
        memory["target keys and values"] = cache_bytes(settings, spec, slots)
    if drafter is not None:
        spec = drafter.module.spec
        # beyond a prompt and its image
        beyond = (
            grid.block(tree.nodes)
            + grid.block(tree.reach)
            + max(drafted_slots(tree, grid), tree.reach * CANDIDATES)
            for name, tree in trees.items()
            if METHODS[name].drafted
        )
        slots = spec.max_positions + max(beyond)
        memory |= _weights("drafter", drafter, settings, None)
        memory["drafter keys and values"] = cache_bytes(settings, spec, slots)
    return memory if image is None else memory | _tables(settings, *image)


def largest_trees(grid: ImageGrid) -> dict[str, TreeShape]:
    """Return the largest tree of every method that drafts, at its defaults."""
    drafting = (name for name, entry in METHODS.items() if entry.speculative)
    return {name: build_policy(MethodSettings(name), grid).largest for name in drafting}


def cache_bytes(settings: InspectSettings, spec: TransformerSpec, slots: int) -> int:
    """Return the bytes of a batch's keys, values and masks."""
    shape = CacheShape(settings.batch_size, settings.sampling.guidance, slots)
    return KVCache(spec, shape, DTYPES[settings.dtype], META_DEVICE).nbytes


def _weights(
    name: str, network: Network, settings: InspectSettings, kind: str | None
) -> dict[str, int]:
    """Return the bytes of loaded weights and of their copies; kind: of quantisation."""
    dtype = DTYPES[settings.dtype]
    packed = copies_bytes(network.module, kind, dtype)
    copies = {f"{name} copies on CPUs": packed} if packed else {}
    return {f"{name} weights": weight_bytes(network.module, kind, dtype)} | copies


def _tables(settings: InspectSettings, grid: ImageGrid, codes: int) -> dict[str, int]:
    """Return the bytes of the noise and of the stale predictions of a batch."""
    trees = largest_trees(grid)
    reach = max(tree.reach for tree in trees.values())
    # Noise and predictions are fp32 with bf16 weights, too.
    dtype = torch.float64 if settings.dtype == "fp64" else torch.float32
    noise = NoiseShape(grid.tokens, codes, False, dtype, META_DEVICE, 1 + reach)
    stale = torch.Size(table_shape(settings.batch_size, grid, codes, reach))
    recalled = max(
        1 + tree.nodes for name, tree in trees.items() if "recall_numbers" in METHODS[name].defaults
    )
    return {
        "noise": settings.batch_size * noise.nbytes,
        "stale predictions": stale.numel() * dtype.itemsize,
        "recalled predictions": settings.batch_size * recalled * codes * dtype.itemsize,
    }
