"""Image sizes in pixels that Lumina-mGPT draws."""

import re

from configs.fields import refuse

CELL = 32  # pixels: sides are given to the model in cells
LARGEST = 1024  # side of the largest square that a public checkpoint was trained on
STRETCH = 4.0  # greatest ratio of the sides
DEFAULT_SIZE = "768"


def default_size(model_path: str) -> str:
    """Return the size that a public checkpoint is named after, as Lumina-mGPT-7B-512, or 768."""
    match = re.search(r"-(512|768|1024)/*$", model_path)
    return match[1] if match else DEFAULT_SIZE


def parse_size(text: str) -> tuple[int, int]:
    """Return width and height in pixels of "768" or "1024x576".

    The public checkpoints know areas of about 512, 768 or 1024 squared.

    Raises:
        SettingsError: the text is no size; a side is no multiple of 32; the image is larger than
            1024 x 1024 or longer than four times its other side.
    """
    match = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", text)
    width, height = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    short, long = min(width, height), max(width, height)
    fits = short > 0 and not width % CELL and not height % CELL
    if not fits or width * height > LARGEST**2 or long > STRETCH * short:
        allowed = (
            f"a side, or width x height as 1024x576, in multiples of {CELL}, "
            f"at most {LARGEST} x {LARGEST} pixels and {STRETCH:g} to 1"
        )
        refuse("target_size", text, allowed)
    return width, height
