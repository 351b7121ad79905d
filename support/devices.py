"""--device: which processor runs the networks."""

import torch

from configs.fields import SettingsError
from support.processes import read_launch


def pick_device(name: str) -> torch.device:
    """Return the device of a name that the settings allow; `auto` takes a GPU if there is one.

    Raises:
        SettingsError: this machine has no such GPU.
    """
    available = torch.cuda.device_count()
    if name == "auto":
        name = "cuda" if available else "cpu"
    device = torch.device(name)
    if device.type == "cuda":
        own = read_launch().local_rank  # each of several processes takes a GPU of its own
        device = torch.device("cuda", own if device.index is None else device.index)
        if device.index >= available:
            found = f"found {name!r}, but {available} CUDA devices are here"
            raise SettingsError(f"--device: {found}; allowed: auto, cpu")
        torch.cuda.set_device(device)  # streams and events of the timings are the current device's
    return device
