"""--compile: networks run kernels that are compiled on this machine."""

import importlib.util
import logging
import platform
from collections.abc import Callable
from itertools import chain

import torch
from torch import nn
from torch.backends.cpu import get_cpu_capability

from configs.fields import Flag, SettingsError, mismatch
from configs.model import INDUCTOR, SAME_BITS, EngineSettings
from models.cpu.blocks import run_compiled
from models.cpu.linear import linears_of, pack_weights
from models.cpu.native import NoKernels, kernels
from models.fp8 import Fp8Linear
from models.transformer import BY_TORCH, Blocks, Transformer
from support.compiler import missing_compiler
from support.devices import pick_device
from support.output import first_line, remark

log = logging.getLogger(__name__)


def kernels_for(settings: EngineSettings) -> Callable[..., None]:
    """Return what lets networks run the kernels of --compile; a SettingsError without them."""
    device = pick_device(settings.device)
    if settings.compile == INDUCTOR and (lacking := missing_compiler(device)):
        raise _uncompiled(INDUCTOR, lacking)
    if settings.compile == SAME_BITS:
        if device.type != "cuda" or not _has_triton(settings, device):
            raise mismatch(
                Flag("compile"), repr(SAME_BITS), "auto",
                "It needs kernels of Triton on a GPU; compiled kernels of CPUs always do so.",
            )  # fmt: skip
        return use_same_bits
    if settings.compile == "off":
        return _run_by_torch
    if device.type == "cuda":
        return use_triton if _has_triton(settings, device) else _run_by_torch
    try:
        kernels()
    except NoKernels as error:
        if settings.compile == "on":
            raise _uncompiled("on", error) from error
        remark(f"layers run by torch's kernels, which are slower: {error}")
        return _run_by_torch
    return use_compiled if settings.compile == "on" or has_vectors() else _run_by_torch


def kernels_of(settings: EngineSettings) -> str:
    """Return whose kernels networks run by --compile, before one is loaded."""
    return {use_compiled: "compiled", use_triton: "triton", use_same_bits: "triton"}.get(
        kernels_for(settings), "torch"
    )


def has_vectors() -> bool:
    """Return whether the processor has AVX2 or NEON, for which the kernels are written."""
    return platform.machine() in ("arm64", "aarch64") or "AVX" in get_cpu_capability()


def _run_by_torch(*_networks: nn.Module) -> None:
    """Let networks run torch's kernels, as they do from the start."""


def _has_triton(settings: EngineSettings, device: torch.device) -> bool:
    """Return whether a GPU can run Triton's kernels; rounds over several GPUs are not captured."""
    return (
        settings.device_map == "single"
        and importlib.util.find_spec("triton") is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)  # with products in bf16
    )


def use_same_bits(*networks: nn.Module) -> None:
    """Let networks run these kernels, and products of which a row does not depend on the others.

    cuBLAS, whose choice of kernels depends on the number of rows, splits no sum then, for the whole
    process. On Hopper and Blackwell that is the only way in which rows differ, as users of vLLM
    have found; of other cards it is not known.
    """
    matmul = torch.backends.cuda.matmul
    try:
        matmul.allow_bf16_reduced_precision_reduction = (False, False)
    except TypeError as error:  # torch before 2.10
        raise _uncompiled(
            SAME_BITS, f"torch {torch.__version__} cannot switch off split sums"
        ) from error
    torch.backends.cuda.preferred_blas_library("cublaslt")  # cuBLAS itself splits as it likes
    use_triton(*networks, same_bits=True)


def use_triton(*networks: nn.Module, same_bits: bool = False) -> None:
    """Let bf16 networks run all between their products, and choose tokens, by kernels of Triton.

    These need a C compiler and Python's headers, and a tile may need more memory than a GPU has.
    """
    modules = chain.from_iterable(network.modules() for network in networks)
    found = [module for module in modules if isinstance(module, Blocks)]
    try:
        from models.cuda import choosing, ops  # importing Triton takes a second

        found = [net for net in found if ops.fits(net)]
        # Build all before changing a layer: if one fails, no layer is left with Triton.
        for net in found:
            ops.build(net, same_bits)
        targets = [net for net in networks if isinstance(net, Transformer) and net.blocks in found]
        choosers = {net: choosing.build(net) for net in targets}
    except Exception as error:  # whatever a compiler says: images are the same without
        if same_bits:
            raise _uncompiled(SAME_BITS, first_line(error)) from error
        log.warning("Layers run by torch's kernels, which are slower: %s", first_line(error))
        return
    ours = ops.TritonOps(same_bits, set().union(*map(ops.scaled_norms, found)))
    for block in chain.from_iterable(net.layers for net in found):
        block.ops = ours
        for linear in linears_of(block):
            if isinstance(linear, Fp8Linear):
                linear.scale_rows = ops.scale_rows
    for target, chooser in choosers.items():
        target.kernels = chooser


def _uncompiled(choice: str, reason: object) -> SettingsError:
    return mismatch(Flag("compile"), repr(choice), "off or auto", f"Here {reason}.")


def use_compiled(*networks: nn.Module) -> None:
    """Let networks run kernels of our own where they can."""
    for network in networks:
        pack_weights(network)
        for blocks in network.modules():
            if isinstance(blocks, Blocks):
                blocks.run = run_compiled


def whose_kernels(network: nn.Module) -> str:
    """Return whose kernels run a network's layers: "compiled" ones, "triton"'s or "torch"'s."""
    stacks = [module for module in network.modules() if isinstance(module, Blocks)]
    if any(blocks.run is run_compiled for blocks in stacks):
        return "compiled"
    used = [block.ops for blocks in stacks for block in blocks.layers]
    return "torch" if all(type(one) is type(BY_TORCH) for one in used) else "triton"
