"""--compile: networks run kernels that are compiled on this machine."""

from collections.abc import Callable

from torch import nn

from configs.fields import SettingsError, mismatch
from configs.model import INDUCTOR, EngineSettings
from models.compiled import compile_blocks, missing_compiler
from models.fused import run_fused
from models.linear import pack_weights
from models.native import NoKernels, kernels
from models.probe import faster
from models.transformer import Blocks
from support.devices import pick_device


def kernels_for(settings: EngineSettings) -> Callable[..., None]:
    """Return what lets networks run the kernels of --compile; a SettingsError without them."""
    if settings.compile == INDUCTOR:
        if lacking := missing_compiler(pick_device(settings.device)):
            raise _uncompiled(INDUCTOR, lacking)
        return compile_blocks
    if settings.compile == "off" or pick_device(settings.device).type != "cpu":
        return lambda *networks: None  # they run torch's kernels
    try:
        kernels()
    except NoKernels as error:
        if settings.compile == "on":
            raise _uncompiled("on", error) from error
        return lambda *networks: None
    # auto: where these are faster here for a network's type and width
    return fuse if settings.compile == "on" else lambda *networks: fuse(*filter(faster, networks))


def _uncompiled(choice: str, reason: object) -> SettingsError:
    return mismatch("--compile", repr(choice), "off or auto", f"Here {reason}.")


def fuse(*networks: nn.Module) -> None:
    """Let networks run kernels of our own where they can."""
    for network in networks:
        pack_weights(network)
        for blocks in network.modules():
            if isinstance(blocks, Blocks):
                blocks.run = run_fused
