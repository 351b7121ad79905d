"""--device: which processor runs the networks."""

import os

import torch

from configs.fields import refuse
from support.processes import read_launch
from support.provenance import cpu_name


def pick_device(name: str) -> torch.device:
    """Return a device by its name; auto: a GPU if there is one. A SettingsError if it is absent."""
    available = torch.cuda.device_count()
    if name == "auto":
        name = "cuda" if available else "cpu"
    device = torch.device(name)
    if device.type == "cuda":
        if device.index is None:
            # torchrun starts one process per GPU: each takes the GPU of its number
            device = torch.device("cuda", read_launch().local_rank)
        if device.index >= available:
            gpus = "no GPU" if not available else f"{available} GPUs"
            refuse("device", name, "auto or cpu", f"PyTorch found {gpus} on this machine.")
        torch.cuda.set_device(device)  # streams and events of the timings are the current device's
    return device


def memory_bytes(device: torch.device) -> int:
    """Return how much memory a GPU has, or the machine."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def machine_name(device: torch.device) -> str:
    """Return the name of the GPU, or of the processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name()
