"""Pictures brought to a model's size as its training did."""

import numpy as np
import pytest
from PIL import Image

from models.codecs.codec import ADM, META


def picture(width: int, height: int) -> Image.Image:
    generator = np.random.default_rng(0)
    return Image.fromarray(generator.integers(0, 256, (height, width, 3), dtype=np.uint8))


@pytest.mark.parametrize(
    ("size", "scaled", "box"),
    [
        ((48, 32), (24, 16), (4, 0, 20, 16)),
        ((20, 30), (16, 24), (0, 4, 16, 20)),
        ((9, 8), (18, 16), (1, 0, 17, 16)),
    ],
)
def test_metas_recipe(size, scaled, box):
    expected = picture(*size).resize(scaled, Image.Resampling.LANCZOS).crop(box)
    assert np.array_equal(META(picture(*size), (16, 16)), expected)


def test_guided_diffusions_recipe():
    halved = picture(70, 100).resize((35, 50), Image.Resampling.BOX)
    halved = halved.resize((17, 25), Image.Resampling.BOX)
    expected = halved.resize((16, 24), Image.Resampling.BICUBIC).crop((0, 4, 16, 20))
    assert np.array_equal(ADM(picture(70, 100), (16, 16)), expected)
    wide = picture(70, 40).resize((56, 32), Image.Resampling.BICUBIC).crop((0, 0, 56, 32))
    assert np.array_equal(ADM(picture(70, 40), (56, 32)), wide)
