"""No random number decides twice: each stream, position and column that whole images read."""

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from unittest.mock import patch

import pytest
from browser import ALL
from fakes import finished
from small import open_lumina
from test_engine import JOBS
from torch import Tensor

from configs.rules import RULES
from configs.schema import AdtSettings, MethodSettings
from decoding import noise, noise_table
from decoding.noise import HostNoise
from decoding.sampling import SamplingDistribution
from runs.check.loaded import first_rows
from runs.methods import build_engine
from runs.session import Session
from scripts.rules.whole_rounds import accepts_with, shared_by_cousins

WARM, CUT = SamplingDistribution(), SamplingDistribution(temperature=0.9, top_k=5, top_p=0.8)
SMALL = {"depth": 3, "width": 3, "nodes": 9}
DRAFTS = {  # of every method: what is drawn anew, what is stale, trees whose size changes
    "static": {},
    "eagle2": SMALL,
    "adt": {"own": AdtSettings(d_max=5, adapt="random"), "nodes": 9},
    "jacobi": {"window": 5},
    "recall": SMALL,
    "block": SMALL,
    "eagle_recall": SMALL,
}
METHODS = {
    f"{name}, {method}, {proposal}": MethodSettings(
        method,
        proposal=proposal,
        verifier=name,
        **settings,
    )
    for name, rule in RULES.items()
    for method, settings in DRAFTS.items()
    for proposal in ("topk", "coupled", "sampled")
    if rule.settings is None and rule.fits(method, proposal)
    and not (method == "jacobi" and proposal == "topk")
}  # fmt: skip


class Counted:
    """Counts the numbers that are read: stream, position and, on the host, column."""

    def __init__(self) -> None:
        self.read: Counter = Counter()
        self.target = 0  # reads of the target's noise on the host

    def __enter__(self) -> "Counted":
        at, drawn = noise.uniform_at, noise_table.gumbel_of
        table, target = noise_table.gumbel, HostNoise.target

        def uniform_at(key: int, position: int, column: int) -> float:
            self.read[key, position, column] += 1
            return at(key, position, column)

        def gumbel_of(keys: Tensor, counters: Tensor, width: int) -> Tensor:
            images, count = len(keys), counters.shape[1]
            for key, row in zip(
                keys.flatten().tolist(), counters.expand(images, count), strict=True
            ):
                if key:  # of a row with an image
                    self.read.update((key, counter) for counter in row.tolist())
            return drawn(keys, counters, width)

        def gumbel(seed: int, role: str, positions: Tensor, width: int) -> Tensor:
            self.read.update((seed, role, position) for position in positions.tolist())
            return table(seed, role, positions, width)

        def of_target(image: HostNoise, depth: int) -> object:
            self.target += 1
            return target(image, depth)

        self.patches = [
            patch.object(noise, "uniform_at", uniform_at),
            patch.object(noise_table, "gumbel_of", gumbel_of),
            patch.object(noise_table, "gumbel", gumbel),
            patch.object(HostNoise, "target", of_target),
        ]
        for one in self.patches:
            one.start()
        return self

    def __exit__(self, *error: object) -> None:
        for one in self.patches:
            one.stop()

    @property
    def twice(self) -> list:
        """The numbers of images that were read more than once; free rows have the seed 0."""
        free = [noise.stream_key(0, role) for role in ("accept", "residual")]
        return [n for n, times in self.read.items() if times > 1 and n[0] not in free]


def count(session: Session, method: str, distribution: SamplingDistribution) -> Counted:
    """More images than the batch holds: they end at different times, and the batch empties."""
    jobs, batch, tokens = (JOBS, 3, 99) if ALL else (JOBS[:3], 2, 8)
    target = first_rows(session.target, tokens)
    parts = target, session.drafter, distribution, METHODS[method], batch
    with Counted() as counted:
        images = finished(build_engine(*parts), jobs)
    assert len(images) == len(jobs) and len(counted.read) > len(jobs)
    return counted


@pytest.mark.parametrize("method", METHODS)
def test_no_number_is_read_twice(method, session) -> None:
    for distribution in (WARM, CUT) if ALL else (WARM,):
        counted = count(session, method, distribution)
        assert not counted.twice
        assert not counted.target  # only rules that are bound to it read it


def test_nor_across_row_ends(lumina_folder) -> None:
    session = open_lumina(lumina_folder, "64")
    for method in METHODS:
        if method.startswith(("sampled", "traversal")):
            assert not count(session, method, WARM).twice, method


def same_round() -> AbstractContextManager:
    """Drafts of all rounds are drawn from one stream."""
    from decoding import images

    key = images.stream_key
    return patch.object(images, "stream_key", lambda seed, role: key(seed, "draft 0"))


def one_accept() -> AbstractContextManager:
    """All children of a node are judged with one number."""
    accept = HostNoise.accept
    return patch.object(HostNoise, "accept", lambda self, depth, column: accept(self, depth, 0))


def one_residual() -> AbstractContextManager:
    """All bonus tokens are drawn with one number."""
    residual = HostNoise.residual
    return patch.object(HostNoise, "residual", lambda self, depth: residual(self, -self.decided))


@pytest.mark.parametrize(
    ("broken", "method"),
    [
        (shared_by_cousins, "sampled, static, sampled"),
        (same_round, "sampled, jacobi, sampled"),
        (one_accept, "rejection, adt, topk"),
        (one_residual, "traversal, static, sampled"),
        (partial(accepts_with, "residual"), "rejection, eagle2, sampled"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_double_read_is_seen(broken: Callable, method, session) -> None:
    with broken():
        assert count(session, method, WARM).twice
