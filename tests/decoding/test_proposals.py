"""Proposals: candidates and their hit probabilities."""

import pytest
import torch

from configs.rules import PROPOSALS, loaded
from decoding.noise import gumbel
from decoding.proposals import Predictions
from decoding.sampling import choose
from scripts.rules.statistics import p_value
from support.constants import constant


def distributions(n: int, vocab: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, n, vocab, generator=generator, dtype=torch.float64).log_softmax(-1)


def noise(n: int, vocab: int) -> torch.Tensor:
    return gumbel(0, "target", torch.arange(n), vocab)[None]


def test_coupled_hits_as_often_as_the_theory_says() -> None:
    """At least (1 - TV) / (1 + TV) with one candidate, and more often than by rank of q."""
    log_p, log_q = distributions(4000, 10, 2), distributions(4000, 10, 2)
    log_q = (log_q + 0.5 * distributions(4000, 10, 3)).log_softmax(-1)
    choices = choose(log_p, noise(4000, 10))
    distance = (log_p.exp() - log_q.exp()).abs().sum(-1) / 2
    rates = {}
    for name, proposal in PROPOSALS.items():
        tokens, _ = loaded(proposal)().children(Predictions(log_q), noise(4000, 10), 1)
        rates[name] = (tokens[..., 0] == choices).double().mean()
    assert rates["coupled"] > ((1 - distance) / (1 + distance)).mean() - 0.03
    assert rates["coupled"] > rates["topk"] + 0.1


@pytest.mark.parametrize("name", PROPOSALS)
def test_at_temperature_0_the_noise_is_zero_and_q_decides(name) -> None:
    log_q = distributions(6, 7, 4)
    tokens, scores = loaded(PROPOSALS[name])().children(Predictions(log_q), torch.zeros(1, 6, 1), 7)
    best, codes = log_q.sort(descending=True)
    assert torch.equal(tokens, codes)
    others = best[..., :3].logsumexp(-1, keepdim=True) if name == "coupled" else 0.0
    torch.testing.assert_close(scores, best - others)


@pytest.mark.parametrize("name", PROPOSALS)
def test_estimates_are_probabilities_best_first(name) -> None:
    tokens, scores = loaded(PROPOSALS[name])().children(
        Predictions(distributions(20, 9, 5)), noise(20, 9), 50
    )
    assert tokens.shape == (1, 20, 9), "no more candidates than tokens"
    assert (scores <= 0).all() and (name == "sampled" or (scores.diff(dim=-1) <= 0).all())
    all_of_it = scores[..., :3] if name == "coupled" else scores
    torch.testing.assert_close(all_of_it.exp().sum(-1), torch.ones(1, 20, dtype=torch.float64))


def test_codes_that_q_excludes_are_no_children() -> None:
    log_q = torch.full((1, 1, 9), -torch.inf)
    log_q[..., 4] = 0.0
    for name, proposal in PROPOSALS.items():
        tokens, scores = loaded(proposal)().children(Predictions(log_q), noise(1, 9).float(), 3)
        assert (name, tokens[0, 0, 0].item()) == (name, 4)
        assert scores[0, 0].tolist() == [0.0, -torch.inf, -torch.inf]


def test_sampled_children_are_drawn_without_replacement() -> None:
    """The first is x with probability q(x), the second y with q(y) / (1 - q(x)); what q excludes is
    no child.
    """
    log_q = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64).log().expand(1, 20_000, 4)
    tokens, scores = loaded(PROPOSALS["sampled"])().children(
        Predictions(log_q), noise(20_000, 4), 4
    )
    assert torch.equal(scores, log_q.gather(2, tokens)) and (tokens[..., 3] == 3).all()
    q = log_q[0, 0, :3].exp()
    pairs = q[:, None] * q / (1 - q[:, None]) * (1 - torch.eye(3))
    counts = torch.bincount(tokens[0, :, 0] * 3 + tokens[0, :, 1], minlength=9).double()
    assert p_value(counts, pairs.flatten()) > 1e-4 and counts.sum() == 20_000


@pytest.mark.parametrize("name", PROPOSALS)
def test_sharpness_changes_the_estimates_of_coupled_drafts_only(name) -> None:
    log_q, own = distributions(3, 9, 2), noise(3, 9)
    plain = loaded(PROPOSALS[name])().children(Predictions(log_q), own, 4)
    sharper = loaded(PROPOSALS[name])().children(
        Predictions(log_q, torch.full((1, 3), 3.0)), own, 4
    )
    assert torch.equal(sharper[0], plain[0])
    values = 3 * plain[1]
    others = values[..., :3].logsumexp(-1, keepdim=True)
    expected = values - others if name == "coupled" else plain[1]
    torch.testing.assert_close(sharper[1], expected)


def test_equal_constants_of_two_types_are_two_tensors() -> None:
    """Slots once came as fractions after the odds (1.0,) of another method's window."""
    for values, dtype in (((1.0,), torch.float32), ((1,), torch.int64), ((1.0,), torch.float32)):
        assert constant(values, "cpu").dtype == dtype
