"""Sets of image files for the metrics; files without a readable image are left out by name."""

import hashlib
import io
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from configs.fields import SettingsError
from eval.metrics.base import ImageSet, Unavailable

_ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp")
_UNREADABLE = (OSError, SyntaxError, ValueError, IndexError, Image.DecompressionBombError)


@dataclass(frozen=True)
class ImageFile:
    """A file that should hold an image.

    Attributes:
        sha256: hash of the content it was saved with, where that is known.
    """

    path: Path
    prompt: str = ""
    sha256: str | None = None

    def content_hash(self) -> str:
        """Return the sha256 of the content; a Fault if it is not a readable image, or another."""
        try:
            content = self.path.read_bytes()
            with Image.open(io.BytesIO(content)) as image:
                if image.format == "PNG":
                    image.verify()  # its checksums, which is much faster than decoding
                else:
                    image.load()
        except FileNotFoundError as error:
            raise Fault("a record without an image") from error
        except _UNREADABLE as error:
            raise Fault(f"an image that cannot be read ({type(error).__name__})") from error
        found = hashlib.sha256(content).hexdigest()
        if self.sha256 not in (None, found):
            raise Fault("another image than the one that was saved")
        return found


class Fault(Exception):
    """Why a file is left out, in words."""


def image_set(name: str, files: Iterable[ImageFile]) -> ImageSet:
    """Return the files that hold their image, with the others named in `left_out`."""
    whole, left_out = [], []
    for file in files:
        try:
            whole.append((file.path, file.content_hash(), file.prompt))
        except Fault as fault:
            left_out.append(f"{file.path.stem}: {fault}")
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
    images = image_set(Path(folder).name, map(ImageFile, reference_files(folder)))
    if not len(images):
        raise Unavailable(f"no image in {folder} can be read")
    return images
