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

    spec = TransformerSpec(
        vocab=9, hidden=4, intermediate=4, layers=1, heads=1, kv_heads=1, max_positions=32
    )
    grid, vocab, device = ImageGrid(2, 2), ImageVocab(4, 5), torch.device("cpu")

    def __init__(self, logits: list[float], dtype: torch.dtype = torch.float32):
        self.logits, self.dtype = torch.tensor(logits, dtype=dtype), dtype

    def prompt(self, text: str, guidance: int) -> PromptRows:
        return PromptRows(
            torch.zeros(guidance, 3, dtype=torch.long), torch.zeros(guidance, dtype=torch.long)
        )

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


def test_equal_images() -> None:
    target = TableTarget([0.0] * 5)
    images = [image(1, 2, 3, 4)]
    assert compare(target, GREEDY, images, images) == Comparison(1, 1, 0, ())


def test_a_near_tie_counts_in_fp32_and_never_in_fp64() -> None:
    logits = [0.0, 5.0, 5.0 - 1e-5, 0.0, 0.0]
    pair = [image(1, 1, 1, 1)], [image(1, 1, 2, 1)]
    assert compare(TableTarget(logits), GREEDY, *pair) == Comparison(1, 0, 1, ())
    assert compare(TableTarget(logits, torch.float64), GREEDY, *pair) == Comparison(1, 0, 0, ("a",))


def test_another_token_than_the_tied_one_is_wrong() -> None:
    """Two tokens tie, but a third was emitted."""
    target = TableTarget([0.0, 5.0, 5.0 - 1e-5, 0.0, 0.0])
    assert compare(target, GREEDY, [image(1, 1, 1, 1)], [image(1, 1, 3, 1)]).wrong == ("a",)


def test_only_the_first_difference_is_judged() -> None:
    target = TableTarget([0.0, 5.0, 5.0 - 1e-5, 0.0, 0.0])
    assert compare(target, GREEDY, [image(1, 1, 1, 1)], [image(1, 2, 3, 0)]).near_ties == 1
    assert compare(target, GREEDY, [image(1, 1, 1, 1)], [image(1, 3, 2, 1)]).wrong == ("a",)


def test_gap_counts_the_noise_and_the_temperature() -> None:
    """With noise, two tokens tie whose perturbed values are equal, whatever their logits."""
    noise = gumbel(JOB.seed, "target", torch.tensor([2]), 5)[0]
    distribution = SamplingDistribution(temperature=0.5, cfg=1.0)
    target = TableTarget(((3.0 - noise) / 2).tolist(), torch.float64)
    assert gap(target, distribution, image(1, 1, 4, 1), torch.tensor([1, 1, 0])) == pytest.approx(
        0, abs=1e-9
    )
    lower = TableTarget((3.0 - noise).tolist(), torch.float64)
    expected = abs(float(((3.0 - noise) * 2 + noise)[[0, 4]].diff()))
    assert gap(lower, distribution, image(1, 1, 4, 1), torch.tensor([1, 1, 0])) == pytest.approx(
        expected
    )


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
