"""The table of nearest codes that relaxed acceptance reads, from the model's folder."""

from pathlib import Path

import torch
from torch import Tensor

from configs.fields import SettingsError, refuse
from configs.schema import LanternSettings, RunSettings
from models.codecs.codebook import find_table, load_table
from models.files.folders import checkpoint_folder

MOST_CODES = 2**16


def nearest_columns(lantern: LanternSettings, codes: int) -> int:
    """Columns that the settings need of the table of so many codes; a SettingsError if it cannot have them."""
    if lantern.k >= codes:
        refuse("lantern_k", lantern.k, f"1 to {codes - 1}, since the model has {codes} image codes")
    return min(
        lantern.k + (lantern.residual == "reference"), codes - 1
    )  # published code removes one more


def find_nearest(settings: RunSettings, columns: int, codes: int = MOST_CODES) -> Path:
    """The model's narrowest table with so many columns; a SettingsError says how to make one."""
    try:
        return find_table(checkpoint_folder(settings.model_path, "--model_path"), codes, columns)
    except ValueError as error:
        raise SettingsError(f"--lantern_k: {error}") from error


def load_nearest(settings: RunSettings, columns: int, codes: int, device: torch.device) -> Tensor:
    """The codes nearest to every code, int32 (codes, columns); a SettingsError if the table is missing or damaged."""
    path = find_nearest(settings, columns, codes)
    try:
        table = load_table(path, codes, columns)
    except ValueError as error:
        raise SettingsError(f"--lantern: {error}") from error
    return torch.from_numpy(table.astype("int32")).to(device)
