"""Pictures brought to a model's size as its training did, and the codes of every family."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image
from small import OPTIONS
from small_llamagen import write_llamagen

from models.codecs.codec import ADM, META, on_white
from models.targets.llamagen import LlamaGen


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


def test_transparency_is_white():
    clear = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    clear.putpixel((1, 0), (0, 0, 255, 255))
    assert np.asarray(on_white(clear)).tolist() == [[[255, 255, 255], [0, 0, 255]]]
    assert np.asarray(on_white(Image.new("L", (1, 1), 7))).tolist() == [[[7, 7, 7]]]
    grey = Image.new("LA", (1, 1), (0, 51))
    assert np.asarray(on_white(grey)).tolist() == [[[204, 204, 204]]]
    half = Image.new("RGBA", (1, 1), (100, 7, 0, 128))  # 177.19, 130.51 and 127 on white
    assert np.asarray(on_white(half)).tolist() == [[[177, 130, 127]]]


def test_llamagen_cuts_captions(tmp_path):
    folder = write_llamagen(tmp_path)
    codec = LlamaGen(4).codec(folder, replace(OPTIONS, vq_path=str(tmp_path / "vq_ds16_t2i.pt")))
    assert codec.size == (8, 8) and codec.length("a cat " * 100) == 9
    assert codec.encode(picture(8, 8)).shape == (16,)
