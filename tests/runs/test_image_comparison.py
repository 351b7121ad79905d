"""Images are compared with plain decoding; near-ties are told apart from errors."""

import copy
from dataclasses import fields

import pytest
import torch

from decoding.images import FinishedImage, ImageCost, Job
from decoding.noise import gumbel
from decoding.sampling import SamplingDistribution
from models.target import TargetModel
from runs.exactness import Comparison, compare, gap


def table_target(session, logits: list[float], dtype=torch.float64) -> TargetModel:
    """The small target, but with the same five logits at every position."""
    target, row = copy.copy(session.target), torch.tensor(logits, dtype=dtype)
    target.dtype, target.score = dtype, lambda rows: row.expand(*rows.shape[:2], -1)
    return target


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
def test_a_near_tie_of_the_first_difference_is_no_error(codes, dtype, found, session) -> None:
    """The tokens 1 and 2 tie."""
    target = table_target(session, [0.0, 5.0, 5.0 - 1e-5, 0.0, 0.0], dtype)
    assert compare(target, GREEDY, [image(1, 1, 1, 1)], [image(*codes)]) == found


def test_gap_counts_the_noise_and_the_temperature(session) -> None:
    """With noise, two tokens tie whose perturbed values are equal, whatever their logits."""
    noise = gumbel(JOB.seed, "target", torch.tensor([2]), 5)[0]
    distribution = SamplingDistribution(temperature=0.5, cfg=1.0)
    for scale in (0.5, 1.0):
        logits = (3.0 - noise) * scale
        expected = abs(float((logits * 2 + noise)[[0, 4]].diff()))
        target, first = table_target(session, logits.tolist()), torch.tensor([1, 1, 0])
        found = gap(target, distribution, image(1, 1, 4, 1), first)
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
def test_tokens_at_a_boundary_of_the_distribution(distribution, logits, session) -> None:
    """Token 2 is kept or cut by a hair, which explains that it replaces another one."""
    target = table_target(session, logits)
    assert gap(target, distribution, image(0, 0, 0, 0), torch.tensor([2])) < 1e-4
    assert gap(target, distribution, image(3, 0, 0, 0), torch.tensor([0])) > 1e-3
