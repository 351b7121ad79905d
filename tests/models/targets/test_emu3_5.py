"""Emu3.5 against transformers' Qwen3, which is its decoder: prompts, codes."""

import torch
from small_emu3_5 import FIRST

ROWS, COLUMNS = 4, 5
TEXT, LAYOUTS = " A red cat", ["emu3_5"]


def test_prompt_rows(session) -> None:
    """The authors' two texts, spaces as they are, then the size in tokens."""
    target = session.target
    assert (target.vocab.first_id, target.vocab.size) == (FIRST, 24)
    assert (target.grid.rows, target.grid.columns, target.grid.row_end) == (ROWS, COLUMNS, -8)
    rows, words = target.prompt(TEXT, 2), target.prompts.words
    asked, unasked = (
        f"<|extra_203|>You are a helpful assistant{task}. USER: {text} ASSISTANT: <|extra_100|>"
        "<|image start|>4*5<|image token|>"
        for task, text in ((" for t2i task", TEXT), ("", ""))
    )
    start = int(rows.starts[1])
    found = rows.ids[0].tolist(), rows.ids[1, start:].tolist()
    for ids, text in zip(found, (asked, unasked), strict=True):
        assert words.tokenizer.decode(ids, skip_special_tokens=False) == text
        assert [i for i in ids if i > 255] == [FIRST - 5, 256 + 3 + 100, FIRST - 2, FIRST - 3]
    assert rows.starts.tolist() == [0, len(" for t2i task" + TEXT)]
    assert target.length(TEXT) == rows.ids.shape[1]
    assert target.prompt(TEXT, 1).ids.tolist() == rows.ids[:1].tolist()


def test_codes_of_pixels_have_the_largest_inner_products(session) -> None:
    """Not the smallest distances."""
    images = session.target.images
    pixels = torch.randint(256, (1, 64, 80, 3), generator=torch.Generator().manual_seed(1)).byte()
    scores = images._latents(pixels, torch.float32) @ images.codebook.T
    codes = images.encode(pixels)
    assert torch.equal(codes, scores.argmax(-1))
    assert session.target.to_image(codes).shape == pixels.shape
