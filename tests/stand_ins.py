"""Checkpoint files that only have to exist."""

from pathlib import Path


def empty_checkpoint(folder: Path) -> Path:
    """Make a checkpoint folder with all its files, without content; returns it."""
    network, tokenizer = (
        ("config.json", "model.safetensors"),
        ("text_tokenizer.json", "vqgan.yaml", "vqgan.ckpt"),
    )
    for place, names in ((".", network), ("drafter", network), ("tokenizer", tokenizer)):
        (folder / place).mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / place / name).write_text("{}")
    return folder


def empty_llamagen(root: Path) -> Path:
    """Make LlamaGen's files below `root`, without content; returns the target's folder."""
    t5, folder = root / "t5" / "flan-t5-xl", root / "LlamaGen-T2I"
    for place, names in (
        (folder, ("config.json", "model.safetensors")),
        (folder / "drafter", ("config.json", "pytorch_model.bin")),
        (t5, ("config.json", "model.safetensors", "tokenizer.json")),
        (root, ("vq_ds16_t2i.pt",)),
    ):
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            (place / name).write_text("{}")
    return folder
