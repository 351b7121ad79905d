"""Liquid against transformers' Gemma: prompts and its embedding."""

import torch
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
