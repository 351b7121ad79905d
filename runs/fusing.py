"""--compile: networks run kernels that are compiled on this machine."""

import importlib.util
import logging
from collections.abc import Callable

import torch
from torch import nn

from configs.fields import SettingsError, mismatch
from configs.model import INDUCTOR, EngineSettings
from models.compiled import compile_blocks, missing_compiler
from models.fused import run_fused
from models.linear import pack_weights
from models.native import NoKernels, kernels
from models.probe import faster
from models.transformer import Attention, Blocks
from support.devices import pick_device

log = logging.getLogger(__name__)


def kernels_for(settings: EngineSettings) -> Callable[..., None]:
    """Return what lets networks run the kernels of --compile; a SettingsError without them."""
    device = pick_device(settings.device)
    if settings.compile == "off":
        return _run_by_torch
    attend = attend_on_gpu if _has_triton(settings, device) else _run_by_torch
    if settings.compile == INDUCTOR:
        if lacking := missing_compiler(device):
            raise _uncompiled(INDUCTOR, lacking)
        return lambda *networks: (compile_blocks(*networks), attend(*networks))
    if device.type == "cuda":
        return attend
    try:
        kernels()
    except NoKernels as error:
        if settings.compile == "on":
            raise _uncompiled("on", error) from error
        return _run_by_torch
    # auto: where these are faster here for a network's type and width
    return fuse if settings.compile == "on" else lambda *networks: fuse(*filter(faster, networks))


def _run_by_torch(*_networks: nn.Module) -> None:
    """Let networks run torch's kernels, as they do from the start."""


def _has_triton(settings: EngineSettings, device: torch.device) -> bool:
    """Return whether a GPU can run Triton's kernels; rounds over several GPUs are not captured."""
    return (
        device.type == "cuda"
        and settings.device_map == "single"
        and importlib.util.find_spec("triton") is not None
        and torch.cuda.get_device_capability(device) >= (8, 0)  # with products in bf16
    )


def attend_on_gpu(*networks: nn.Module) -> None:
    """Let networks read their caches by kernels of Triton, if it can build them here.

    It needs a C compiler and Python's headers, and a tile may need more memory than a GPU has.
    """
    layers = [
        module for net in networks for module in net.modules() if isinstance(module, Attention)
    ]
    try:
        from models.cuda_attention import attend_by_triton, build  # importing Triton takes a second

        # Build all sizes before changing a layer: if one fails, no layer is left with Triton.
        for size in {attention.head_dim for attention in layers}:
            build(size, layers[0].qkv.weight.device)
    except Exception as error:  # whatever a compiler says: images are the same without
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        log.warning("Attention runs by torch's kernels, which are slower: %s", reason)
        return
    for attention in layers:
        attention.attend = attend_by_triton


def _uncompiled(choice: str, reason: object) -> SettingsError:
    return mismatch("--compile", repr(choice), "off or auto", f"Here {reason}.")


def fuse(*networks: nn.Module) -> None:
    """Let networks run kernels of our own where they can."""
    for network in networks:
        pack_weights(network)
        for blocks in network.modules():
            if isinstance(blocks, Blocks):
                blocks.run = run_fused
