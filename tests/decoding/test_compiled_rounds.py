"""Rounds as one compiled program per size, without a graph break and without a second compilation.

Dynamo follows a whole round, from the table of numbers to the figures, as one graph of operations.
So nothing in it depends on numbers of the host that change from round to round, and its state stays
where it is. All methods take minutes: they are compiled in `make test-all`, one in `make test`.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from browser import only_in_all
from small import open_lumina
from test_buffers import ALIKE, addresses
from test_lantern import nearest
from test_recorded_rounds import GREEDY, METHODS, WARM, decoded, named
from torch import Tensor

from configs.method_table import METHODS as ALL_METHODS
from configs.schema import MethodSettings
from decoding.cache_pass import CachePass
from decoding.drafter import Decided
from decoding.engine import Engine
from decoding.policies.static import StaticTree
from decoding.sampling import SamplingDistribution
from decoding.start import Sizes
from decoding.transfer import recording
from decoding.tree import DraftTree
from runs.methods import Tables, build_engine
from runs.session import Session

pytestmark = pytest.mark.usefixtures("plain_blocks")

TABLES = Tables(nearest())


class Compiled:
    """A recorder that compiles rounds of a size once and refuses to do so again.

    The first one runs operation by operation, as before a CUDA graph is recorded.
    """

    def __init__(self) -> None:
        self.rounds: Counter[Sizes] = Counter()
        self.programs: dict[Sizes, Callable] = {}
        self.compiled = self.replayed = 0

    def __call__(self, sizes: Sizes, program: Callable, table: Tensor) -> Any:
        self.rounds[sizes] += 1
        with recording():
            if self.rounds[sizes] == 1:
                return program(table)
            if sizes in self.programs:
                self.replayed += 1
                with torch.compiler.set_stance("fail_on_recompile"):
                    return self.programs[sizes](table)
            self.compiled += 1
            self.programs[sizes] = torch.compile(
                program, fullgraph=True, backend="aot_eager", dynamic=False
            )
            return self.programs[sizes](table)

    def forget(self) -> None:
        self.rounds.clear()
        self.programs.clear()


class Unlocked:
    """As functools.cached_property from Python 3.12 on; before, it takes a lock, which dynamo
    cannot.
    """

    def __init__(self, computed: functools.cached_property):
        self.function, self.name = computed.func, computed.attrname

    def __get__(self, owner: object, kind: type | None = None) -> Any:
        if self.name not in owner.__dict__:
            owner.__dict__[self.name] = self.function(owner)
        return owner.__dict__[self.name]


@pytest.fixture(autouse=True)
def compiler(monkeypatch) -> Iterator[None]:
    """A compiler that remembers no other test, and steps of the cache that make several sizes."""
    torch._dynamo.reset()
    monkeypatch.setattr("decoding.recorder._LEAST_VISIBLE", 16)
    for owner in (CachePass, Decided, DraftTree, StaticTree):
        for name, value in list(vars(owner).items()):
            if isinstance(value, functools.cached_property):
                monkeypatch.setattr(owner, name, Unlocked(value))
    with torch._dynamo.config.patch(recompile_limit=64):  # sizes of one function
        yield
    torch._dynamo.reset()


def engines(
    session: Session, method: MethodSettings, distribution: SamplingDistribution, images: int
) -> tuple[Engine, Engine, Compiled]:
    """An engine of compiled rounds, one that launches every operation, and the first's recorder."""
    parts = session.target, session.drafter, distribution, method, images, TABLES
    recorder = Compiled()
    return build_engine(*parts, recorder), build_engine(*parts), recorder


def check(session: Session, method: MethodSettings) -> Compiled:
    """Decode images again and again, by rounds of every size; their state stays where it is."""
    compiled, eager, recorder = engines(session, method, WARM, 1)
    compiled._open(ALIKE[:1])
    places, codes = addresses(compiled), decoded(eager, ALIKE)
    for _ in range(3):
        assert decoded(compiled, ALIKE) == codes
        found = addresses(compiled)
        assert {name: found[name] for name in places} == places
    assert set(recorder.programs) == set(recorder.rounds)  # every size was compiled
    assert recorder.replayed > len(recorder.programs)
    return recorder


def test_a_round_is_one_graph_that_is_compiled_once(session, monkeypatch) -> None:
    monkeypatch.setattr("decoding.batch.visible_slots", lambda used, slots: slots)
    assert len(check(session, MethodSettings(method="jacobi", window=6)).programs) == 2


@only_in_all
@pytest.mark.parametrize("method", METHODS, ids=named)
def test_so_it_is_with_every_method_in_every_size(method, session) -> None:
    assert len(check(session, method).programs) > 1


@only_in_all
@pytest.mark.parametrize("method", METHODS[-3:], ids=named)
def test_so_it_is_at_temperature_0_for_two_images(method, session) -> None:
    compiled, eager, recorder = engines(session, method, GREEDY, 2)
    assert decoded(compiled) == decoded(eager)
    assert recorder.replayed > len(recorder.programs) > 0


@only_in_all
@pytest.mark.parametrize("method", METHODS[-2:], ids=named)
def test_so_it_is_across_row_ends(method, lumina_folder) -> None:
    check(open_lumina(lumina_folder, "64"), method)


def test_these_are_all_methods() -> None:
    assert {method.method for method in METHODS} == set(ALL_METHODS)
