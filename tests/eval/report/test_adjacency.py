"""Correlations of acceptance between positions.

The definitions are tested on rounds made by hand, the values on data with known correlations.
"""

import numpy as np
import pytest

from eval.report.adjacency import ImageTrace, correlation, correlations


def lines(accepted: list[int], depth: int = 9) -> list[dict]:
    """Return rounds that accept so many draft tokens, in trees of this depth."""
    positions = np.cumsum([1, *(count + 1 for count in accepted)])
    return [
        {
            "round": i,
            "position": int(positions[i]),
            "accepted": a,
            "depth": depth,
            "top1": [0.5 + i / 100] * (a + 1),
        }
        for i, a in enumerate(accepted)
    ]


def trace(accepted: list[int], depth: int = 0) -> ImageTrace:
    """Return the trace of a whole image; depth 0: no tree was cut."""
    return ImageTrace.of(lines(accepted, depth), 1 + sum(accepted) + len(accepted))


def test_a_position_has_the_acceptance_of_the_round_that_decided_it() -> None:
    image = ImageTrace.of(lines([2, 0, 1], depth=3), 7)
    np.testing.assert_array_equal(image.accepted, [np.nan, 2, 2, 2, 0, 1, 1])
    np.testing.assert_array_equal(image.rounds, [-1, 0, 0, 0, 1, 2, 2])
    np.testing.assert_allclose(image.top1, [np.nan, 0.5, 0.5, 0.5, 0.51, 0.52, 0.52])
    np.testing.assert_array_equal(image.starts, [1, 4, 5])
    np.testing.assert_array_equal(
        image.whole, [np.nan, 2, 2, 2, np.nan, np.nan, np.nan]
    )  # 2 positions were left


@pytest.mark.parametrize("damage", [{"position": 5}, {"accepted": 9}, {"top1": [0.1]}])
def test_rounds_that_do_not_fit_are_refused(damage) -> None:
    broken = lines([2, 0, 1])
    broken[1] = broken[1] | damage
    broken[1]["top1"] = broken[1]["top1"] if "top1" not in damage else [0.1, 0.2]
    with pytest.raises(ValueError, match="round 1 does not continue at position 4"):
        ImageTrace.of(broken, 7)
    with pytest.raises(ValueError, match="up to position 5 of 7"):
        ImageTrace.of(lines([2, 0]), 7)


def made(images: int, carry: float, seed: int = 0, least: int = 40) -> list[ImageTrace]:
    """Make images whose rounds accept 0 to 7 tokens.

    A share `carry` of the rounds repeats the round before.
    """
    draw = np.random.default_rng(seed)
    traces = []
    for _ in range(images):
        accepted = [int(draw.integers(8))]
        while sum(accepted) + len(accepted) < 64 * least:
            accepted.append(accepted[-1] if draw.random() < carry else int(draw.integers(8)))
        tokens = 64 * least - 1
        kept = [
            a
            for a, end in zip(accepted, np.cumsum(np.array(accepted) + 1), strict=True)
            if end <= tokens
        ]
        rest = tokens - sum(kept) - len(kept)
        traces.append(trace([*kept, rest - 1] if rest else kept))
    return traces


def test_rounds_that_repeat_the_one_before_are_found_and_controls_are_not() -> None:
    found = correlations(made(10, carry=0.6), columns=64, samples=400)
    for name in ("previous", "left", "left_given_upper"):
        one = found["rounds"][name]
        assert one.pearson.value == pytest.approx(0.6, abs=0.05) == one.spearman.value
        assert 0.5 < one.pearson.low < one.pearson.value < one.pearson.high < 0.7
    for name in ("upper", "upper_given_left", "other_image", "elsewhere"):
        assert abs(found["rounds"][name].pearson.value) < 0.06, name
    assert found["rounds"]["left"].pairs < found["rounds"]["previous"].pairs


def test_independent_rounds_agree_within_themselves_only() -> None:
    """Neighbours are mostly of one round: correlations of positions are high without a cause."""
    found = correlations(made(10, carry=0.0), columns=64, samples=100)
    assert found["positions"]["left"].pearson.value > 0.6
    assert all(abs(one.pearson.value) < 0.06 for one in found["rounds"].values())
    assert abs(found["positions"]["upper"].pearson.value) < 0.06


def test_rows_that_repeat_the_row_above_are_found() -> None:
    draw = np.random.default_rng(3)
    traces = []
    for _ in range(9):
        row: list[int] = []
        while sum(row) + len(row) < 48:
            row.append(int(draw.integers(min(8, 48 - sum(row) - len(row)))))
        traces.append(
            trace([0] * 47 + row * 20)
        )  # position 0, a row of single tokens, then the same row 20 times
    found = correlations(traces, columns=48, samples=100)
    assert (
        found["rounds"]["upper"].pearson.value > 0.8
        and found["rounds"]["upper_given_left"].pearson.value > 0.8
    )
    assert abs(found["rounds"]["left_given_upper"].pearson.value) < 0.3


def test_layout_common_to_all_images_is_seen_by_the_control() -> None:
    found = correlations([made(1, carry=0.5)[0] for _ in range(9)], columns=64, samples=100)
    assert found["rounds"]["other_image"].pearson.value == pytest.approx(1)
    assert abs(found["rounds"]["elsewhere"].pearson.value) < 0.1


def test_pearson_spearman_and_partial_correlations_of_given_numbers() -> None:
    draw = np.random.default_rng(1)
    z = draw.normal(size=20_000)
    x, y = z + draw.normal(size=z.size), z + draw.normal(size=z.size)
    parts = np.split(np.stack([x, y, z]), 10, axis=1)
    plain, given = correlation([part[:2] for part in parts], 200), correlation(parts, 200)
    assert (
        plain.pearson.value == pytest.approx(0.5, abs=0.02)
        and plain.pearson.low < 0.5 < plain.pearson.high
    )
    assert plain.spearman.value == pytest.approx(6 / np.pi * np.arcsin(0.25), abs=0.02)
    assert given.pearson.value == pytest.approx(0, abs=0.02) and given.pairs == 20_000
    curved = correlation([np.stack([x, np.exp(3 * x)])], 10)
    assert (
        curved.spearman.value == pytest.approx(1)
        and curved.pearson.value < 0.7
        and curved.pearson.low is None
    )


def test_ties_share_ranks_and_gaps_are_left_out() -> None:
    table = np.array([[1.0, 1, 2, 3, np.nan, 4], [1.0, 2, 2, 3, 3, np.nan]])
    scipy = pytest.importorskip("scipy.stats")
    expected = scipy.spearmanr([1, 1, 2, 3], [1, 2, 2, 3]).statistic
    assert (
        correlation([table], 10).spearman.value == pytest.approx(expected)
        and correlation([table], 10).pairs == 4
    )


def test_no_correlation_with_a_constant_or_with_nothing() -> None:
    assert correlation([np.array([[1.0, 2, 3, 4], [5.0, 5, 5, 5]])]) is None
    assert correlation([np.full((2, 9), np.nan)]) is None
    assert correlations([trace([1, 0, 3, 2, 0, 1])], columns=4)["rounds"]["other_image"] is None
