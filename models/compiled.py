"""The blocks of a transformer by torch.compile, all of them by the code of one.

What lies between reading the cache in one block and in the next is a function of tensors: it is
compiled once, and every block hands it its own weights. The cache is not part of it: a compiler
copies memory that it cannot tell apart, and there is nothing to fuse in reading it.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn

from models.base import Context
from models.transformer import Block, Blocks, Rotation, in_turn, run_by_torch
from support.compiler import compiled


def compile_blocks(*networks: nn.Module) -> None:
    """Let networks run compiled blocks, which torch makes in the first passes and keeps on disk."""
    for network in networks:
        for module in network.modules():
            if isinstance(module, Blocks):
                module.run = partial(run_by_torch, walk=compiled_in_turn)


def missing_compiler(device: torch.device) -> str | None:
    """Return what `torch.compile` lacks on this machine, None if nothing."""
    if device.type == "cuda" and importlib.util.find_spec("triton") is None:
        return "the package triton is missing"
    # Inductor takes CXX or g++ (clang++ on macOS), Triton CC, gcc or clang.
    names = [os.environ.get("CXX"), "g++", "clang++", os.environ.get("CC"), "gcc", "clang"]
    if not any(shutil.which(name) for name in names if name):
        return "no C++ compiler was found"
    return None


def compiled_in_turn(
    blocks: Iterable[Block], x: Tensor, rotation: Rotation, context: Context
) -> Iterator[Tensor]:
    """Yield what `in_turn` yields, by compiled code where no gradients are recorded."""
    blocks = tuple(blocks)
    # backward passes would be compiled as well, for every size of a batch
    if torch.is_grad_enabled() or not blocks:
        yield from in_turn(blocks, x, rotation, context)
        return
    begin, between, end = map(compiled, (_begin, _between, _end))
    _any_size((0, 1), x)
    qkv = begin(blocks[0], x)
    for block, following in pairwise(blocks):
        # (rows, heads, n, head_dim): tokens are dimension 2 here, and 1 in x
        y = block.read(qkv, rotation, context)
        _any_size((0, 2), y)
        x, qkv = between(block, following, x, y)
        _any_size((0, 1), x)
        yield x
    y = blocks[-1].read(qkv, rotation, context)
    _any_size((0, 2), y)
    yield end(blocks[-1], x, y)


def _begin(block: Block, x: Tensor) -> Tensor:
    return block.begin(x)


def _between(block: Block, following: Block, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    x = block.end(x, y)
    return x, following.begin(x)


def _end(block: Block, x: Tensor, y: Tensor) -> Tensor:
    return block.end(x, y)


def _any_size(dimensions: tuple[int, int], *tensors: Tensor) -> None:
    """Let a program take any number of rows and tokens, unless there is one, in these dimensions.

    Else every new number of tokens would be a reason to compile again.
    """
    for tensor in tensors:
        for dimension in dimensions:
            if tensor.shape[dimension] > 1:
                # `mark_dynamic` would raise where the compiler settles on one size all the same.
                torch._dynamo.maybe_mark_dynamic(tensor, dimension)
