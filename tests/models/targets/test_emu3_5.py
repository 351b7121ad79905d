"""Emu3.5 against transformers' Qwen3, which is its decoder: prompts, images, codes."""

import torch
from families import greedy
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


def test_a_greedy_image_is_that_of_the_authors_loop(session, theirs) -> None:
    """Row ends are forced, guidance is on log-probabilities of all ids, then the codes' top k."""
    target = session.target
    rows, codes = target.prompt("A red cat", 2), []
    starts = rows.starts.tolist()
    padded = [ids[start:].tolist() for ids, start in zip(rows.ids, starts, strict=True)]
    for slot in range(1, ROWS * (COLUMNS + 1)):
        if slot % (COLUMNS + 1) == 0:
            token = FIRST - 8
        else:
            with torch.no_grad():
                logits = [theirs(input_ids=torch.tensor([ids])).logits[0, -1] for ids in padded]
            text, empty = (row.log_softmax(-1) for row in logits)
            scores = (empty + 3.0 * (text - empty))[FIRST:]
            token = int(scores.topk(20).indices[0]) + FIRST
            codes.append(token - FIRST)
        padded = [[*ids, token] for ids in padded]
    found = greedy(session, top_k=20)
    assert found.tolist() == codes
    assert target.to_image(found[None]).shape == (1, 64, 80, 3)


def test_codes_of_pixels_have_the_largest_inner_products(session) -> None:
    """Not the smallest distances."""
    images = session.target.images
    pixels = torch.randint(256, (1, 64, 80, 3), generator=torch.Generator().manual_seed(1)).byte()
    scores = images._latents(pixels, torch.float32) @ images.codebook.T
    assert torch.equal(images.encode(pixels), scores.argmax(-1))
