"""Logits of both guidance rows, and what is decoded by them, against transformers' classes."""

import pytest
import torch
from browser import only_in_all, thinned
from fakes import with_row_ends
from families import PROMPTS, SMALL, cached_logits, greedy
from torch import Tensor
from transformers import ChameleonForConditionalGeneration, JanusForConditionalGeneration

from models.target import TargetModel

LAYOUTS = ("emu3", "emu3 of today", "emu3_5", "janus_pro", "janus_pro of the authors", "liquid")
LAYOUTS += ("lumina_mgpt", "lumina_mgpt2")
TEXT, CODES = " A red cat, é.\n", [3, 20, 7, 0, 11, 23, 5, 1, 9, 9]


def their_logits(model: torch.nn.Module, target: TargetModel, ids: Tensor) -> Tensor:
    """Return logits (n, codes) of the image codes after every id (1, n) of a row."""
    first = target.vocab.first_id
    if isinstance(model, ChameleonForConditionalGeneration):  # its logits leave image codes out
        features = model.model(input_ids=ids).last_hidden_state
        return model.lm_head(features)[0, :, first : first + target.vocab.size]
    if not isinstance(model, JanusForConditionalGeneration):
        return model(input_ids=ids).logits[0, :, first : first + target.vocab.size]
    words = model.get_input_embeddings()(ids.clamp(max=first - 1))
    image = model.prepare_embeddings_for_image_generation((ids - first).clamp(min=0))
    mixed = torch.where((ids < first)[..., None], words, image)
    features = model.model.language_model(inputs_embeds=mixed).last_hidden_state
    return model.model.generation_head(features)[0]


@pytest.mark.parametrize(("dtype", "bound"), thinned([("fp64", 1e-5), ("fp32", 1e-4)]))
@torch.inference_mode()
def test_they_are_transformers(dtype, bound, family, original, session, theirs) -> None:
    """Ours read code by code from a cache, theirs row by row without padding."""
    wide = dtype == "fp64"
    target = (session if wide else SMALL[family].load(original, dtype=dtype)).target
    codes = with_row_ends(torch.tensor(CODES), target.grid).tolist()
    rows, image = target.prompt(TEXT, 2), torch.tensor(codes) + target.vocab.first_id
    expected = torch.stack([
        their_logits(theirs, target, torch.cat([ids[start:], image])[None])[-1 - len(codes) :]
        for ids, start in zip(rows.ids, rows.starts.tolist(), strict=True)
    ])  # fmt: skip
    assert expected.std() > 0.3
    found = cached_logits(target, TEXT, codes)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=bound)


# Those of Emu3 and Janus-Pro are compared with transformers' own loops in their files.
@pytest.mark.parametrize(
    "family",
    ["emu3_5", "liquid", *(pytest.param(f"lumina_mgpt{n}", marks=only_in_all) for n in ("", "2"))],
    indirect=True,
    scope="module",
)
@torch.inference_mode()
def test_a_greedy_image_is_that_of_a_loop_over_theirs(session, theirs) -> None:
    """The likeliest code by guided logits of two unpadded rows; ends of rows are forced.

    Emu3.5's authors guide log-probabilities of all ids, which differ from logits by one number per
    row. Lumina-mGPT 2.0's loop raises a guidance scale of 3 to 4, which is the session's.
    """
    target, codes, cfg = session.target, [], session.settings.sampling.cfg
    prompt, first = target.prompt(PROMPTS[2], 2), target.vocab.first_id
    while len(codes) < target.grid.tokens:
        image = with_row_ends(torch.tensor(codes, dtype=torch.long), target.grid) + first
        text, empty = (
            their_logits(theirs, target, torch.cat([ids[start:], image])[None])[-1]
            for ids, start in zip(prompt.ids, prompt.starts.tolist(), strict=True)
        )
        codes.append(int((empty + cfg * (text - empty)).argmax()))
    assert greedy(session).tolist() == codes
