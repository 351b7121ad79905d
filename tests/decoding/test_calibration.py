"""Calibration: the factor that was put in is found again, and it moves scores, never a token."""

import pytest
import torch
from fakes import codes

from configs.fields import SettingsError
from configs.methods import MethodSettings
from decoding.drafter import Draft
from decoding.images import Job
from decoding.proposals import PROPOSALS
from decoding.sampling import SamplingDistribution
from drafters.calibrations import (
    LEAST,
    MOST,
    UNCALIBRATED,
    Calibration,
    Calibrations,
    distribution_key,
    fit_factor,
)
from drafters.loading import LoadedDrafter
from runs.methods import build_engine, calibration_of

PLAIN = SamplingDistribution()


@pytest.mark.parametrize("factor", [0.3, 1.0, 4.0])
def test_the_factor_of_the_choices_is_found(factor) -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(20_000, 12, generator=generator, dtype=torch.float64)
    values[:, 11] = -torch.inf
    choices = torch.multinomial((factor * values).softmax(-1), 1, generator=generator)[:, 0]
    assert fit_factor(values, choices) == pytest.approx(factor, rel=0.05)


def test_choices_that_contradict_the_values_give_the_least_factor() -> None:
    values = torch.tensor([[2.0, 0.0]]).repeat(50, 1)
    choices = torch.cat([torch.zeros(10, dtype=torch.long), torch.ones(40, dtype=torch.long)])
    assert fit_factor(values, choices) == LEAST
    assert 5 < fit_factor(values, torch.zeros(50, dtype=torch.long)) <= MOST


def test_levels_beyond_the_last_take_its_factor() -> None:
    calibration = Calibration((0.9, 0.5))
    assert [calibration.at(level) for level in (1, 2, 3, 9)] == [0.9, 0.5, 0.5, 0.5]


@pytest.mark.parametrize("name", PROPOSALS)
def test_calibration_changes_scores_and_neither_tokens_nor_their_order(name) -> None:
    generator = torch.Generator().manual_seed(1)
    log_q, noise = (torch.randn(1, 5, 9, generator=generator).log_softmax(-1) for _ in range(2))
    tokens, scores = PROPOSALS[name]().children(Draft(log_q), noise, 9, 2)
    calibrated, lower = PROPOSALS[name](Calibration((1.0, 0.5))).children(Draft(log_q), noise, 9, 2)
    assert torch.equal(tokens, calibrated) and torch.equal(lower.argsort(-1), scores.argsort(-1))
    torch.testing.assert_close(lower, (0.5 * scores).log_softmax(-1))


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
