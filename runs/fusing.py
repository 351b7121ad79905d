"""--compile on a CPU: networks run kernels that are compiled on this machine."""

from torch import nn

from configs.fields import SettingsError
from configs.model import EngineSettings
from models.linear import pack_natively
from models.native import NoKernels, kernels
from models.transformer import Blocks
from support.devices import pick_device


def fuses(settings: EngineSettings) -> bool:
    """Return whether networks run compiled kernels between matrix products, by --compile.

    Raises:
        SettingsError: --compile on, and they cannot be compiled here.
    """
    if settings.compile == "off" or pick_device(settings.device).type != "cpu":
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
    """Let networks run compiled kernels where they can."""
    for network in networks:
        pack_natively(network)
        for blocks in network.modules():
            if isinstance(blocks, Blocks):
                blocks.fused = True
