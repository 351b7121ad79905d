"""Checkpoint files that only have to exist."""

from pathlib import Path


def write_empty(folder: Path, *names: str) -> Path:
    for path in (folder / name for name in names):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return folder


def empty_checkpoint(folder: Path) -> Path:
    """Make a checkpoint folder with all its files, without content; returns it."""
    network, tokenizer = ("config.json", "model.safetensors"), ("vqgan.yaml", "vqgan.ckpt")
    write_empty(folder / "drafter", *network)
    write_empty(folder / "tokenizer", "text_tokenizer.json", *tokenizer)
    return write_empty(folder, *network)


def empty_llamagen(root: Path) -> Path:
    """Make LlamaGen's files below `root`, without content; returns the target's folder."""
    network = ("config.json", "model.safetensors")
    write_empty(root, "vq_ds16_t2i.pt")
    write_empty(root / "t5" / "flan-t5-xl", *network, "tokenizer.json")
    drafter = ("drafter/config.json", "drafter/pytorch_model.bin")
    return write_empty(root / "LlamaGen-T2I", *network, *drafter)
