"""Sizes in pixels that Lumina-mGPT draws in."""

import re

CELL = 32  # pixels: sides are given to the model in cells
LARGEST = 1024  # side of the largest square that a public checkpoint was trained on
STRETCH = 4.0  # greatest ratio of the sides
DEFAULT_SIZE = "768"


def default_size(model_path: str) -> str:
    """The size that a public checkpoint is named after, as Lumina-mGPT-7B-512, or else 768."""
    match = re.search(r"-(512|768|1024)/*$", model_path)
    return match[1] if match else DEFAULT_SIZE


def parse_size(text: str) -> tuple[int, int]:
    """Width and height in pixels of "768" or "1024x576".

    Raises:
        ValueError: the text is no size; a side is no multiple of 32; the image is larger than 1024 x 1024 or longer
            than four times its other side. The public checkpoints know areas of about 512, 768 or 1024 squared.
    """
    match = re.fullmatch(r"([0-9]{1,5})(?:x([0-9]{1,5}))?", text)
    width, height = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    sides = min(width, height), max(width, height)
    fits = sides[0] > 0 and not width % CELL and not height % CELL
    if not fits or width * height > LARGEST**2 or sides[1] > STRETCH * sides[0]:
        raise ValueError(
            f"--target_size: found {text!r}; allowed: a side, or width x height as 1024x576, in multiples of {CELL}, "
            f"at most {LARGEST} x {LARGEST} pixels and {STRETCH:g} to 1"
        )
    return width, height
