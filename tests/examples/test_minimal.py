"""The one-file explanation: the engine's tokens, the tokenizer's ids, the codec's pixels."""

import sys

import numpy as np
import pytest
import torch
from browser import ALL, only_in_all

from adt_tree import Pipeline
from adt_tree.stream import StreamStep
from configs.targets import ROOT

sys.path.append(str(ROOT / "examples"))
import minimal

PROMPT = "a large red circle on a plain blue background"


@pytest.fixture(scope="module")
def model() -> minimal.Transformer:
    return minimal.Transformer()


@pytest.fixture(scope="module")
def engine() -> Pipeline:
    return Pipeline.from_pretrained("tiny", method="ar", dtype="fp64")


@pytest.fixture(scope="module")
def begun(engine) -> StreamStep:
    """The engine's image, or, but in `make test-all`, its first fifth."""
    steps = engine.stream(PROMPT, seed=3)
    return next(step for step in steps if step.decided >= (256 if ALL else 50))


@pytest.mark.parametrize(
    "width", [pytest.param(1, id="jacobi", marks=only_in_all), pytest.param(3, id="tree")]
)
@torch.inference_mode()
def test_all_three_decoders_generate_the_engines_tokens(model, begun, width, monkeypatch) -> None:
    monkeypatch.setattr(minimal, "TOKENS", begun.decided)
    target = minimal.Target(model, PROMPT, seed=3)
    assert minimal.generate(target, 16, width) == begun.tokens.tolist()
    assert target.passes < begun.decided / 2  # half of plain decoding's


def test_a_prompt_is_the_tokenizers(engine) -> None:
    for prompt in (PROMPT, "Two odd words: x9, won't  fit!", "a"):
        assert minimal.prompt_ids(prompt) == engine.weights._session.target.prompts.ids(prompt)


def test_pixels_are_the_codecs(engine) -> None:
    tokens = torch.arange(0, 1024, 4)
    theirs = torch.from_numpy(np.array(engine.weights.paint(tokens))).int()
    ours = minimal.pixels(tokens.tolist()).int()
    assert (ours - theirs).abs().max() <= 1  # they round in other orders
