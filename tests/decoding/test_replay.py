"""Rounds that are captured and replayed, against rounds that are launched operation by operation.

What a CUDA graph does is done here by a tape: it holds the operations of one round and the tensors
that they read and write, and knows no Python and no number of the host. Replayed, it must decode
the rest of the image, and other images, as the engine does.
"""

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from browser import only_in_all
from direct import session_reading
from fakes import JUDGING, codes
from small import open_lumina
from test_engine import JOBS, engine_of
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from configs.schema import AdtSettings, MethodSettings
from decoding.graphs import CudaGraphs, Launch
from decoding.images import Job
from decoding.round import ImageInputs, RoundResult, RoundShape
from decoding.sampling import SamplingDistribution
from runs.session import Session

pytestmark = pytest.mark.usefixtures("plain_blocks")


def memory_of(values: Any) -> dict[int, Tensor]:
    """The tensors among values, by where they are in memory."""
    tensors = [value for value in tree_leaves(values) if isinstance(value, Tensor)]
    return {tensor.untyped_storage().data_ptr(): tensor for tensor in tensors}


class Tape(TorchDispatchMode):
    """Runs a program and notes its operations; views, which compute nothing, are left out."""

    def __init__(self, program: Callable, inputs: Tensor):
        super().__init__()
        self.steps: list[tuple[Callable, tuple, dict, list]] = []
        self.inputs = inputs.clone()
        with self:
            self.result = program(self.inputs)

    def __torch_dispatch__(self, operation, types, given=(), named=None) -> Any:
        assert operation is not torch.ops.aten._local_scalar_dense.default, "the host waits"
        found, named = operation(*given, **(named or {})), named or {}
        if operation._schema.is_mutable:
            self.steps.append((operation, given, named, []))
        elif memory_of(found).keys() - memory_of([given, named]):
            self.steps.append((operation, given, named, tree_leaves(found)))
        return found

    def replay(self, inputs: Tensor) -> None:
        self.inputs.copy_(inputs)
        for operation, given, named, kept in self.steps:
            found = tree_leaves(operation(*given, **named))
            for output, new in zip(kept, found if kept else (), strict=True):
                output.copy_(new)


class Tapes(CudaGraphs):
    """Keeps a tape per program and shape; the call that it is made in counts."""

    def __init__(self) -> None:
        super().__init__()
        self.tapes: dict[tuple[str, RoundShape], Tape] = {}
        self.replayed = 0
        self.given: list[list] = []  # inputs of all rounds

    def __call__(self, name: str, shape: RoundShape, program: Callable, inputs: Tensor) -> Any:
        key = name, shape
        self.given += [inputs.tolist()] * (name != "commit")
        if key in self.tapes:
            self.replayed += 1
            self.tapes[key].replay(inputs)
        else:
            self.tapes[key] = Tape(program, inputs)
        return self.tapes[key].result

    def captured(self, name: str, shape: RoundShape) -> bool:
        return (name, shape) in self.tapes

    def forget(self) -> None:
        super().forget()
        self.tapes = {}


class Noted(Launch):
    """Notes the inputs of all rounds."""

    def __init__(self) -> None:
        self.given: list[list] = []

    def __call__(self, name: str, shape: RoundShape, program: Callable, inputs: Tensor) -> Any:
        self.given += [inputs.tolist()] * (name != "commit")
        return super().__call__(name, shape, program, inputs)


GREEDY = SamplingDistribution(temperature=0.0)
# Small trees of few depths: a tape is made of every shape.
METHODS = [
    MethodSettings("ar"),
    MethodSettings("jacobi", window=4),
    MethodSettings("static", tree="mc_sim_7b_63"),
    MethodSettings("static", tree="chain", proposal="sampled", verifier="sampled"),
    MethodSettings("eagle2", depth=2, width=3, nodes=6),
    MethodSettings("eagle2", depth=2, width=2, nodes=4, verifier="rejection"),
    MethodSettings("adt", nodes=8, own=AdtSettings(d_min=1, d_init=1, d_max=2, l_d=1)),
    MethodSettings("recall", depth=3, width=3, nodes=8),
    MethodSettings("eagle_recall", depth=2, width=3, nodes=8, head_depth=1),
    MethodSettings("block", depth=3, width=3, nodes=8),
]
# a chain, a tree that adapts, and two drafters together
FEW = [METHODS[number] for number in (1, 6, 8)]


