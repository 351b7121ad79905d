"""`vq_distances`: write the table of nearest codes of a checkpoint."""

import torch

from configs.fields import refusing
from configs.tools import DistanceSettings
from models.codecs.codebook import table_path, write_table
from models.files.folders import checkpoint_folder
from models.registry import family_of
from runs.session import target_options


def make_distances(settings: DistanceSettings) -> None:
    """Write top_{columns}_indices.npy for --model_path and print what was written, and where."""
    options = target_options(settings.engine, torch.float32, torch.device("cpu"))
    with refusing():
        folder = checkpoint_folder(settings.engine.model_path, "--model_path")
        codebook = family_of(settings.engine.model).codebook(folder, options)
        path = table_path(folder, len(codebook), settings.neighbours)
        write_table(codebook, path, settings.neighbours)
    columns = settings.neighbours or len(codebook) - 1
    size = path.stat().st_size / 2**20
    print(f"{path}: {len(codebook)} codes, {columns} neighbours each, {size:.1f} MiB")
