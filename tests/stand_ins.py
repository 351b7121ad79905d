"""Files that only have to be there."""

from pathlib import Path


def empty_checkpoint(folder: Path) -> Path:
    """A checkpoint folder whose files are all there and hold nothing."""
    network, tokenizer = ("config.json", "model.safetensors"), ("text_tokenizer.json", "vqgan.yaml", "vqgan.ckpt")
    for place, names in ((".", network), ("drafter", network), ("tokenizer", tokenizer)):
        (folder / place).mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / place / name).write_text("{}")
    return folder