def named(method: MethodSettings) -> str:
    return f"{method.method}-{method.proposal}-{method.verifier}"


def in_turn(methods: list[MethodSettings], few: list[MethodSettings] = FEW) -> list:
    """The methods as parameters; all but a few run in `make test-all` only."""
    return [pytest.param(m, marks=() if m in few else only_in_all) for m in methods]


def check(session: Session, method: MethodSettings, *parts: Any) -> None:
    """Three images, of which the last one takes over a row, in the same rounds."""
    engine, launched = (engine_of(session, method, *parts) for _ in range(2))
    engine.runner, launched.runner = tapes, noted = Tapes(), Noted()
    for step, wanted in zip(engine.generate(JOBS[:3]), launched.generate(JOBS[:3]), strict=True):
        for found, stats in zip(step.rounds, wanted.rounds, strict=True):
            assert replace(found, top1=()) == replace(stats, top1=())
            assert found.top1 == pytest.approx(stats.top1)
        for image, other in zip(step.finished, wanted.finished, strict=True):
            assert image.job == other.job and torch.equal(image.codes, other.codes)
    assert tapes.given == noted.given
    assert tapes.replayed > len(tapes.tapes) > 0


@pytest.mark.parametrize("method", in_turn(METHODS), ids=named)
def test_replayed_rounds_decode_the_same_tokens(method, session) -> None:
    check(session, method)


@pytest.fixture
def ahead(monkeypatch) -> list[Tensor]:
    """The inputs of rounds that began before the outcome of the last one was read."""
    inputs, made = RoundResult.next_inputs, []
    monkeypatch.setattr(
        RoundResult, "next_inputs", lambda self: made.append(inputs(self)) or made[-1]
    )
    return made


@pytest.mark.parametrize("method", in_turn(METHODS), ids=named)
def test_rounds_begin_early_where_only_the_verdict_decides_what_they_read(
    method, session, ahead
) -> None:
    engine, tokens = engine_of(session, method, 1), session.target.grid.tokens
    engine.runner = tapes = Tapes()
    codes(engine, JOBS[:1])
    numbers = [ImageInputs(*row) for (row,) in tapes.given]
    # not those that may end next to the end of the image, where trees are cut
    far = [row for row in numbers if tokens - row.decided >= 2 * (row.tree.reach + 1)]
    waits = method.method == "adt" or method.proposal == "sampled" or method.verifier == "rejection"
    assert len(ahead) == (0 if waits else len(far)) and far


@pytest.mark.parametrize("method", [METHODS[1]], ids=named)
def test_images_after_an_interruption_are_the_same(method, session, ahead) -> None:
    engine, launched = (engine_of(session, method) for _ in range(2))
    engine.runner = Tapes()
    steps = engine.generate(JOBS[:2])
    while len(ahead) < 2:
        next(steps)
    steps.close()
    assert codes(engine, JOBS[1:4]) == codes(launched, JOBS[1:4])


@pytest.mark.parametrize("method", [METHODS[5]], ids=named)
def test_so_they_do_where_a_kernel_judges(method, session, monkeypatch) -> None:
    """Its numbers are those of the images in flight, which a replayed round reads anew."""
    monkeypatch.setattr(session.target.transformer, "kernels", JUDGING)
    assert engine_of(session, method).verifier.on_device
    check(session, method)


@only_in_all
@pytest.mark.parametrize("method", METHODS[-2:], ids=named)
def test_so_they_do_at_temperature_0_where_the_head_reads_hidden_states(method, session) -> None:
    check(session_reading(session, (1,)), method, 1, GREEDY)


@pytest.mark.parametrize("method", in_turn(METHODS[-2:]), ids=named)
def test_so_they_do_across_row_ends(method, lumina_folder) -> None:
    check(open_lumina(lumina_folder, "64"), method)


