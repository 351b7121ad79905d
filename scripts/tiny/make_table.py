"""Write the tiny model's table of nearest codes: `python -m scripts.tiny.make_table`."""

from pathlib import Path

from models.codecs.codebook import table_path, write_table
from models.codecs.vqgan import load_vqgan
from support.script import run_script


def make_table(*, model_dir: str = "ckpts/tiny") -> None:
    """Write vq_distances/top_{K-1}_indices.npy from the VQGAN's codebook."""
    codebook = load_vqgan(Path(model_dir) / "tokenizer").codebook
    write_table(codebook, table_path(model_dir, len(codebook)))


if __name__ == "__main__":
    run_script(make_table)
