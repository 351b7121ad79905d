"""The metrics' formulas against other computations on small made data."""

import numpy as np
import pytest
import torch
from scipy import linalg
from torch_fidelity.metric_fid import fid_features_to_statistics, fid_statistics_to_metric
from torch_fidelity.metric_isc import isc_features_to_metric
from torch_fidelity.metric_prc import prc_features_to_metric

from eval.metrics.fid import Gaussian, frechet_distance
from eval.metrics.inception_score import inception_score
from eval.metrics.intervals import jackknife, mean_interval, share_interval
from eval.metrics.precision_recall import covered, radii


def test_distance_of_gaussians_with_axes_in_common():
    a, b = np.array([1.0, 4.0, 9.0]), np.array([4.0, 4.0, 1.0])
    one, other = Gaussian(np.zeros(3), np.diag(a)), Gaussian(np.array([0.0, 3.0, 4.0]), np.diag(b))
    expected = 25 + ((np.sqrt(a) - np.sqrt(b)) ** 2).sum()
    assert frechet_distance(one, other) == pytest.approx(expected)


@pytest.mark.parametrize("rank", [6, 3])
def test_distance_against_scipy(rank):
    def gaussian(seed: int, rank: int) -> Gaussian:
        random = np.random.default_rng(seed)
        factor = random.normal(size=(6, rank))
        return Gaussian(random.normal(size=6), factor @ factor.T)

    one, other = gaussian(1, rank), gaussian(2, 6)
    shared = np.trace(linalg.sqrtm(one.covariance @ other.covariance)).real
    traces = np.trace(one.covariance + other.covariance) - 2 * shared
    expected = pytest.approx(((one.mean - other.mean) ** 2).sum() + traces, rel=1e-5)
    assert frechet_distance(one, other) == expected == frechet_distance(other, one)


def test_distance_to_itself_is_zero_also_for_few_images():
    rows = np.random.default_rng(0).normal(size=(5, 20)).astype(np.float32)
    assert 0 <= frechet_distance(Gaussian.of(rows), Gaussian.of(rows)) < 1e-6


def test_inception_score_by_hand():
    sure, unsure = np.log(np.eye(4).clip(1e-30)), np.log(np.full((3, 5), 0.2))
    assert inception_score(sure) == pytest.approx(4)  # every image another class
    assert inception_score(unsure) == pytest.approx(1)  # every image says nothing


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
    score = isc_features_to_metric(features[0], splits=10, shuffle=False)
    splits = np.split(features[0].log_softmax(dim=1).numpy(), 10)
    scores = [inception_score(split) for split in splits]
    assert np.mean(scores) == pytest.approx(score["inception_score_mean"])
    assert np.std(scores) == pytest.approx(score["inception_score_std"])
    options = {"prc_neighborhood": 3, "prc_batch_size": 64, "save_cpu_ram": True, "verbose": False}
    expected = prc_features_to_metric(*features, **options)
    precision = covered(generated, real, radii(real)).mean()
    recall = covered(real, generated, radii(generated)).mean()
    assert (precision, recall) == pytest.approx((expected["precision"], expected["recall"]))
    assert 0.1 < precision < 0.9 and 0.1 < recall < 0.9


@pytest.mark.parametrize("count", [3, 1500])
def test_coverage_against_loops(count):
    random = np.random.default_rng(count)
    points, real = random.normal(size=(count, 4)), random.normal(size=(60, 4))
    distances = np.linalg.norm(real[:, None] - real[None], axis=-1)
    reach = np.sort(distances, axis=1)[:, 3]
    assert radii(real) == pytest.approx(reach)
    expected = [(np.linalg.norm(real - point, axis=1) <= reach).any() for point in points]
    assert covered(points, real, radii(real)).tolist() == expected


def test_interval_of_a_mean_is_that_of_the_normal_distribution():
    values = np.random.default_rng(0).normal(size=400)
    figures, error = mean_interval(values), values.std() / 20
    assert figures["value"] == pytest.approx(values.mean())
    assert (figures["high"] - figures["low"]) / (2 * 1.96 * error) == pytest.approx(1, abs=0.07)
    assert mean_interval(values[:7])["low"] is None


def test_interval_of_a_share():
    assert share_interval([1, 0], [3, 1])["value"] == 0.25  # images weigh by what they said
    figures = share_interval([1] * 10, [1] * 10)
    assert (figures["low"], figures["high"]) == pytest.approx((0.7225, 1), abs=1e-4)
    half = share_interval([1, 0] * 5, [1] * 10)
    assert (half["low"], half["high"]) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert share_interval([2, 3] * 5, [2, 3] * 5)["low"] == figures["low"]
    assert "bootstrap" in share_interval([1, 2] * 5, [2, 2] * 5)["interval"]


def test_jackknife_of_a_mean_is_its_standard_error():
    values = np.random.default_rng(3).normal(size=1000)
    figures = jackknife(1000, lambda out: float(np.delete(values, out).mean()), values.mean())
    width = 2 * 2.262 * values.std() / 1000**0.5
    assert (figures["high"] - figures["low"]) / width == pytest.approx(1, abs=0.4)
    assert jackknife(19, lambda out: 0.0, 1.0) == {"value": 1.0}