def test_longer_prompts_are_captured_again_only_where_the_cache_grows(session) -> None:
    engine, launched = (engine_of(session, METHODS[4], 1) for _ in range(2))
    engine.runner, committed = Tapes(), []
    for words in (1, 2, 32, 33, 34):
        jobs = [Job("0", "a " * words, words)]
        assert codes(engine, jobs) == codes(launched, jobs)
        committed.append({shape.committed for _, shape in engine.runner.tapes})
    assert committed == [{21}, {85}, {85}, {85}, {149}]


def test_shapes_are_rounded_up_with_exact_depth_and_no_row_ends_where_none_are() -> None:
    largest = RoundShape(2, 5, 10, 58, 0, 12, 900, 59, (0, 1, 2, 3, 4, 5))
    small = RoundShape(2, 3, 4, 9, 0, 2, 40)
    rounded = CudaGraphs().round_up(small, largest)
    assert rounded == replace(largest, depth=3, row_ends=0, end_depths=(), uniform=False)
    ending = CudaGraphs().round_up(replace(small, row_ends=1, end_depths=(2,)), largest)
    assert (ending.row_ends, ending.end_depths) == (59, (0, 1, 2, 3, 4, 5))
    same = CudaGraphs().round_up(replace(largest, committed=30), largest)
    assert same == largest and same.uniform


class Unable(CudaGraphs):
    """Graphs on a machine where no program can be captured."""

    def _capture(self, key, program, inputs) -> bool:
        self.broken = True
        return False


def test_where_capture_fails_rounds_are_launched_and_images_are_the_same(session) -> None:
    engine, launched = (engine_of(session, METHODS[4]) for _ in range(2))
    engine.runner = runner = Unable()
    assert codes(engine, JOBS[:3]) == codes(launched, JOBS[:3])
    assert runner.broken


@pytest.fixture
def captures(monkeypatch) -> list[SimpleNamespace]:
    """What torch is asked to capture with, where no GPU is."""
    seen: list[SimpleNamespace] = []
    inside = threading.Lock()

    @contextmanager
    def graph(graph, **given) -> Iterator[None]:
        assert inside.acquire(blocking=False), "torch allows one capture at a time"
        seen.append(SimpleNamespace(**given))
        torch.cuda.current.append(given["stream"])
        time.sleep(0.01)
        yield  # what is raised here leaves the stream current, as in torch
        torch.cuda.current.pop()
        inside.release()

    @contextmanager
    def stream(entered) -> Iterator[None]:
        before = list(torch.cuda.current)
        try:
            yield
        finally:
            torch.cuda.current[:] = before

    made = {"Stream": lambda device: SimpleNamespace(device=device), "graph": graph}
    made |= {"stream": stream, "current": []}
    made |= {"CUDAGraph": lambda: SimpleNamespace(pool=lambda: None, replay=lambda: None)}
    for name, value in made.items():
        monkeypatch.setattr(torch.cuda, name, value, raising=False)
    return seen


def run_twice(graphs: CudaGraphs, device: str = "cpu", program: Callable = torch.clone) -> None:
    """A program is captured in its second round."""
    for _ in range(2):
        graphs(
            program.__name__, RoundShape(1, 0, 0, 0, 0, 1, 8), program, torch.ones(1, device=device)
        )


def test_every_gpu_has_a_stream_of_its_own_to_capture_on(captures) -> None:
    for device in ("cpu", "meta", "cpu"):
        run_twice(CudaGraphs(), device)
    first, other, again = (capture.stream for capture in captures)
    assert (first.device.type, other.device.type) == ("cpu", "meta") and again is first


def test_threads_capture_one_after_the_other_and_go_on_meanwhile(captures) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(run_twice, [CudaGraphs() for _ in range(4)]))
    assert [capture.capture_error_mode for capture in captures] == ["thread_local"] * 4


def test_a_failed_capture_leaves_its_stream_and_frees_the_graphs_before_it(captures) -> None:
    def failing(inputs: Tensor) -> Tensor:
        if torch.cuda.current:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return inputs

    graphs = CudaGraphs()
    run_twice(graphs)
    assert graphs.graphs
    run_twice(graphs, program=failing)
    assert graphs.broken and not graphs.graphs and not torch.cuda.current
