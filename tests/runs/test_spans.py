"""When learning stops: on made-up curves of tau, against the best moment that hindsight knows."""

from __future__ import annotations

import random
from collections.abc import Callable
from statistics import mean

import pytest

from runs.spans import Span, hoped, pays, saved

IMAGES, TOKENS, ROUND = 32, 32 * 255, 0.01  # of a span; seconds of a round


def late(learned: int) -> float:
    """Tau from random weights, as measured: 1.10, 1.12, 1.18, 1.28, 1.39, ... 1.63 after 500."""
    known = [1.10, 1.12, 1.18, 1.28, 1.39, 1.44, 1.48, 1.51, 1.54, 1.55, 1.55, 1.56, 1.56, 1.58]
    return known[learned] if learned < len(known) else 1.63


def early(learned: int) -> float:
    return 1.3 + 0.4 * (1 - 0.6**learned)


def flat(learned: int) -> float:
    return 2.0


def falling(learned: int) -> float:
    return 2.0 * 0.97**learned


def span(tau: float, learning: float) -> Span:
    rounds = round(TOKENS / tau)
    return Span(IMAGES, TOKENS, rounds, rounds * ROUND, learning)


def run(
    tau: Callable[[int], float], cost: float, spans: int, stop: int | None = None, noise: int = -1
) -> tuple[float, int]:
    """Seconds of a run of so many spans, and in how many of them it learned.

    cost: seconds of learning a span. stop: after so many spans of learning, whatever `pays` says.
    noise: seed of prompts that change tau by a twentieth; -1 for none.
    """
    easy, seen, learned, going = random.Random(noise), [], 0, True
    for number in range(spans):
        learns = going and number > 0
        factor = 1.0 if noise < 0 else easy.gauss(1, 0.05)
        seen.append(span(tau(learned) * factor, cost if learns else 0.0))
        learned += learns
        if stop is None:
            going = going and pays(seen, IMAGES * (spans - 1 - number))
        else:
            going = learned < stop
    return sum(each.drawing + each.learning for each in seen), learned


def best(tau: Callable[[int], float], cost: float, spans: int) -> float:
    """Seconds of the run that stops at the best moment."""
    return min(run(tau, cost, spans, stop)[0] for stop in range(spans))


@pytest.mark.parametrize("curve", [late, early, flat, falling])
@pytest.mark.parametrize("cost", [0.5, 2.0, 6.0, 15.0])
@pytest.mark.parametrize("spans", [4, 16, 60])
def test_a_run_takes_hardly_longer_than_with_hindsight(curve, cost, spans) -> None:
    """What it takes longer is the four spans that it needs to tell, and little more."""
    seconds, least = run(curve, cost, spans)[0], best(curve, cost, spans)
    assert seconds <= least * 1.03 + 4 * cost + (0 if curve is not falling else 0.1 * least)


@pytest.mark.parametrize(("spans", "cost"), [(16, 2.0), (16, 6.0), (60, 6.0)])
def test_it_does_not_stop_before_tau_has_risen(spans, cost) -> None:
    assert run(late, cost, spans)[1] >= 8
    assert run(late, cost, spans)[0] < run(late, cost, spans, 0)[0]


def test_it_stops_soon_where_nothing_is_gained() -> None:
    assert run(flat, 2.0, 60)[1] <= 5 and run(falling, 2.0, 60)[1] <= 5


def test_prompts_that_differ_seldom_stop_it_too_early() -> None:
    """Tau of spans scatters by a twentieth: most runs still learn what there is to learn."""
    plain = run(late, 2.0, 16, 0)[0]
    runs = [run(late, 2.0, 16, noise=seed) for seed in range(200)]
    assert sum(learned >= 6 for _, learned in runs) > 180
    assert mean(seconds for seconds, _ in runs) < 0.88 * plain


def test_nothing_is_learned_for_the_last_images() -> None:
    spans = [span(1.1, 0.0), span(1.2, 20.0)]
    drawing = spans[-1].drawing / IMAGES
    enough = int(20.0 / (0.5 * drawing))
    assert pays(spans, enough + 1) and not pays(spans, enough)


def test_the_trend_is_the_slope_and_its_error() -> None:
    assert hoped([0.9, 0.8, 0.7, 0.6, 0.5]) == pytest.approx(0.1)
    assert hoped([0.5] * 5) == pytest.approx(0.0)
    # residuals 1, -2, 2, -2, 1 tenths around a flat line; 0.14 / 3 over 10
    assert hoped([0.6, 0.3, 0.7, 0.3, 0.6]) == pytest.approx((0.14 / 3 / 10) ** 0.5)


def test_what_was_saved_is_the_time_of_the_rounds_that_fell_away() -> None:
    first = Span(10, 2000, 1000, 100.0)
    assert saved(first, Span(10, 2000, 600, 60.0, 20.0)) == pytest.approx(10 * 40 * 0.1)
    assert saved(first, Span(5, 1000, 500, 9.0)) == 0.0  # as many tokens a round as before
