"""The metrics' formulas against other computations on small made data; intervals."""

from math import comb

import numpy as np
import pytest
import torch
from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric
from torch_fidelity.metric_prc import prc_features_to_metric

from eval.metrics.fid import Gaussian, frechet_distance
from eval.metrics.intervals import (
    OVER_IMAGES,
    Estimate,
    jackknife,
    mean_interval,
    paired_difference,
    paired_ratio,
    share_interval,
    tango,
)
from eval.metrics.precision_recall import covered, radii


@pytest.fixture
def features() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of generated and of real images, float64, that overlap in part."""
    random = np.random.default_rng(5)
    mix = np.eye(12) + 0.2 * random.normal(size=(12, 12))
    rows = random.normal(size=(300, 12)) @ mix, random.normal(0.5, 1.2, (200, 12))
    return torch.from_numpy(rows[0]), torch.from_numpy(rows[1])


def test_figures_are_those_of_torch_fidelity(features):
    generated, real = (rows.numpy() for rows in features)
    fid = fid_statistics_to_metric(*map(fid_features_to_statistics, features), verbose=False)
    distance = frechet_distance(Gaussian.of(generated), Gaussian.of(real))
    assert distance == pytest.approx(fid["frechet_inception_distance"], rel=1e-9)
    options = {"prc_neighborhood": 3, "prc_batch_size": 64, "save_cpu_ram": True, "verbose": False}
    expected = prc_features_to_metric(*features, **options)
    precision = covered(generated, real, radii(real)).mean()
    recall = covered(real, generated, radii(generated)).mean()
    assert (precision, recall) == pytest.approx((expected["precision"], expected["recall"]))
    assert 0.1 < precision < 0.9 and 0.1 < recall < 0.9


def test_interval_of_a_mean_is_that_of_the_normal_distribution():
    values = np.random.default_rng(0).normal(size=400)
    figures, error = mean_interval(values), values.std() / 20
    assert figures["value"] == pytest.approx(values.mean())
    assert (figures["high"] - figures["low"]) / (2 * 1.96 * error) == pytest.approx(1, abs=0.07)
    assert mean_interval(values[:7])["low"] is None
    for whole in ([0.0] * 10, [1.0] * 10, [0.0, 1.0] * 5):  # figures that happen to be 0 and 1
        assert mean_interval(whole)["interval"] == (OVER_IMAGES if 0 < sum(whole) < 10 else None)


def test_interval_of_a_share():
    assert share_interval([1, 0], [3, 1])["value"] == 0.25  # images weigh by what they said
    figures = share_interval([1] * 10, [1] * 10)
    assert (figures["low"], figures["high"]) == pytest.approx((0.7225, 1), abs=1e-4)
    half = share_interval([1, 0] * 5, [1] * 10)
    assert (half["low"], half["high"]) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert share_interval([2, 3] * 5, [2, 3] * 5)["low"] == figures["low"]
    assert "bootstrap" in share_interval([1, 2] * 5, [2, 2] * 5)["interval"]


def test_interval_of_a_paired_difference_of_shares():
    def of(gained, lost, same):
        ours, theirs = [1] * gained + [0] * lost, [0] * gained + [1] * lost
        pairs = ([(hit, 1) for hit in hits + same] for hits in (ours, theirs))
        return paired_difference(*pairs)

    # airway reactivity of 21 children (Fagerland et al. 2014, Statistics in Medicine 33, table V)
    airway = of(1, 7, [1] + [0] * 12)
    assert airway.value == -6 / 21
    assert (airway.low, airway.high) == pytest.approx((-0.517, -0.026), abs=5e-4)
    none = of(0, 0, [1] * 20 + [0] * 12)
    end = 1.96**2 / (32 + 1.96**2)  # by hand: (32 d)^2 = 1.96^2 32 |d| (1 - |d|)
    assert (none.value, none.low, none.high) == (0, pytest.approx(-end), pytest.approx(end))
    assert (of(4, 0, []).high, of(0, 4, []).low) == (pytest.approx(1), pytest.approx(-1))


def test_a_difference_without_spread_has_no_interval():
    """It says nothing of other images."""
    shares = [(n % 3, 3) for n in range(30)]
    assert paired_difference(shares, shares) == Estimate(0, None, None)
    ends = paired_difference([(n + 1, 3) for n, _ in shares], shares)
    assert (ends.value, ends.low, ends.high) == (pytest.approx(1 / 3), None, None)
    ends = paired_difference([(3, 3), *shares[1:]], shares)
    assert ends.low == 0 < ends.value < ends.high


@pytest.mark.parametrize("images", [16, 40])
def test_tangos_interval_covers_the_truth_where_that_of_standard_errors_does_not(images):
    """Over all outcomes, each with its probability."""
    gain, loss, covered, by_errors = 0.06, 0.01, 0.0, 0.0
    for gained in range(images + 1):
        for lost in range(images + 1 - gained):
            same = images - gained - lost
            ways = comb(images, same) * comb(gained + lost, lost)
            chance = ways * gain**gained * loss**lost * (1 - gain - loss) ** same
            low, high = tango(gained, lost, images)
            covered += chance * (low <= gain - loss <= high)
            apart = (gained - lost) / images
            error = ((gained + lost) / images - apart**2) ** 0.5 / images**0.5
            by_errors += chance * (abs(apart - (gain - loss)) <= 1.96 * error)
    assert by_errors < 0.92 and 0.95 <= covered <= 1


def test_jackknife_of_a_mean_is_its_standard_error():
    values = np.random.default_rng(3).normal(size=1000)
    figures = jackknife(1000, lambda out: float(np.delete(values, out).mean()))
    width = 2 * 2.262 * values.std() / 1000**0.5
    assert (figures["high"] - figures["low"]) / width == pytest.approx(1, abs=0.4)
    assert jackknife(19, lambda out: 1.0) == {"value": 1.0}


def test_the_ratio_is_that_of_the_totals_and_lies_in_its_interval() -> None:
    ratio = paired_ratio([2.0, 4.0, 6.0, 9.0] * 2, [1.0, 3.0, 2.0, 4.0] * 2)
    assert ratio.value == pytest.approx(21 / 10)
    assert 4 / 3 < ratio.low < ratio.value < ratio.high < 3
    few = paired_ratio([2.0] * 7, [1.0] * 7)
    assert (few.value, few.low, few.high) == (2.0, None, None)


def test_pairs_stay_together() -> None:
    """Images differ tenfold, the ratio does not: only a paired interval sees that."""
    seconds = np.linspace(1, 10, 30)
    ratio = paired_ratio(1.2 * seconds, seconds)
    assert (ratio.low, ratio.high) == (pytest.approx(1.2), pytest.approx(1.2))


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    draw = np.random.default_rng(1)
    covered = 0
    for _ in range(100):
        below = draw.uniform(1, 3, 32)
        ratio = paired_ratio(below * draw.normal(1.5, 0.3, 32), below, samples=300)
        covered += ratio.low <= 1.5 <= ratio.high
    assert 0.88 <= covered / 100 <= 1
