"""Image sizes in pixels that models with --target_size draw."""

import re
from dataclasses import dataclass

from configs.fields import refuse

STRETCH = 4.0  # greatest ratio of the sides


@dataclass(frozen=True)
class ImageSizes:
    """What --target_size may be.

    cell: pixels; sides are given to the model in cells. largest: side of the largest square.
    default: where neither the flag nor the folder's name says one. named: sizes that a folder's
    name may end in, as Lumina-mGPT-7B-512.
    """

    cell: int
    largest: int
    default: str
    named: tuple[str, ...] = ()


# The public checkpoints know areas of about 512, 768 or 1024 squared.
LUMINA_MGPT = ImageSizes(32, 1024, "768", ("512", "768", "1024"))
# Lumina-mGPT 2.0 was trained on areas of 768 squared; larger ones do not fit its positions.
LUMINA_MGPT2 = ImageSizes(32, 768, "768")
# Emu3-Gen was trained on areas of about 720 squared; 768 squared no longer fits its positions.
EMU3 = ImageSizes(8, 760, "720")
# Emu3.5 was trained on areas of about 1,024 squared; 55 x 73 tokens is its script's default.
EMU3_5 = ImageSizes(16, 1024, "1168x880")

# Of GLM-Image, whose positions here have room for 2,048 squared.
GLM_IMAGE = ImageSizes(32, 2048, "1024")


def default_size(model_path: str, sizes: ImageSizes = LUMINA_MGPT) -> str:
    """Return the size that a public checkpoint is named after, or the model's default."""
    match = re.search(r"-([0-9]+)/*$", model_path)
    return match[1] if match and match[1] in sizes.named else sizes.default


def parse_size(text: str, sizes: ImageSizes = LUMINA_MGPT) -> tuple[int, int]:
    """Return width and height in pixels of "768" or "1024x576".

    A SettingsError for a side that is no whole number of cells, and for an image larger than the
    largest square or longer than four times its other side.
    """
    match = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", text)
    width, height = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    short, long = min(width, height), max(width, height)
    fits = short > 0 and not width % sizes.cell and not height % sizes.cell
    if not fits or width * height > sizes.largest**2 or long > STRETCH * short:
        allowed = (
            f"a side, or width x height as 1024x576, in multiples of {sizes.cell}, "
            f"at most {sizes.largest} x {sizes.largest} pixels and {STRETCH:g} to 1"
        )
        refuse("target_size", text, allowed)
    return width, height
