"""--compile: networks run kernels that are compiled on this machine."""

from collections.abc import Callable

from torch import nn

from configs.fields import SettingsError
from configs.model import INDUCTOR, EngineSettings
from models.compiled import compile_blocks, missing_compiler
from models.linear import pack_natively
from models.native import NoKernels, kernels
from models.transformer import Blocks
from support.devices import pick_device


def kernels_for(settings: EngineSettings) -> Callable[..., None]:
    """Return what lets networks run the kernels that --compile asks for.

    Raises:
        SettingsError: they cannot be compiled here.
    """
    if settings.compile != INDUCTOR:
        return fuse if fuses(settings) else _leave
    if lacking := missing_compiler(pick_device(settings.device)):
        raise SettingsError(f"--compile: found 'inductor', but {lacking}; allowed: off, auto")
    return compile_blocks


def _leave(*_networks: nn.Module) -> None:
    """Let networks run torch's kernels."""


def fuses(settings: EngineSettings) -> bool:
    """Return whether networks run kernels of our own on a CPU, by --compile.

    Raises:
        SettingsError: --compile on, and they cannot be compiled here.
    """
    if settings.compile in ("off", INDUCTOR) or pick_device(settings.device).type != "cpu":
        return False
    try:
        kernels()
    except NoKernels as error:
        if settings.compile == "on":
            found = f"--compile: found 'on', but {error}; allowed: off, auto"
            raise SettingsError(found) from error
        return False
    return True


def fuse(*networks: nn.Module) -> None:
    """Let networks run kernels of our own where they can."""
    for network in networks:
        pack_natively(network)
        for blocks in network.modules():
            if isinstance(blocks, Blocks):
                blocks.fused = True
