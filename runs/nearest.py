"""Find and load the table of nearest codes in the model's folder, for relaxed acceptance."""

from pathlib import Path

import torch
from torch import Tensor

from configs.fields import SettingsError, refuse
from configs.schema import LanternSettings, RunSettings
from models.codecs.codebook import find_table, load_table
from models.files.folders import checkpoint_folder

MOST_CODES = 2**16


def nearest_columns(lantern: LanternSettings, codes: int) -> int:
    """Return the columns that the settings need; a SettingsError if there are too few codes."""
    if lantern.k >= codes:
        refuse("lantern_k", lantern.k, f"1 to {codes - 1}, since the model has {codes} image codes")
    return min(
        lantern.k + (lantern.residual == "reference"), codes - 1
    )  # published code removes one more


def find_nearest(settings: RunSettings, columns: int, codes: int = MOST_CODES) -> Path:
    """Return the model's narrowest table with so many columns.

    Raises:
        SettingsError: there is none; it says how to make one.
    """
    try:
        return find_table(checkpoint_folder(settings.model_path, "--model_path"), codes, columns)
    except ValueError as error:
        raise SettingsError(f"--lantern_k: {error}") from error


def load_nearest(settings: RunSettings, columns: int, codes: int, device: torch.device) -> Tensor:
    """Return the codes nearest to every code, int32 (codes, columns).

    Raises:
        SettingsError: the table is missing or damaged.
    """
    path = find_nearest(settings, columns, codes)
    try:
        table = load_table(path, codes, columns)
    except ValueError as error:
        raise SettingsError(f"--lantern: {error}") from error
    return torch.from_numpy(table.astype("int32")).to(device)
