"""Images are compared with plain decoding; near-ties are told apart from errors."""

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from decoding.images import FinishedImage, ImageCost, Job
from decoding.noise import gumbel
from decoding.sampling import SamplingDistribution
from models.base import Context, ImageGrid, ImageVocab, Layers, PromptRows, TransformerSpec
from runs.exactness import Comparison, compare, gap


class TableTarget:
    """A target whose logits at every position are a given row."""

    spec = TransformerSpec(9, 4, 4, layers=1, heads=1, kv_heads=1, max_positions=32)
    grid, vocab, device = ImageGrid(2, 2), ImageVocab(4, 5), torch.device("cpu")

    def __init__(self, logits: list[float], dtype: torch.dtype = torch.float32):
        self.logits, self.dtype = torch.tensor(logits, dtype=dtype), dtype

    def prompt(self, text: str, guidance: int) -> PromptRows:
        return PromptRows(torch.zeros(guidance, 3).long(), torch.zeros(guidance).long())

    def read(self, prompt: PromptRows, context: Context, layers: Layers = ()) -> Tensor:
        return self.features(prompt.ids, context)

    def embedding(self) -> Tensor:
        return torch.zeros(9, 4, dtype=self.dtype)

    def features(self, ids: Tensor, context: Context, layers: Layers = ()) -> Tensor:
        return torch.zeros(*ids.shape, 4)

    def score(self, features: Tensor) -> Tensor:
        return self.logits.expand(*features.shape[:2], -1)


GREEDY = SamplingDistribution(temperature=0.0, cfg=1.0)
JOB = Job("a", "a cat", 3)


def image(*codes: int) -> FinishedImage:
    nothing = {part.name: 0.0 for part in fields(ImageCost)}
    return FinishedImage(JOB, torch.tensor(codes), 4, 1.0, **nothing)


@pytest.mark.parametrize(
    ("codes", "dtype", "found"),
    [
        ((1, 1, 1, 1), torch.float32, Comparison(1, 1, 0, ())),
        ((1, 1, 2, 1), torch.float32, Comparison(1, 0, 1, ())),
        ((1, 1, 2, 1), torch.float64, Comparison(1, 0, 0, ("a",))),
        ((1, 1, 3, 1), torch.float32, Comparison(1, 0, 0, ("a",))),
        ((1, 2, 3, 0), torch.float32, Comparison(1, 0, 1, ())),
        ((1, 3, 2, 1), torch.float32, Comparison(1, 0, 0, ("a",))),
    ],
    ids=["equal", "near-tie", "never in fp64", "a third token", "tie first", "tie second"],
)
def test_a_near_tie_of_the_first_difference_is_no_error(codes, dtype, found) -> None:
    """The tokens 1 and 2 tie."""
    target = TableTarget([0.0, 5.0, 5.0 - 1e-5, 0.0, 0.0], dtype)
    assert compare(target, GREEDY, [image(1, 1, 1, 1)], [image(*codes)]) == found


def test_gap_counts_the_noise_and_the_temperature() -> None:
    """With noise, two tokens tie whose perturbed values are equal, whatever their logits."""
    noise = gumbel(JOB.seed, "target", torch.tensor([2]), 5)[0]
    distribution = SamplingDistribution(temperature=0.5, cfg=1.0)
    for scale in (0.5, 1.0):
        logits = (3.0 - noise) * scale
        expected = abs(float((logits * 2 + noise)[[0, 4]].diff()))
        target, pair = TableTarget(logits.tolist(), torch.float64), image(1, 1, 4, 1)
        found = gap(target, distribution, pair, torch.tensor([1, 1, 0]))
        assert found == pytest.approx(expected, abs=1e-9) and (expected < 1e-6) == (scale == 0.5)


@pytest.mark.parametrize(
    ("distribution", "logits"),
    [
        (SamplingDistribution(top_k=2, cfg=1.0), [9.0, 4.0, 4.0 - 1e-5, -9.0, -9.0]),
        (
            SamplingDistribution(top_p=0.8, cfg=1.0),
            torch.tensor([0.5, 0.3, 0.1, 0.06, 0.04]).log().tolist(),
        ),
    ],
    ids=["top-k", "top-p"],
)
def test_tokens_at_a_boundary_of_the_distribution(distribution, logits) -> None:
    """Token 2 is kept or cut by a hair, which explains that it replaces another one."""
    target = TableTarget(logits, torch.float64)
    assert gap(target, distribution, image(0, 0, 0, 0), torch.tensor([2])) < 1e-4
    assert gap(target, distribution, image(3, 0, 0, 0), torch.tensor([0])) > 1e-3
