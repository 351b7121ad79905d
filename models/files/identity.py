"""What tells checkpoints apart: the files that they are read from, by content."""

import hashlib
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from configs.targets import CHAMELEON_TOKENIZER
from models.files.weights import VQGAN_CONFIG, VQGAN_WEIGHTS, WEIGHT_FILES, present_files

# Beside weights, a model, its tokenizers and what paints are read from these. Other files are for
# people and other programs, or a user's copies.
_NAMES = (
    "config.json", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
    "added_tokens.json", "text_tokenizer.json", "spiece.model", "chat_template.jinja",
    "preprocessor_config.json", "scheduler_config.json", "emu3.tiktoken", "emu3_vision_tokens.txt",
    "config.yaml", VQGAN_CONFIG,
)  # fmt: skip
# The first file of each group that is there is read, or its shards. A codec's model.ckpt is read
# whatever lies beside it.
_WEIGHTS = (
    WEIGHT_FILES[:2], WEIGHT_FILES[2:], VQGAN_WEIGHTS, ("diffusion_pytorch_model.safetensors",),
)  # fmt: skip
_FOLDERS = ("", "tokenizer", str(CHAMELEON_TOKENIZER))
_BLOCK, _WHOLE, _EVERY = 1 << 16, 1 << 28, 1 << 23  # bytes


def checkpoint_id(path: str | Path) -> str:
    """Return a hash that tells checkpoints apart: of a file, or of the files in a folder.

    It takes names, sizes and contents; of files above 256 MiB, 64 KiB every 8 MiB. Files of
    `tokenizer/` and `chameleon/tokenizer/` count; other folders (the drafter), and files that no
    model is read from, do not.
    """
    digest = hashlib.sha256()
    base, files = Path(path).parent, [Path(path)]
    if Path(path).is_dir():
        base, files = Path(path), [*files_read(Path(path))]
    for file in sorted(files):
        stat = file.stat()
        check = _check_sum(file.resolve(), stat.st_size, stat.st_mtime_ns)
        digest.update(f"{file.relative_to(base)}:{stat.st_size}:{check:08x}\n".encode())
    return digest.hexdigest()[:16]


def files_read(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder that a checkpoint is read from."""
    for place in (folder / name for name in _FOLDERS):
        yield from (place / name for name in _NAMES if (place / name).is_file())
        for names in _WEIGHTS:
            yield from present_files(place, *names)


@cache  # a command names the same files many times, a sweep once per method
def _check_sum(path: Path, size: int, changed: int) -> int:
    """Return a check sum of a file as it was when it was changed last."""
    check = 0
    with path.open("rb") as file:
        # all of 14 GB would take longer than an image; so would SHA-256 of small files
        for start in range(0, size, _BLOCK if size <= _WHOLE else _EVERY):
            file.seek(start)
            check = zlib.crc32(file.read(_BLOCK), check)
    return check
