"""Emu3 against transformers' class: pixels and codes."""

import torch
from fakes import with_row_ends

ROWS, COLUMNS = 4, 5
LAYOUTS = ("emu3", "emu3 of today")


def test_pixels_of_codes(session, theirs) -> None:
    target, generator = session.target, torch.Generator().manual_seed(0)
    codes = torch.randint(target.vocab.size, (1, ROWS * COLUMNS), generator=generator)
    ids = with_row_ends(codes[0], target.grid) + target.vocab.first_id
    # three ids end an image
    expected = torch.cat([ids, ids.new_zeros(3)])[None]
    with torch.no_grad():
        image = theirs.decode_image_tokens(image_tokens=expected, height=ROWS, width=COLUMNS)
    pixels = ((image.permute(0, 2, 3, 1) + 1) / 2 * 255).clamp(0, 255).to(torch.uint8)
    ours = target.to_image(codes)
    assert ours.shape == (1, 32, 40, 3) and ours.float().std() > 10
    assert (pixels.int() - ours.int()).abs().max() <= 1


def test_codes_of_pixels(session, theirs) -> None:
    generator = torch.Generator().manual_seed(0)
    colours = torch.randint(256, (2, 4, 5, 3), generator=generator).to(torch.uint8)
    pixels = colours.repeat_interleave(8, 1).repeat_interleave(8, 2)  # a colour per token
    sizes = torch.tensor([[32, 40]] * 2)
    with torch.no_grad():
        image = pixels.permute(0, 3, 1, 2).double() / 127.5 - 1
        expected = theirs.model.vqmodel.encode(image, sizes).image_tokens
    found = session.target.images.encode(pixels)
    assert torch.equal(found, torch.stack(expected).flatten(1)) and len(found.unique()) > 3
