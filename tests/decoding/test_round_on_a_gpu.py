"""Rounds on a GPU that is not there: tensors without numbers, on a fake CUDA device.

Such a tensor refuses what would make the host wait (`item`, `bool`, `tolist`, `nonzero`, an index
by a mask) and to be mixed with the CPU's. So these rounds show that the one announced transfer,
which is replaced here, is the only wait, and that everything is on the target's device.
"""

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from fakes import JUDGING, Padded
from small import open_lumina
from test_replay import FEW, in_turn, named
from test_replay import METHODS as REPLAYED
from torch import Tensor, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from configs.model import EngineSettings
from configs.schema import MethodSettings
from decoding.engine import Engine
from decoding.images import Job
from decoding.policies.dynamic import DynamicTree
from decoding.stopwatch import Stopwatch
from runs.session import Session, open_session
from support import constants

pytestmark = pytest.mark.usefixtures("plain_blocks")

GPU = torch.device("cuda:0")
JOBS = [Job("0", "a cat", 3), Job("1", "three small dogs", 4)]
METHODS = [
    MethodSettings("adt", proposal="topk"),
    MethodSettings("static", tree="chain"),
    *REPLAYED,  # rules have a kernel: others judge trees on the host
]


def empty_tensor(values, dtype=None, device=None, **_flags) -> Tensor:
    """As torch.tensor, without the numbers: with them a fake mode would ask a driver to copy."""
    array = np.asarray(values)
    kinds = {"b": torch.bool, "i": torch.int64, "f": torch.get_default_dtype()}
    return torch.empty(array.shape, dtype=dtype or kinds[array.dtype.kind], device=device or "cpu")


def transferred(values: Tensor) -> np.ndarray:
    """What the announced transfer could bring: images that accept different numbers of drafts."""
    rows = np.zeros(tuple(values.shape))
    if values.ndim == 1:
        return rows  # the first code; no NaN in the prefill
    rows[:, 0] = [image % 2 for image in range(len(rows))]  # accepted
    return rows


class Transferred:
    """The same while the device goes on."""

    def __init__(self, values: Tensor):
        self.read = lambda: transferred(values)


def move(module: nn.Module) -> None:
    """Replace the parameters by fake ones on the fake GPU; called in a fake mode."""
    for part in module.modules():
        for name, weight in part._parameters.items():
            if weight is not None:
                moved = torch.empty(weight.shape, dtype=weight.dtype, device=GPU)
                part._parameters[name] = nn.Parameter(moved, requires_grad=False)
        if hasattr(part, "packed"):
            part.packed = None


@pytest.fixture
def fake_gpu(monkeypatch) -> FakeTensorMode:
    monkeypatch.setattr(torch, "tensor", empty_tensor)
    # without its memory of other modes' tensors
    for name in ("_constant", "_arange", "_numbers", "_identity"):
        made = getattr(constants, name).__wrapped__
        monkeypatch.setattr(f"support.constants.{name}", made)
    monkeypatch.setattr("decoding.images.to_host", transferred)
    monkeypatch.setattr("decoding.engine.HostCopy", Transferred)
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: self)
    monkeypatch.setattr(Stopwatch, "mark", lambda self: time.perf_counter())
    return FakeTensorMode()


def on_fake_gpu(session: Session, mode: FakeTensorMode) -> Session:
    with mode:
        move(session.target.transformer)
        move(session.drafter)
    session.target.device, session.target.transformer.kernels = GPU, JUDGING
    return session


def decode(build: Callable[[], Engine], mode: FakeTensorMode) -> None:
    """The prompts of all jobs and two rounds, of which one follows another."""
    with mode:
        engine = build()
        engine._open(JOBS)
        engine.watch.cuda = False  # events need a driver
        engine.runner = Padded()
        engine.images.admit(iter(JOBS))
        for _ in range(2):
            engine._step()


@pytest.fixture
def session(checkpoint, fake_gpu) -> Session:
    given = {"model_path": str(checkpoint), "device": "cpu", "batch_size": 2}
    adt = MethodSettings(method="adt")
    return on_fake_gpu(open_session(EngineSettings(method=adt, **given)), fake_gpu)


@pytest.mark.parametrize("method", in_turn(METHODS, FEW[:2]), ids=named)
def test_a_round_waits_once_and_stays_on_its_device(method, session, fake_gpu) -> None:
    decode(lambda: session.open_engine(method), fake_gpu)


@pytest.mark.parametrize("method", in_turn(METHODS[-2:]), ids=lambda m: m.method)
def test_so_it_does_across_row_ends_where_the_head_reads_hidden_states(
    method, lumina_folder, fake_gpu
) -> None:
    session = on_fake_gpu(open_lumina(lumina_folder, "64"), fake_gpu)
    with fake_gpu:
        session.drafter.read_layers((1,))
        session.drafter.requires_grad_(False)
    decode(lambda: session.open_engine(method, images=2), fake_gpu)


def test_a_wait_in_a_round_is_seen(session, fake_gpu, monkeypatch) -> None:
    grow = DynamicTree.grow

    def asking(policy, round, *parts):
        tree = grow(policy, round, *parts)
        assert tree.levels.max() > 0
        return tree

    monkeypatch.setattr(DynamicTree, "grow", asking)
    with pytest.raises(DataDependentOutputException):
        decode(lambda: session.open_engine(METHODS[-1]), fake_gpu)
