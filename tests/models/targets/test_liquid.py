"""Liquid against transformers' Gemma: prompts, logits and whole images."""

from pathlib import Path

import pytest
import torch
from families import assert_logits_are_theirs, decoded
from small import small_settings
from small_liquid import SIDE, write_liquid
from transformers import GemmaForCausalLM

from configs.schema import MethodSettings, SamplingSettings
from runs.session import Session, open_session

PLAIN = MethodSettings("ar")
GREEDY = SamplingSettings(cfg=3.0, temperature=0.0)
TEXT, CODES = " A red cat.\n", [3, 20, 7, 0, 11, 23, 5]
REQUEST = " Generate an image based on this description."


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    return write_liquid(tmp_path_factory.mktemp("liquid") / "Liquid_V1_7B")


@pytest.fixture(scope="module")
def session(original) -> Session:
    return open_session(small_settings(original, model="liquid"))


@pytest.fixture(scope="module")
def theirs(original) -> GemmaForCausalLM:
    """The oracle, from the same files."""
    return GemmaForCausalLM.from_pretrained(original, dtype=torch.float64).eval()


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


@pytest.mark.parametrize(("dtype", "bound"), [("fp64", 1e-5), ("fp32", 1e-4)])
def test_logits_of_both_guidance_rows(dtype, bound, original, theirs) -> None:
    target = open_session(small_settings(original, dtype, model="liquid")).target
    assert_logits_are_theirs(theirs, target, CODES, TEXT, bound)


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
    found = decoded(session, PLAIN, GREEDY)[2]
    expected = ids[0, rows.ids.shape[1] :] - first
    assert found.tolist() == expected.tolist() and len(found.unique()) > 2
    assert target.to_image(found[None]).shape == (1, 8, 8, 3)


def test_bf16_keeps_gemmas_embedding(original) -> None:
    """The product with the scale is rounded as Gemma's."""
    target = open_session(small_settings(original, "bf16", model="liquid")).target
    model = GemmaForCausalLM.from_pretrained(original, dtype=torch.bfloat16)
    ids = torch.arange(target.spec.vocab)
    with torch.no_grad():
        assert torch.equal(target.embedding(), model.model.embed_tokens(ids))
    first, size = target.vocab.first_id, target.vocab.size
    expected = model.lm_head.weight[first : first + size]
    assert torch.equal(target.transformer.head.weight, expected)
