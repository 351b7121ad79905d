"""All that a method's tokens and seconds depend on, apart from prompts and seeds."""

import torch

from configs.fields import flags_in, settings_dict
from configs.model import EngineSettings
from configs.recipes import method_flags
from models.backends import kernels_of
from runs.made_of import made_of
from support.devices import machine_name, pick_device
from support.provenance import cpu_name, versions

_FREE = ("device", "vq_device")  # the machine is named, and pixels are not measured


def conditions(settings: EngineSettings) -> dict[str, object]:
    """Return the settings by flag, the hashes of files, the machine and the versions.

    No weights are loaded. A SettingsError if the snapshot of a hub id cannot be had.
    """
    flags = (flags_in(EngineSettings) | method_flags()).keys() - set(_FREE)
    given = settings_dict(settings)
    values = {name: given.get(name) for name in sorted(flags)}
    made = made_of(values)
    return {
        **values,
        **made.files,
        **{f"{name} commit": commit for name, commit in made.commits.items()},
        "compile": settings.compile,
        "machine": machine_name(pick_device(settings.device)),
        "processor": cpu_name(),
        "threads": torch.get_num_threads(),
        "kernels": kernels_of(settings),  # --compile auto may lack a compiler
        **versions(),
    }
