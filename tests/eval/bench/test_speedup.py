"""Speed-ups on a simulated machine: what a load spike does to them, and which rows say so."""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from configs.fields import settings_dict
from configs.methods import MethodSettings
from decoding.images import FinishedImage, Job
from eval.bench.speedup import speed_figures
from eval.bench.table import table
from eval.metrics.intervals import median_interval
from runs.measure import Measurement, joined, measure

JOBS = [Job(str(number), "a cat", number) for number in range(8)]
AR, ADT = 2.0, 1.25  # seconds per image on the idle machine
ROW = {"method": "adt", "proposal": "coupled", "verifier": "exact", "temperature": 1.0}
ROW |= {"lossless": True, "tau": 2.0, "near_ties": 0, "identical": 2, "images": 2}
ROW |= settings_dict(MethodSettings("adt")) | {"inconclusive": None, "doubts": []}
ROW |= {"seconds_per_image": 1.0, "tokens_per_second": 9.0}


@dataclass
class Machine:
    """A clock of CPU seconds, and engines whose images take simulated seconds."""

    # times an image takes longer by the wall clock, by (method, repeat, image)
    slower: Callable[[str, int, int], float] = lambda *_: 1.0
    cpu: float = 0.0
    noise: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def engine(self, method: str, seconds: float, repeat: int) -> Any:
        """An engine that needs `seconds` of CPU time per image, give or take 2 %."""

        def generate(jobs: list[Job]) -> Iterator[Any]:
            for job in jobs:
                spent = seconds * (1 + 0.02 * self.noise.standard_normal())
                self.cpu += spent
                wall = spent * self.slower(method, repeat, int(job.id))
                yield SimpleNamespace(finished=(image(job, wall, 1 + (method == "adt")),))

        watch = SimpleNamespace(seconds={}, calls=Counter())
        return SimpleNamespace(generate=generate, watch=watch)

    def measured(self, method: str, seconds: float, repeats: int, jobs: list[Job]) -> list:
        engines = [self.engine(method, seconds, repeat) for repeat in range(repeats)]
        return [joined([measure(e, [job], lambda: self.cpu) for job in jobs]) for e in engines]

    def row(self, repeats: int = 3, jobs: list[Job] = JOBS, on_cpu: bool = True) -> dict[str, Any]:
        ar = self.measured("ar", AR, repeats, jobs)
        adt = self.measured("adt", ADT, repeats, jobs)
        figures = {"seconds_per_image": 1.0, "tokens_per_second": 9.0, "identical": len(jobs)}
        return ROW | figures | speed_figures(adt, ar, on_cpu)


