"""Pictures of any kind as RGB, which is what codecs and metrics read."""

import numpy as np
from PIL import Image, ImageOps


def as_rgb(image: Image.Image) -> Image.Image:
    """Return a picture upright and in RGB, on white where it is transparent.

    Transparent colours are truncated, as Meta's are. Grey of 16 bits is scaled to 8: Pillow alone
    would clip it. A ValueError for floating-point numbers, whose white is not known.
    """
    if image.mode == "F":
        raise ValueError("pixels are floating-point numbers")
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # also what some versions of Pillow make of such PNGs
        grey = np.asarray(image).clip(0, 65535).astype(np.float64)
        return Image.fromarray((grey / 257).round().astype(np.uint8)).convert("RGB")
    if not image.has_transparency_data:
        return image.convert("RGB")
    layers = np.asarray(image.convert("RGBA"))
    opacity = layers[..., 3:] / 255.0
    blended = (1 - opacity) * 255 + opacity * layers[..., :3]
    return Image.fromarray(blended.astype(np.uint8))
