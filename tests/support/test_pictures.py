"""Pictures of every kind become RGB without loss of what people see."""

import io

import numpy as np
import pytest
from PIL import Image

from support.pictures import as_rgb


def stored(image: Image.Image, **options: object) -> Image.Image:
    """Return the picture as a program finds it in a file."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **options)
    return Image.open(buffer)


def test_transparency_is_white():
    clear = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    clear.putpixel((1, 0), (0, 0, 255, 255))
    assert np.asarray(as_rgb(clear)).tolist() == [[[255, 255, 255], [0, 0, 255]]]
    assert np.asarray(as_rgb(Image.new("L", (1, 1), 7))).tolist() == [[[7, 7, 7]]]
    grey = Image.new("LA", (1, 1), (0, 51))
    assert np.asarray(as_rgb(grey)).tolist() == [[[204, 204, 204]]]
    half = Image.new("RGBA", (1, 1), (100, 7, 0, 128))  # 177.19, 130.51 and 127 on white
    assert np.asarray(as_rgb(half)).tolist() == [[[177, 130, 127]]]


def test_grey_of_16_bits_is_scaled():
    """Pillow makes white of everything above 255."""
    shades = np.linspace(0, 65535, 256).astype(np.uint16).reshape(16, 16)
    expected = np.arange(256).reshape(16, 16)
    for image in (Image.fromarray(shades), stored(Image.fromarray(shades))):
        assert (np.asarray(as_rgb(image)) == expected[..., None]).all()
    wide = Image.fromarray(shades.astype(np.int32))  # as earlier versions of Pillow read such files
    assert (np.asarray(as_rgb(wide)) == expected[..., None]).all()


@pytest.mark.parametrize("mode", ["1", "L", "P", "CMYK", "RGB"])
def test_other_modes_are_converted(mode):
    assert as_rgb(Image.new(mode, (2, 1))).mode == "RGB"


def test_floating_point_pictures_are_refused():
    """From 0 to 1 they would be black."""
    with pytest.raises(ValueError, match="floating-point"):
        as_rgb(Image.new("F", (2, 1), 0.5))


def test_a_turned_photograph_is_upright():
    exif = Image.Exif()
    exif[0x112] = 6  # turned by a quarter
    assert as_rgb(stored(Image.new("RGB", (4, 2)), exif=exif)).size == (2, 4)
