"""--device: which processor runs the networks."""

import torch

from configs.fields import SettingsError


def pick_device(name: str) -> torch.device:
    """The device of a name that the settings allow; `auto` takes a GPU where there is one.

    Raises:
        SettingsError: the GPU is not there.
    """
    available = torch.cuda.device_count()
    if name == "auto":
        name = "cuda" if available else "cpu"
    device = torch.device(name)
    if device.type == "cuda":
        device = torch.device("cuda", device.index or 0)
        if device.index >= available:
            raise SettingsError(f"--device: found {name!r}, but {available} CUDA devices are here; allowed: auto, cpu")
        torch.cuda.set_device(device)  # streams and events of the timings are the current device's
    return device
