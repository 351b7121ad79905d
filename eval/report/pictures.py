"""Pictures of the report as data URIs: thumbnails, differences, acceptance maps."""

import base64
import io

import matplotlib
import numpy as np
from PIL import Image

_SIDE = 384  # pixels of a thumbnail's longer edge
_GAIN = 4  # differences are shown this much stronger


def thumbnail(image: Image.Image) -> str:
    """Return the image, at most 384 pixels on its longer edge, as a JPEG of high quality."""
    small = image.convert("RGB")
    small.thumbnail((_SIDE, _SIDE), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=90)
    return _uri("image/jpeg", buffer.getvalue())


def difference(image: Image.Image, lossless: Image.Image) -> tuple[str, float] | None:
    """Return four times |image - lossless| as a picture, and its mean in grey levels, 0 to 255.

    None if their sizes differ.
    """
    if image.size != lossless.size:
        return None
    ours, theirs = (np.asarray(each.convert("RGB"), dtype=np.int16) for each in (image, lossless))
    apart = np.abs(ours - theirs)
    shown = Image.fromarray((apart * _GAIN).clip(0, 255).astype(np.uint8))
    return thumbnail(shown), float(apart.mean())


def acceptance_map(lengths: np.ndarray) -> str:
    """Return accepted lengths (rows, columns) as colours, from dark (0) to yellow (8 and more)."""
    shares = lengths / 8
    colours = matplotlib.colormaps["viridis"](np.ma.masked_invalid(shares), bytes=True)[..., :3]
    side = max(1, _SIDE // max(shares.shape))
    picture = Image.fromarray(colours).resize(
        (shares.shape[1] * side, shares.shape[0] * side), Image.Resampling.NEAREST
    )
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return _uri("image/png", buffer.getvalue())


def _uri(kind: str, content: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
