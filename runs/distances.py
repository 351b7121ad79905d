"""`vq_distances`: write the table of nearest codes into a checkpoint folder."""

from pathlib import Path

import torch

from configs.fields import refusing
from configs.tools import DistanceSettings
from models.codecs.codebook import table_path, write_table
from models.registry import family_of
from runs.session import target_options


def make_distances(settings: DistanceSettings) -> None:
    """Write vq_distances/top_{columns}_indices.npy into --model_path and print what was written."""
    folder = Path(settings.engine.model_path)
    options = target_options(settings.engine, torch.float32, torch.device("cpu"))
    with refusing():
        codebook = family_of(settings.engine.model).codebook(folder, options)
        path = table_path(folder, len(codebook), settings.neighbours)
        write_table(codebook, path, settings.neighbours)
    columns = settings.neighbours or len(codebook) - 1
    size = path.stat().st_size / 2**20
    print(f"{path}: {len(codebook)} codes, {columns} neighbours each, {size:.1f} MiB")
