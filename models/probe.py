"""Whether compiled kernels are faster than torch's on this machine: measured once, and kept.

The timings lie beside the compiled library, so another compiler, processor or torch has others.
"""

import json
import time
from collections.abc import Callable
from copy import deepcopy
from functools import cache
from math import log, prod
from pathlib import Path
from timeit import timeit

import torch
from torch import Tensor, nn

from models.base import Context, TransformerSpec
from models.fused import run_fused
from models.linear import pack_weights, stored_type
from models.native import NAMES, find_compiler, kernels
from models.transformer import Blocks
from support.durable import encode_json, reason, replace_file
from support.output import remark

# A network in the processor's cache and one that is read from memory; plain decoding and a draft.
WIDTHS, TOKENS = (256, 1024), (1, 16)
_PAST = 64  # cached tokens
_REPEATS, _SECONDS = 20, 0.3  # whichever ends first; the fastest counts


def faster(network: nn.Module) -> bool:
    """Return whether kernels run a network's layers faster than torch, over few and many tokens.

    The weights count as they would be packed, and the width that is nearest to the network's.
    Raises NoKernels if they cannot be built.
    """
    dtype, stored = next(network.parameters()).dtype, stored_type(network)
    if stored is None:
        return False
    widths = {blocks.spec.hidden for blocks in network.modules() if isinstance(blocks, Blocks)}
    nearest = (min(WIDTHS, key=lambda measured: abs(log(measured / width))) for width in widths)
    return all(gains(dtype, stored)[width] > 1 for width in nearest)


@cache
def gains(dtype: torch.dtype, stored: torch.dtype) -> dict[int, float]:
    """Return, by width, how many times as fast as torch kernels of `NAMES` are.

    This is the product over few and many tokens. The first call on a machine measures, in seconds.
    """
    kernels()
    name, kept = NAMES[dtype, stored], _read()
    if name not in kept:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # on a busy machine threads wait for one another, at random
        try:
            measured = {
                width: prod(_gain(dtype, stored, width, tokens) for tokens in TOKENS)
                for width in WIDTHS
            }
        finally:
            torch.set_num_threads(threads)
        kept = _read() | {name: measured}
        try:
            # the library may be loaded already while another cache folder is set
            _path().parent.mkdir(parents=True, exist_ok=True)
            replace_file(_path(), encode_json(kept))
        except OSError as error:
            why = f"{_path()} cannot be written: {reason(error)}"
            remark(f"compiled kernels: the next command measures them again, since {why}")
    return {int(width): gain for width, gain in kept[name].items()}


def _path() -> Path:
    return find_compiler().library.with_suffix(".gains.json")


def _read() -> dict[str, dict[str, float]]:
    try:
        return json.loads(_path().read_bytes())
    except (OSError, ValueError):  # a file that is missing or damaged is measured again
        return {}


class _Cache:
    """Keys and values (layers, 2, 1, heads, slots, head_dim) of a pass over the newest slots."""

    def __init__(self, spec: TransformerSpec, tokens: int, dtype: torch.dtype):
        self.tokens, slots = tokens, _PAST + tokens
        # as in decoding, bf16 is attended in fp32
        self.type = torch.promote_types(dtype, torch.float32)
        size = 2 * spec.layers, 1, spec.kv_heads, slots, spec.head_dim
        self.memory = [torch.zeros(size, dtype=self.type)]
        self.slots, self.ends = torch.arange(_PAST, slots)[None], torch.tensor([slots])

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        both = self.memory[0][2 * layer : 2 * layer + 2]
        both[0, :, :, -self.tokens :], both[1, :, :, -self.tokens :] = keys, values
        return both[0], both[1]


@torch.inference_mode()
def _gain(dtype: torch.dtype, stored: torch.dtype, width: int, tokens: int) -> float:
    """Return torch's seconds over the kernels', of a pass over one layer."""
    spec = TransformerSpec(
        vocab=1,
        hidden=width,
        # the included model's ratio, 704 to 256
        intermediate=width * 11 // 4,
        layers=1,
        heads=width // 64,
        kv_heads=width // 64,
        max_positions=_PAST + tokens,
    )
    # rounding random weights gives them what `pack_weights` looks for in a checkpoint's
    blocks = Blocks(spec).requires_grad_(False).to(stored).to(dtype)
    cache = _Cache(spec, tokens, dtype)
    mask = torch.zeros(1, 1, tokens, _PAST + tokens, dtype=cache.type)
    context = Context(torch.arange(_PAST, _PAST + tokens)[None], mask, cache)
    x = torch.randn(1, tokens, width).to(dtype)
    ours, theirs = deepcopy(blocks), blocks
    pack_weights(ours)
    ours.run = run_fused
    by_kernels, by_torch = _fastest(lambda: ours(x, context), lambda: theirs(x, context))
    return by_torch / by_kernels


def _fastest(*ways: Callable[[], Tensor]) -> list[float]:
    """Return the fewest seconds of each way; they take turns, so that other work slows all."""
    fewest = [float("inf")] * len(ways)
    started = time.perf_counter()
    for repeat in range(_REPEATS):
        seconds = [timeit(way, number=1) for way in ways]
        fewest = [min(pair) for pair in zip(fewest, seconds, strict=True)]
        if repeat >= 2 and time.perf_counter() - started > _SECONDS:
            break
    return fewest
