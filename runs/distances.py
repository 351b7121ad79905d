"""`vq_distances`: write the table of nearest codes of a checkpoint."""

from configs.fields import refusing
from configs.tools import DistanceSettings
from models.codecs.codebook import table_path, write_table
from models.files.folders import checkpoint_folder
from runs.session import codebook_of


def make_distances(settings: DistanceSettings) -> None:
    """Write top_{columns}_indices.npy for --model_path and print what was written, and where."""
    with refusing():
        folder = checkpoint_folder(settings.engine.model_path, "--model_path")
        codebook = codebook_of(settings.engine)
        path = table_path(folder, len(codebook), settings.neighbours)
        write_table(codebook, path, settings.neighbours)
    columns = settings.neighbours or len(codebook) - 1
    size = path.stat().st_size / 2**20
    print(f"{path}: {len(codebook)} codes, {columns} neighbours each, {size:.1f} MiB")
