"""Rounds that are recorded and replayed, against rounds that are launched operation by operation.

What a CUDA graph does is done here by a trace: it holds the operations of one round and the tensors
that they read and write, and knows no Python and no number of the host. Replayed, it must decode
the rest of the image, and other images, as the engine does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from direct import session_reading
from small import open_lumina
from test_engine import JOBS
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from configs.schema import MethodSettings
from decoding.engine import Engine
from decoding.flight import Job
from decoding.policies.base import Shape
from decoding.recorder import rounded, visible_slots
from decoding.sampling import SamplingDistribution
from decoding.start import Sizes
from decoding.transfer import on_device, recording, to_host
from runs.methods import build_engine
from runs.session import Session

pytestmark = pytest.mark.usefixtures("plain_blocks")


class Traces:
    """A recorder that keeps a trace per size; the traced round counts."""

    def __init__(self) -> None:
        self.traces: dict[Sizes, Callable[[Tensor], Tensor]] = {}
        self.last: dict[Sizes, Any] = {}
        self.replayed = 0

    def __call__(self, sizes: Sizes, program: Callable, table: Tensor) -> tuple[Any, Tensor]:
        if sizes in self.traces:
            self.replayed += 1
            return self.last[sizes], self.traces[sizes](table)
        with recording():
            self.traces[sizes] = make_fx(lambda numbers: self._keep(sizes, program, numbers))(table)
        return self.last[sizes], self.found

    def _keep(self, sizes: Sizes, program: Callable, numbers: Tensor) -> Tensor:
        self.last[sizes], self.found = program(numbers)
        return self.found

    def forget(self) -> None:
        self.traces.clear()


GREEDY, WARM = SamplingDistribution(temperature=0.0), SamplingDistribution()
METHODS = [
    MethodSettings(method="ar"),
    MethodSettings(method="jacobi", window=6),
    MethodSettings(method="jacobi", window=6, proposal="sampled"),
    MethodSettings(method="static", tree="mc_sim_7b_63"),
    MethodSettings(method="eagle2", depth=3, width=3, nodes=8),
    MethodSettings(method="adt"),
    MethodSettings(method="adt", proposal="topk"),
    MethodSettings(method="recall", depth=4, width=3, nodes=8, window=6),
    MethodSettings(method="eagle_recall", depth=4, width=3, nodes=8, head_depth=2),
    MethodSettings(method="block", depth=4, width=3, nodes=8, window=6),
]


def decoded(engine: Engine, jobs: list[Job] = JOBS) -> dict[str, list[int]]:
    steps = engine.generate(jobs)
    return {image.job.id: image.codes.tolist() for step in steps for image in step.finished}


def named(method: MethodSettings) -> str:
    return f"{method.method}-{method.proposal}-{method.verifier}"


@pytest.fixture(autouse=True)
def few_sizes(monkeypatch) -> None:
    """Every round has the largest size, since it takes seconds to trace one."""
    monkeypatch.setattr("decoding.batch.rounded", lambda shape, largest: largest)
    monkeypatch.setattr("decoding.batch.visible_slots", lambda used, slots: slots)


@pytest.mark.parametrize("method", METHODS, ids=named)
def test_replayed_rounds_decode_the_same_tokens(method, session) -> None:
    check(session, method, WARM, 2)


@pytest.mark.parametrize("method", METHODS[-3:], ids=named)
def test_so_they_do_at_temperature_0_for_a_single_image(method, session) -> None:
    check(session, method, GREEDY, 1)


@pytest.mark.parametrize("method", METHODS[-2:], ids=named)
def test_so_they_do_where_the_head_reads_hidden_states(method, session) -> None:
    check(session_reading(session, (1,)), method, WARM, 2)


@pytest.mark.parametrize("method", METHODS[-1:], ids=named)
def test_so_they_do_across_row_ends(method, lumina_folder) -> None:
    check(open_lumina(lumina_folder, "64"), method, WARM, 2)


def test_rounds_with_a_rule_of_the_host_are_launched(session) -> None:
    method = MethodSettings(method="eagle2", depth=3, width=3, nodes=8, verifier="rejection")
    traces, parts = Traces(), (session.target, session.drafter, WARM, method, 2)
    engine = build_engine(*parts, recorder=traces)
    assert decoded(engine) == decoded(build_engine(*parts)) and not traces.traces


def test_later_images_are_replayed_from_the_records_of_earlier_ones(session) -> None:
    method, traces = METHODS[1], Traces()
    engine = build_engine(session.target, session.drafter, WARM, method, 1, recorder=traces)
    first, found = decoded(engine), dict(traces.traces)
    traced = traces.replayed
    assert decoded(engine) == first and traces.traces == found
    assert traces.replayed > 2 * traced


def test_a_number_of_the_host_is_refused_in_a_record() -> None:
    with recording(), pytest.raises(AssertionError):
        on_device([1], torch.device("cpu"))
    with recording(), pytest.raises(AssertionError):
        to_host(torch.zeros(1))


def test_sizes_come_in_steps_up_to_the_largest() -> None:
    largest = Shape(5, 10, 58, 16)
    assert rounded(Shape(5, 10, 58, 16), largest) == largest
    assert rounded(Shape(3, 5, 20, 1), largest) == Shape(4, 8, 32, 8)
    assert rounded(Shape(0, 1, 58, 0), largest) == Shape(0, 4, 58, 0)


def test_attention_reads_at_most_a_quarter_more_than_is_used() -> None:
    for used in range(1, 3000):
        visible = visible_slots(used, 2500) if used <= 2500 else 2500
        assert min(used, 2500) <= visible <= max(64 + used, 1.25 * used)
    assert len({visible_slots(used, 2500) for used in range(1, 2501)}) < 25


def check(
    session: Session, method: MethodSettings, distribution: SamplingDistribution, images: int
) -> None:
    def engine(recorder: Traces | None) -> Engine:
        parts = session.target, session.drafter, distribution, method, images
        return build_engine(*parts, recorder=recorder)

    traces = Traces()
    assert decoded(engine(traces)) == decoded(engine(None))
    assert traces.replayed > len(traces.traces) > 0
