"""The one-file explanation: the engine's tokens, the tokenizer's ids, the codec's pixels."""

import sys

import numpy as np
import pytest
import torch
from browser import only_in_all

from adt_tree import Pipeline
from configs.targets import ROOT

sys.path.append(str(ROOT / "examples"))
import minimal

PROMPT = "a large red circle on a plain blue background"


@pytest.fixture(scope="module")
def model() -> minimal.Transformer:
    return minimal.Transformer(minimal.FOLDER)


@pytest.fixture(scope="module")
def engine() -> Pipeline:
    return Pipeline.from_pretrained("tiny", method="ar", dtype="fp64")


@pytest.mark.parametrize(
    "width", [pytest.param(1, id="jacobi", marks=only_in_all), pytest.param(3, id="tree")]
)
@torch.inference_mode()
def test_all_three_decoders_generate_the_engines_tokens(model, engine, width) -> None:
    target = minimal.Target(model, PROMPT, seed=3)
    found = minimal.generate(target, 16, width)
    assert found == engine(PROMPT, seed=3).tokens[0].tolist()
    assert target.passes < 128  # half of plain decoding's


def test_a_prompt_is_the_tokenizers(engine) -> None:
    for prompt in (PROMPT, "Two odd words: x9, won't  fit!", "a"):
        assert minimal.prompt_ids(prompt) == engine.weights._session.target.prompts.ids(prompt)


def test_pixels_are_the_codecs(engine) -> None:
    output = engine(PROMPT, seed=3)
    ours = minimal.pixels(output.tokens[0].tolist()).int()
    theirs = torch.from_numpy(np.array(output.images[0])).int()
    assert (ours - theirs).abs().max() <= 1  # they round in other orders
