"""Liquid against transformers' Gemma: prompts, logits and whole images."""

import torch
from families import greedy
from small_liquid import SIDE
from transformers import GemmaForCausalLM

TEXT, LAYOUTS = " A red cat.\n", ["liquid"]
REQUEST = " Generate an image based on this description."


def test_prompt_rows(session) -> None:
    """`<bos>text request<boi>` and `<bos><unconditional><boi>`, padded on the left."""
    target = session.target
    text = target.prompts.words.tokenizer.encode(TEXT + REQUEST, add_special_tokens=False).ids
    assert len(text) == len(TEXT + REQUEST) and max(text) < 256
    rows = target.prompt(TEXT, 2)
    padding = len(text) - 1
    assert rows.ids.tolist() == [[258, *text, 260], [256] * padding + [258, 262, 260]]
    assert rows.starts.tolist() == [0, padding] and target.length(TEXT) == len(text) + 2
    alone = target.prompt(TEXT, 1)
    assert alone.ids.tolist() == rows.ids[:1].tolist() and alone.starts.tolist() == [0]
    assert (target.vocab.first_id, target.vocab.size) == (263, 24)


def test_a_greedy_image_is_that_of_the_authors_loop(session, theirs) -> None:
    """Both rows in one batch with a mask; guidance on logits; argmax among the image's ids."""
    target = session.target
    rows, first = target.prompt("A red cat", 2), target.vocab.first_id
    ids, mask = rows.ids, torch.arange(rows.ids.shape[1]) >= rows.starts[:, None]
    for _ in range(SIDE**2):
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            out = theirs(input_ids=ids, attention_mask=mask.long(), position_ids=positions).logits
        text, empty = out[:, -1]
        code = (empty + 3.0 * (text - empty))[first:].argmax()
        ids = torch.cat([ids, (code + first).expand(2, 1)], 1)
        mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.bool)], 1)
    found = greedy(session)
    assert torch.equal(found, ids[0, rows.ids.shape[1] :] - first)
    assert target.to_image(found[None]).shape == (1, 8, 8, 3)


def test_bf16_keeps_gemmas_embedding(family, original) -> None:
    """The product with the scale is rounded as Gemma's."""
    target = family.load(original, dtype="bf16").target
    model = GemmaForCausalLM.from_pretrained(original, dtype=torch.bfloat16)
    ids = torch.arange(target.spec.vocab)
    with torch.no_grad():
        assert torch.equal(target.embedding(), model.model.embed_tokens(ids))
    first, size = target.vocab.first_id, target.vocab.size
    expected = model.lm_head.weight[first : first + size]
    assert torch.equal(target.transformer.head.weight, expected)
