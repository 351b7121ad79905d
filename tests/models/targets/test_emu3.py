"""Emu3 against transformers' class: a whole image by its guidance, pixels and codes."""

import torch
from browser import thinned
from fakes import with_row_ends
from families import greedy
from torch import Tensor

ROWS, COLUMNS = 4, 5
TEXT = "A red cat"
LAYOUTS = thinned(("emu3", "emu3 of today"))


def test_a_greedy_image_is_that_of_generate(session, theirs) -> None:
    """Rows and the image's end are forced there by the processor's own constraint."""
    target = session.target
    rows, words = target.prompt(TEXT, 2), target.prompts.words
    first, begin = target.vocab.first_id, rows.ids.shape[1] - int(rows.starts[0])
    codes = list(range(first, first + target.vocab.size))

    def allowed(batch: int, ids: Tensor) -> list[int]:
        number = len(ids) - begin + 1
        last = (COLUMNS + 1) * ROWS
        ends = {last + 1: "<|extra_201|>", last + 2: "<|image end|>", last + 3: "<|extra_204|>"}
        if number in ends:
            return [words[ends[number]]]
        return [words["<|extra_200|>"]] if number % (COLUMNS + 1) == 0 else codes

    expected = theirs.generate(
        rows.ids[:1, int(rows.starts[0]) :],
        attention_mask=torch.ones(1, begin, dtype=torch.long),
        negative_prompt_ids=rows.ids[1:],
        negative_prompt_attention_mask=torch.ones_like(rows.ids[1:]),
        guidance_scale=3.0,
        prefix_allowed_tokens_fn=allowed,
        do_sample=False,
        max_new_tokens=(COLUMNS + 1) * ROWS + 3,
    )[:, begin:]
    found = greedy(session)
    grid = expected[0, :-3].view(ROWS, COLUMNS + 1)
    assert (grid[:, -1] == words["<|extra_200|>"]).all()
    assert found.tolist() == (grid[:, :-1] - first).flatten().tolist()


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
