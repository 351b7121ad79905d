"""Proposals: candidates and their hit probabilities, which calibration changes and no token."""

import json

import pytest
import torch
from fakes import codes, p_value

from configs.fields import SettingsError
from configs.methods import MethodSettings
from decoding.device import constant
from decoding.drafter import Draft
from decoding.images import Job
from decoding.noise import gumbel
from decoding.proposals import PROPOSALS, Calibration
from decoding.sampling import SamplingDistribution, choose
from drafters.calibrations import (
    CANDIDATES,
    FILE,
    UNCALIBRATED,
    Calibrations,
    best_few,
    distribution_key,
    fit_factor,
)
from drafters.loading import LoadedDrafter
from runs.methods import build_engine, calibration_of

PLAIN = SamplingDistribution()


def distributions(n: int, vocab: int, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, n, vocab, generator=generator, dtype=torch.float64).log_softmax(-1)


def noise(n: int, vocab: int) -> torch.Tensor:
    return gumbel(0, "target", torch.arange(n), vocab)[None]


def test_topk_ranks_by_q_and_ignores_the_noise() -> None:
    log_q = distributions(5, 8, 0)
    tokens, scores = PROPOSALS["topk"]().children(Draft(log_q), noise(5, 8), 3, 1)
    expected = log_q.sort(descending=True)
    assert torch.equal(tokens, expected.indices[..., :3])
    assert torch.equal(scores, expected.values[..., :3])


def test_coupled_hits_as_often_as_the_theory_says() -> None:
    """At least (1 - TV) / (1 + TV) with one candidate, and more often than by rank of q."""
    log_p, log_q = distributions(4000, 10, 2), distributions(4000, 10, 2)
    log_q = (log_q + 0.5 * distributions(4000, 10, 3)).log_softmax(-1)
    choices = choose(log_p, noise(4000, 10))
    distance = (log_p.exp() - log_q.exp()).abs().sum(-1) / 2
    rates = {}
    for name, proposal in PROPOSALS.items():
        tokens, _ = proposal().children(Draft(log_q), noise(4000, 10), 1, 1)
        rates[name] = (tokens[..., 0] == choices).double().mean()
    assert rates["coupled"] > ((1 - distance) / (1 + distance)).mean() - 0.03
    assert rates["coupled"] > rates["topk"] + 0.1


@pytest.mark.parametrize("name", PROPOSALS)
def test_at_temperature_0_the_noise_is_zero_and_q_decides(name) -> None:
    log_q = distributions(6, 7, 4)
    tokens, scores = PROPOSALS[name]().children(Draft(log_q), torch.zeros(1, 6, 1), 7, 1)
    expected = log_q.sort(descending=True)
    assert torch.equal(tokens, expected.indices)
    torch.testing.assert_close(scores, expected.values)


@pytest.mark.parametrize("name", PROPOSALS)
def test_estimates_are_probabilities_best_first(name) -> None:
    tokens, scores = PROPOSALS[name]().children(Draft(distributions(20, 9, 5)), noise(20, 9), 50, 1)
    assert tokens.shape == (1, 20, 9), "no more candidates than tokens"
    assert (scores <= 0).all() and (name == "sampled" or (scores.diff(dim=-1) <= 0).all())
    torch.testing.assert_close(scores.exp().sum(-1), torch.ones(1, 20, dtype=torch.float64))


def test_coupled_estimates_heed_the_candidates_alone() -> None:
    """The chance to be the best of them after one more disturbance, whatever stands below them."""
    log_q, own = distributions(20, 9, 5), noise(20, 9)
    tokens, scores = PROPOSALS["coupled"](Calibration((1.3,))).children(Draft(log_q), own, 3, 1)
    values = log_q + own
    assert torch.equal(tokens, values.topk(3).indices)
    torch.testing.assert_close(scores, (1.3 * values.topk(3).values).log_softmax(-1))
    more = torch.full((1, 20, 100), -9.0, dtype=torch.float64)
    wide = torch.cat([log_q, more], 2), torch.cat([own, torch.zeros_like(more)], 2)
    same = PROPOSALS["coupled"](Calibration((1.3,))).children(Draft(wide[0]), wide[1], 3, 1)
    assert torch.equal(same[0], tokens) and torch.equal(same[1], scores)


def test_factors_of_coupled_drafts_are_fitted_to_choices_among_the_candidates() -> None:
    values, choices = distributions(400, 12, 6)[0], torch.arange(400) % 12
    best, which = best_few(values, choices)
    ranks = values.argsort(-1, descending=True).argsort(-1).gather(1, choices[:, None])[:, 0]
    few = ranks < CANDIDATES
    assert torch.equal(which, ranks[few])
    assert torch.equal(best, values[few].topk(CANDIDATES).values)


def test_sampled_children_are_drawn_without_replacement() -> None:
    """The first is x with probability q(x), the second y with q(y) / (1 - q(x)); what q excludes is
    no child.
    """
    log_q = torch.tensor([0.5, 0.3, 0.2, 0.0], dtype=torch.float64).log().expand(1, 20_000, 4)
    tokens, scores = PROPOSALS["sampled"]().children(Draft(log_q), noise(20_000, 4), 4, 1)
    assert torch.equal(scores, log_q.gather(2, tokens)) and (tokens[..., 3] == 3).all()
    q = log_q[0, 0, :3].exp()
    pairs = q[:, None] * q / (1 - q[:, None]) * (1 - torch.eye(3))
    counts = torch.bincount(tokens[0, :, 0] * 3 + tokens[0, :, 1], minlength=9).double()
    assert p_value(counts, pairs.flatten()) > 1e-4 and counts.sum() == 20_000


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_the_factor_of_the_choices_is_found(factor) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(20_000, 12, generator=generator, dtype=torch.float64)
    values[:, 11] = -torch.inf
    choices = torch.multinomial((factor * values).softmax(-1), 1, generator=generator)[:, 0]
    assert fit_factor(values, choices) == pytest.approx(factor, rel=0.05)