def image(job: Job, seconds: float, tau: int) -> FinishedImage:
    """An image of 13 tokens, `tau` of them per round."""
    cost = {"seconds_prefill": 0, "seconds_draft": 0, "seconds_verify": 0}
    cost |= {"mean_drafted_depth": 1, "mean_verified_depth": 1, "mean_nodes": 1, "seconds": seconds}
    return FinishedImage(job, torch.zeros(13), 12 // tau + 1, tau, **cost)


def shown(row: dict[str, Any]) -> str:
    return table([row]).splitlines()[2]


def slow(when: Callable[[str, int, int], bool], factor: float) -> Machine:
    return Machine(lambda *turn: factor if when(*turn) else 1.0)


SLOW_AR = ["a speed-up of 2.37 exceeds tau 2.00", "wall time gives a speed-up of 2.37"]
SLOW_AR += ["the process had the CPU for only 67% of the time"]


@pytest.mark.parametrize(
    ("machine", "on_cpu", "speedup", "doubts"),
    [
        (Machine(), True, AR / ADT, []),
        (slow(lambda method, *_: method == "ar", 1.5), True, 1.5 * AR / ADT, SLOW_AR),
        (
            slow(lambda *_: True, 1.6),
            True,
            AR / ADT,
            ["the process had the CPU for only 62% of the time"],
        ),
        (slow(lambda *_: True, 1.6), False, AR / ADT, []),  # CPU time says nothing of a GPU
    ],
    ids=["idle", "load during ar", "load all the time", "gpu"],
)
def test_what_load_does_to_a_row(machine, on_cpu, speedup, doubts) -> None:
    row = machine.row(on_cpu=on_cpu)
    assert len(row["doubts"]) == len(doubts)
    assert all(text.startswith(start) for text, start in zip(row["doubts"], doubts, strict=True))
    assert row["speedup"] == pytest.approx(speedup, rel=0.02)
    assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
    assert row["speedup_cpu"] == (pytest.approx(AR / ADT, rel=0.02) if on_cpu else None)
    assert (f"| **{row['speedup']:.2f}** (" in shown(row)) == (not doubts)


@pytest.mark.parametrize("images", [2, 8])
def test_a_load_spike_in_one_measurement_marks_the_row_and_does_not_move_it(images: int) -> None:
    spike = slow(lambda *turn: turn == ("ar", 1, 1), 9.0)
    calm, row = Machine().row(jobs=JOBS[:images]), spike.row(jobs=JOBS[:images])
    text, waited = row["doubts"]
    assert text.startswith("its repeats give speed-ups from 1.")
    assert waited.startswith("the process had the CPU for only ")
    for speedup in (calm["speedup"], row["speedup"]):
        assert row["speedup_low"] <= speedup <= row["speedup_high"]
    assert row["speedup"] == pytest.approx(calm["speedup"], rel=0.02)
    assert row["speedup_cpu"] == calm["speedup_cpu"]
    assert "(!)" in shown(row) and "**" not in shown(row)
    assert table([row]).splitlines()[-2] == f"(!) adt: {text}"


def test_in_a_batch_the_seconds_of_all_images_are_compared() -> None:
    """An image that is left alone in its batch pays for whole rounds."""
    tail = Machine(lambda method, _, number: 1 if method == "ar" else 5.2 if number == 7 else 0.4)
    batches = {
        method: [joined([measure(tail.engine(method, seconds, 0), JOBS, lambda: tail.cpu)])]
        for method, seconds in (("ar", AR), ("adt", ADT))
    }
    figures = speed_figures(batches["adt"], batches["ar"], on_cpu=True)
    assert figures["speedup"] == pytest.approx(AR / ADT, rel=0.05)
    assert figures["speedup_cpu"] == pytest.approx(AR / ADT, rel=0.05)
    assert figures["speedup_low"] < AR / ADT < figures["speedup_high"]
    assert figures["doubts"] == []


def test_a_median_of_speed_ups_is_held_against_the_median_of_tau() -> None:
    """Five images have a tau of 4 and three of 1, all together 1.9; a round is 5 % dearer."""

    def measured(taus: list[int], seconds_per_round: float) -> list[Measurement]:
        pairs = zip(JOBS, taus, strict=True)
        images = [image(job, 12 / tau * seconds_per_round, tau) for job, tau in pairs]
        times = tuple(one.seconds for one in images)
        return [Measurement(images, {}, {}, times, times)]

    taus = [4] * 5 + [1] * 3
    plain, drafted = measured([1] * 8, 1.0), measured(taus, 1.05)
    row = speed_figures(drafted, plain, on_cpu=True)
    assert row["speedup"] == pytest.approx(4 / 1.05) and row["doubts"] == []
    row = speed_figures(measured(taus, 0.95), plain, on_cpu=True)
    assert row["doubts"][0].startswith("a speed-up of 4.21 exceeds tau 4.00")


def test_the_interval_is_that_of_the_sign_test() -> None:
    stats = pytest.importorskip("scipy.stats")
    for count in (6, 7, 8, 9, 24, 100, 2000):
        values = np.random.default_rng(count).normal(size=count)
        interval, wanted = median_interval(values), stats.quantile_test(values, p=0.5)
        assert (interval.low, interval.high) == tuple(wanted.confidence_interval(0.95))
    assert median_interval([1.0, 2.0, 3.0, 4.0, 9.0]).low is None


@pytest.mark.parametrize(
    ("changes", "shown"),
    [
        ({"near_ties": 1}, "1/2, 1 by rounding |"),
        ({"inconclusive": "no token was drafted"}, "1/2, inconclusive (?) |"),
        ({"verifier": "rejection"}, "1/2, same distribution |"),
        ({"verifier": "lantern", "lossless": False}, "1/2, relaxed |"),
    ],
)
def test_images_that_need_not_be_the_same_say_why(changes, shown) -> None:
    row = table([ROW | {"identical": 1, "speedup": 1.5} | changes]).splitlines()[2]
    assert row.split(" | ")[-1] == shown
