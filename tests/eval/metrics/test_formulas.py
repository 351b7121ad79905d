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


def gaussian(seed: int, features: int, rank: int | None = None) -> Gaussian:
    random = np.random.default_rng(seed)
    factor = random.normal(size=(features, rank or features))
    return Gaussian(random.normal(size=features), factor @ factor.T)


def test_distance_of_gaussians_on_a_line():
    one, other = (
        Gaussian(np.array([1.0]), np.array([[4.0]])),
        Gaussian(np.array([4.0]), np.array([[25.0]])),
    )
    assert frechet_distance(one, other) == pytest.approx((1 - 4) ** 2 + (2 - 5) ** 2)


def test_distance_of_gaussians_with_axes_in_common():
    a, b = np.array([1.0, 4.0, 9.0]), np.array([4.0, 4.0, 1.0])
    one, other = Gaussian(np.zeros(3), np.diag(a)), Gaussian(np.array([0.0, 3.0, 4.0]), np.diag(b))
    assert frechet_distance(one, other) == pytest.approx(
        25 + ((np.sqrt(a) - np.sqrt(b)) ** 2).sum()
    )


@pytest.mark.parametrize("rank", [None, 3])
def test_distance_against_scipy(rank):
    one, other = gaussian(1, 6, rank), gaussian(2, 6)
    shared = np.trace(linalg.sqrtm(one.covariance @ other.covariance)).real
    expected = (
        ((one.mean - other.mean) ** 2).sum()
        + np.trace(one.covariance + other.covariance)
        - 2 * shared
    )
    assert frechet_distance(one, other) == pytest.approx(expected, rel=1e-5)
    assert frechet_distance(one, other) == pytest.approx(frechet_distance(other, one), rel=1e-5)


def test_distance_to_itself_is_zero_also_for_few_images():
    rows = np.random.default_rng(0).normal(size=(5, 20)).astype(np.float32)
    assert abs(frechet_distance(Gaussian.of(rows), Gaussian.of(rows))) < 1e-6


def test_gaussian_of_rows_by_hand():
    drawn = Gaussian.of(np.array([[0.0, 1.0], [2.0, 3.0], [4.0, 8.0]]))
    assert drawn.mean == pytest.approx([2, 4])
    assert drawn.covariance == pytest.approx(np.array([[4, 7], [7, 13]]))


def test_inception_score_by_hand():
    sure = np.log(np.eye(4).clip(1e-30))
    assert inception_score(sure) == pytest.approx(4)  # every image another class
    assert inception_score(np.log(np.full((3, 5), 0.2))) == pytest.approx(
        1
    )  # every image says nothing
    p = np.array([[0.9, 0.1], [0.5, 0.5]])
    divergence = [sum(x * np.log(x / m) for x, m in zip(row, (0.7, 0.3), strict=True)) for row in p]
    assert inception_score(np.log(p)) == pytest.approx(np.exp(np.mean(divergence)))


@pytest.fixture
def features() -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of generated and of real images, float64, that overlap in part."""
    random = np.random.default_rng(5)
    mix = np.eye(12) + 0.2 * random.normal(size=(12, 12))
    return torch.from_numpy(random.normal(size=(300, 12)) @ mix), torch.from_numpy(
        random.normal(0.5, 1.2, (200, 12))
    )


def test_distance_against_torch_fidelity(features):
    expected = fid_statistics_to_metric(*map(fid_features_to_statistics, features), verbose=False)
    one, other = (Gaussian.of(rows.numpy()) for rows in features)
    assert frechet_distance(one, other) == pytest.approx(
        expected["frechet_inception_distance"], rel=1e-9
    )


def test_inception_score_against_torch_fidelity(features):
    expected = isc_features_to_metric(features[0], splits=10, shuffle=False)
    parts = [inception_score(part) for part in np.split(features[0].log_softmax(dim=1).numpy(), 10)]
    assert np.mean(parts) == pytest.approx(expected["inception_score_mean"])
    assert np.std(parts) == pytest.approx(expected["inception_score_std"])


def test_precision_and_recall_against_torch_fidelity(features):
    options = {"prc_neighborhood": 3, "prc_batch_size": 64, "save_cpu_ram": True, "verbose": False}
    expected = prc_features_to_metric(*features, **options)
    rows, theirs = (each.numpy() for each in features)
    precision, recall = (
        covered(rows, theirs, radii(theirs)).mean(),
        covered(theirs, rows, radii(rows)).mean(),
    )
    assert (precision, recall) == pytest.approx((expected["precision"], expected["recall"]))
    assert 0.1 < precision < 0.9 and 0.1 < recall < 0.9


def test_radii_and_coverage_on_a_line():
    real = np.array([[0.0], [1.0], [2.0], [4.0], [10.0]])
    reach = radii(real, k=2)
    assert reach == pytest.approx([2, 1, 2, 3, 8])
    points = np.array([[-2.0], [-2.1], [3.0], [18.0], [18.1]])
    assert covered(points, real, reach).tolist() == [True, False, True, True, False]


@pytest.mark.parametrize("count", [3, 1500])
def test_coverage_against_loops(count):
    random = np.random.default_rng(count)
    points, real = random.normal(size=(count, 4)), random.normal(size=(60, 4))
    distances = np.linalg.norm(real[:, None] - real[None], axis=-1)
    expected_reach = np.sort(distances, axis=1)[:, 3]
    assert radii(real) == pytest.approx(expected_reach)
    expected = [(np.linalg.norm(real - point, axis=1) <= expected_reach).any() for point in points]
    assert covered(points, real, radii(real)).tolist() == expected


def test_interval_of_a_mean_is_that_of_the_normal_distribution():
    values = np.random.default_rng(0).normal(size=400)
    figures = mean_interval(values)
    error = values.std() / 20
    assert figures["value"] == pytest.approx(values.mean())
    assert (figures["high"] - figures["low"]) / (2 * 1.96 * error) == pytest.approx(1, abs=0.07)
    assert mean_interval(values[:7])["low"] is None


def test_interval_of_a_share_weighs_images_by_what_they_said():
    assert share_interval([1, 0], [3, 1])["value"] == 0.25


def test_interval_of_images_that_have_all_or_nothing():
    figures = share_interval([1] * 10, [1] * 10)
    assert (figures["low"], figures["high"]) == pytest.approx((0.7225, 1), abs=1e-4)
    half = share_interval([1, 0] * 5, [1] * 10)
    assert (half["low"], half["high"]) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert share_interval([2, 3] * 5, [2, 3] * 5)["low"] == figures["low"]
    assert "bootstrap" in share_interval([1, 2] * 5, [2, 2] * 5)["interval"]


def test_jackknife_of_a_mean_is_its_standard_error():
    values = np.random.default_rng(3).normal(size=1000)
    figures = jackknife(
        1000, lambda out: float(np.delete(values, out).mean()), float(values.mean())
    )
    assert (figures["high"] - figures["low"]) / (
        2 * 2.262 * values.std() / 1000**0.5
    ) == pytest.approx(1, abs=0.4)
    assert jackknife(19, lambda out: 0.0, 1.0) == {"value": 1.0}