@pytest.mark.parametrize("name", PROPOSALS)
def test_trust_multiplies_the_factor_of_coupled_drafts_only(name) -> None:
    generator = torch.Generator().manual_seed(2)
    log_q, noise = (torch.randn(2, 3, 9, generator=generator).log_softmax(-1) for _ in range(2))
    proposal, trust = PROPOSALS[name](Calibration((0.5,))), torch.tensor([[2.0] * 3, [6.0] * 3])
    tokens, scores = proposal.children(Draft(log_q, trust), noise, 4, 1)
    for image, factor in enumerate((1.0, 3.0) if name == "coupled" else (0.5, 0.5)):
        row = slice(image, image + 1)
        scaled = PROPOSALS[name](Calibration((factor,)))
        expected = scaled.children(Draft(log_q[row]), noise[row], 4, 1)
        assert torch.equal(tokens[row], expected[0])
        torch.testing.assert_close(scores[row], expected[1])


def test_settings_choose_the_calibration() -> None:
    known = Calibrations({distribution_key(PLAIN): {"coupled": [0.5], "topk": [0.25]}})
    for options, factors in (
        ({}, (0.5,)),
        ({"calibration": "none"}, (1.0,)),
        ({"calibration": "1.5/2"}, (1.5, 2.0)),
        ({"proposal": "topk"}, (1.0,)),  # as published
        ({"proposal": "topk", "calibration": "drafter"}, (0.25,)),
        ({"method": "static"}, (1.0,)),
    ):
        assert calibration_of(MethodSettings(**options), PLAIN, known).factors == factors
    with pytest.raises(SettingsError, match="--calibration"):
        MethodSettings(method="static", calibration="none")


@pytest.mark.parametrize("factors", [[0.05, 3.0], [100.0], [0.01]])
@pytest.mark.parametrize("method", ["eagle2", "adt"])
def test_no_calibration_changes_a_token(session, method, factors) -> None:
    known = Calibrations({distribution_key(PLAIN): {"coupled": factors, "topk": factors}})
    jobs = [Job("0", "a red dot", 3), Job("1", "blue squares", 4)]

    def decode(settings: MethodSettings, calibrations: Calibrations) -> dict[str, list[int]]:
        drafter = LoadedDrafter(session.drafter.network, calibrations)
        return codes(build_engine(session.target, drafter, PLAIN, settings, 2), jobs)

    plain = decode(MethodSettings("ar"), UNCALIBRATED)
    for proposal in PROPOSALS:
        settings = MethodSettings(method, proposal=proposal, calibration="drafter")
        assert decode(settings, known) == plain


def test_a_file_serves_its_distributions_and_proposals_only(tmp_path) -> None:
    (tmp_path / FILE).write_text(json.dumps({distribution_key(PLAIN): {"coupled": [0.8, 0.7]}}))
    read = Calibrations.read(tmp_path)
    assert read.of(PLAIN, "coupled") == Calibration((0.8, 0.7))
    assert read.of(PLAIN, "topk") == Calibration()
    assert read.of(SamplingDistribution(cfg=2.0), "coupled") == Calibration()
    assert Calibrations.read(tmp_path / "none") == Calibrations()


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "no JSON"),
        ("[" * 100_000, "no JSON"),
        ("[1]", r"\[1\]"),
        ('{"a distribution": 3}', "a distribution: expected .*, got 3"),
        ('{"a distribution": {"topk": [0]}}', r"a distribution, topk: expected .*, got \[0\]"),
        ('{"a distribution": {"topk": ["a"]}}', r"topk: expected .*, got \['a'\]"),
        ('{"a distribution": {"topk": [true]}}', r"topk: expected .*, got \[True\]"),
        ('{"a distribution": {"topk": 1}}', "a distribution, topk: expected .*, got 1"),
        ('{"a distribution": {"topk": [NaN]}}', "no JSON"),
        (None, "cannot be read"),
    ],
    ids=range(10),
)
def test_a_damaged_file_or_a_folder_in_its_place_is_named(tmp_path, text, fault) -> None:
    (tmp_path / FILE).mkdir() if text is None else (tmp_path / FILE).write_text(text)
    with pytest.raises(SettingsError, match=f"{FILE}: .*{fault}"):
        Calibrations.read(tmp_path)


def test_at_temperature_0_the_cuts_of_the_distribution_do_not_count() -> None:
    cut = SamplingDistribution(temperature=0, top_k=5, top_p=0.5)
    assert distribution_key(cut) == distribution_key(SamplingDistribution(temperature=0))
    assert distribution_key(SamplingDistribution(top_k=5)) != distribution_key(PLAIN)


def test_equal_constants_of_two_types_are_two_tensors() -> None:
    """Slots once came as fractions after the odds (1.0,) of another method's window."""
    for values, dtype in (((1.0,), torch.float32), ((1,), torch.int64), ((1.0,), torch.float32)):
        assert constant(values, "cpu").dtype == dtype
