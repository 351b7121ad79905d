"""Sets of image files for the metrics; files without a readable image are left out by name."""

import hashlib
import io
from collections.abc import Iterable
from pathlib import Path

from PIL import Image

from configs.fields import SettingsError
from eval.metrics.base import ImageSet, Unavailable

_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
_UNREADABLE = (OSError, SyntaxError, ValueError, IndexError, Image.DecompressionBombError)


def image_set(name: str, files: Iterable[tuple[Path, str]]) -> ImageSet:
    """Return the files, with their prompts, that hold an image."""
    whole, left_out = [], []
    for path, prompt in files:
        try:
            content = path.read_bytes()
            with Image.open(io.BytesIO(content)) as image:
                if image.format == "PNG":
                    image.verify()  # its checksums, which is much faster than decoding
                else:
                    image.load()
            whole.append((path, hashlib.sha256(content).hexdigest(), prompt))
        except FileNotFoundError:
            left_out.append(f"{path.stem}: a record without an image")
        except _UNREADABLE as error:
            left_out.append(f"{path.stem}: an image that cannot be read ({type(error).__name__})")
    paths, keys, prompts = zip(*whole, strict=True) if whole else ((), (), ())
    return ImageSet(name, paths, keys, prompts, tuple(left_out))


def reference_files(folder: str) -> list[Path]:
    """Return the image files of --ref_dir and the folders in it; SettingsError if there is none."""
    files = sorted(Path(folder).rglob("*"))
    paths = [path for path in files if path.suffix.lower() in _ENDINGS]
    if not paths:
        raise SettingsError(
            f"--ref_dir {folder}: found no image; allowed: a folder of {', '.join(_ENDINGS)}"
        )
    return paths


def read_reference(folder: str) -> ImageSet:
    """Return the images of --ref_dir and the folders in it; Unavailable if none can be read."""
    images = image_set(Path(folder).name, [(path, "") for path in reference_files(folder)])
    if not len(images):
        raise Unavailable(f"no image in {folder} can be read")
    return images
