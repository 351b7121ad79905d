"""Ratios over the same images, with intervals."""

import numpy as np
import pytest

from eval.metrics.intervals import paired_ratio


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


@pytest.mark.parametrize("above, below", [([1.0], [1.0, 2.0]), ([], [])])
def test_unequal_or_no_images_are_refused(above, below) -> None:
    with pytest.raises(ValueError, match="one pair per image"):
        paired_ratio(above, below)
