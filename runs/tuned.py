"""The file that `tune` writes: a recipe of the fastest method, and the conditions of its trials.

A recipe's lines, and under `tuned` what a reader may want to know: date, revision, the conditions
under which the method won, and the table of all methods.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from configs.command_line import TUNED
from configs.fields import Values, settings_dict
from configs.methods import MethodSettings, applicable
from configs.model import TIMED, EngineSettings
from configs.sampling import SamplingSettings
from configs.targets import ROOT, TARGETS, model_defaults
from models.files.folders import checkpoint_folder
from support.output import remark
from support.provenance import checkpoint_id

_SHARED = TIMED | {"dtype": "fp32", "quantize": "none"}  # settings that change times


def tuned_place(model_path: str) -> Path:
    """Return the file of a model, beside its folder; a ValueError if the model is not there."""
    folder = checkpoint_folder(model_path, "--model_path").absolute()
    # Not in the folder: checkpoint_id hashes the files there, so the model would be another.
    return folder.with_name(f"{folder.name}.tuned.yaml")


def conditions(settings: EngineSettings) -> dict[str, str]:
    """Return, in words, what decides which method is the fastest: machine, model and settings."""
    import torch  # here, since it takes seconds and most commands that read settings need none

    from support.devices import machine_name, pick_device

    values = {
        "machine": machine_name(pick_device(settings.device)),
        "threads": torch.get_num_threads(),
        "model": checkpoint_id(checkpoint_folder(settings.model_path, "--model_path")),
        **_shared(settings),
    }
    if settings.method.drafted:
        drafter = checkpoint_folder(settings.drafter_path, "--drafter_path")
        values["drafter"] = checkpoint_id(drafter)
    # Texts, since a recipe's values are read as texts and compared with these.
    return {name: str(value) for name, value in values.items()}


def tell_foreign_numbers(model_path: str, *methods: MethodSettings) -> None:
    """Say that methods weigh what they recall by numbers that were fitted to another model."""
    is_tiny = Path(model_path).resolve() == (ROOT / TARGETS["tiny"].folder).resolve()
    recalls = {
        method.method
        for method in methods
        if not method.recall_numbers and "recall_numbers" in applicable(vars(method))
    }
    if not is_tiny and recalls:
        fits = "; `tune` fits them to yours" if "recall" in recalls else ""
        remark(f"recall numbers: fitted to tiny{fits}")


def recipe_text(settings: EngineSettings, given: Values, tuned: Mapping[str, Any]) -> str:
    """Return the text of the file.

    settings: of a run by the method.
    given: paths of the model's files that were not left to their defaults.
    tuned: what stands under `tuned`, besides the conditions.
    """
    method = {name: v for name, v in settings_dict(settings.method).items() if v is not None}
    content = {"model": settings.model, **given, **method}
    content[TUNED] = {"method": settings.method.method, "conditions": conditions(settings), **tuned}
    first = (
        "# The fastest lossless method of a model on a machine; `python main.py tune` wrote it.\n"
    )
    return first + yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)


def warn_of_conditions(values: Values, settings: EngineSettings) -> None:
    """Say what differs if a method was tuned under other conditions than it is used in."""
    tuned = values.get(TUNED)
    if tuned is None or tuned["method"] != settings.method.method:
        return
    usual = {name: str(value) for name, value in _SHARED.items()}  # which older files lack
    there, here = usual | tuned["conditions"], conditions(settings)
    if names := [name for name in here if there.get(name) != here[name]]:
        apart = "; ".join(f"{name} {there.get(name)} there, {here[name]} here" for name in names)
        remark(
            f"--method {settings.method.method}: tuned under other conditions ({apart}); "
            "`python main.py tune` finds the fastest method under these"
        )


def flags_beside(settings: EngineSettings) -> str:
    """Return the flags that a run takes beside the file for the conditions of its trials."""
    usual = _SHARED | settings_dict(SamplingSettings()) | model_defaults(settings.model)
    given = _shared(settings).items()
    return "".join(f" --{flag} {value}" for flag, value in given if value != usual[flag])


def _shared(settings: EngineSettings) -> dict[str, object]:
    given = {name: getattr(settings, name) for name in _SHARED}
    given = {name: _SHARED[name] if value is None else value for name, value in given.items()}
    return given | settings_dict(settings.sampling)
