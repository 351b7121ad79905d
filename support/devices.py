"""--device: which processor runs the networks."""

import os

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
        own = int(
            os.environ.get("LOCAL_RANK", "0")
        )  # of several processes each takes a GPU of its own
        device = torch.device("cuda", own if device.index is None else device.index)
        if device.index >= available:
            raise SettingsError(
                f"--device: found {name!r}, but {available} CUDA devices are here; allowed: auto, cpu"
            )
        torch.cuda.set_device(device)  # streams and events of the timings are the current device's
    return device
