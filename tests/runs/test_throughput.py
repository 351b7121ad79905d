"""Speeds by batch size: what is counted, and that no place stays empty."""

from __future__ import annotations

from itertools import pairwise

import pytest

from configs.schema import MethodSettings
from decoding.images import Job
from runs.throughput import Speed, best, flags, measure_speed

PLAIN, WINDOW = MethodSettings("ar"), MethodSettings("jacobi", window=3)
TOKENS = 16
JOBS = [Job(str(number), f"word {number}", number) for number in range(9)]


@pytest.mark.parametrize("method", [PLAIN, WINDOW], ids=["ar", "jacobi"])
def test_a_free_place_is_taken_in_the_next_round(method, session) -> None:
    """While images wait, every round has as many as there are places; the next in line come in."""
    steps = list(session.open_engine(method, images=3).generate(JOBS))
    started: list[str] = []
    for before, step in pairwise([None, *steps]):
        ids = [line.id for line in step.rounds]
        gone = 0 if before is None else len(before.finished)
        new = [id for id in ids if id not in started]
        waiting = len(JOBS) - len(started)
        assert len(new) == min(waiting, 3 if before is None else gone)
        started += new
        assert len(ids) == 3 or len(started) == len(JOBS)
    assert started == [job.id for job in JOBS]


def test_a_measurement_counts_tokens_rounds_and_images(session) -> None:
    plain = measure_speed(session.open_engine(PLAIN, images=2), JOBS[:5], PLAIN)
    assert (plain.batch, plain.images, plain.tau, plain.nodes) == (2, 5, 1.0, 0.0)
    assert plain.tokens == plain.rounds == 5 * (TOKENS - 1)  # the prefill decides one more
    some = measure_speed(session.open_engine(WINDOW, images=2), JOBS[:2], WINDOW, rounds=3)
    assert some.images == 0 and some.rounds == 6 and 6 <= some.tokens <= 24 and some.seconds > 0
    assert flags(some) == "--batch_size 2 --method jacobi --window 3"


def test_the_best_has_most_tokens_per_second() -> None:
    slow = Speed(PLAIN, 1, 4, 64, 64, 0.0, 4.0)
    fast = Speed(WINDOW, 8, 4, 64, 20, 3.0, 2.0)
    assert best([slow, fast]) is fast
    assert (fast.tokens_per_second, fast.images_per_second, fast.tau) == (32.0, 2.0, 3.2)
