"""Learning on a CUDA stream of its own, on a machine without one: a stand-in notes the order."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from small import Sizes, write_checkpoint

from configs.methods import MethodSettings
from configs.schema import RunSettings
from runs import learning
from runs.beside import Beside, Between, updates_on
from runs.drawing import draw
from runs.generate import generate_images, open_real_session
from runs.prompts import prompt_items
from support.json_files import read_lines

GPU = torch.device("cuda:0")
GRAFT = MethodSettings(method="graft", size="fixed", nodes=6, window=4)
pytestmark = pytest.mark.usefixtures("one_thread")


class Stream:
    def __init__(self, name: str, log: list[str]):
        self.name, self.log = name, log

    def wait_stream(self, other: Stream) -> None:
        self.log.append(f"{self.name} waits for {other.name}")


class Event:
    def __init__(self, cuda: Cuda):
        self.cuda, self.left = cuda, cuda.lasts

    def record(self, stream: Stream) -> None:
        self.cuda.log.append(f"ends on {stream.name}")

    def query(self) -> bool:
        self.left -= 1
        return self.left < 0

    def synchronize(self) -> None:
        self.cuda.log.append("the host waits")


class Cuda:
    """What `Beside` asks of `torch.cuda`; updates end when they were asked after `lasts` times."""

    def __init__(self, lasts: int):
        self.log: list[str] = []
        self.lasts, self.main = lasts, Stream("main", self.log)

    def Stream(self, device: torch.device) -> Stream:
        return Stream("side", self.log)

    def Event(self) -> Event:
        return Event(self)

    def current_stream(self, device: torch.device) -> Stream:
        return self.main

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        self.log.append(f"on {stream.name}")
        yield
        self.log.append("on main")


def test_an_update_follows_what_the_main_stream_was_given_before() -> None:
    cuda = Cuda(lasts=2)
    updates, notes = Beside(GPU, cuda), [object()]
    assert not updates.busy and updates.overlaps
    with updates.run(notes):
        cuda.log.append("update")
    assert cuda.log == ["side waits for main", "on side", "update", "on main", "ends on side"]
    assert [updates.busy, updates.read is notes] == [True, True]
    assert [updates.busy, updates.busy, updates.read] == [True, False, None]
    updates.wait()  # for nothing
    assert "the host waits" not in cuda.log


def test_one_can_wait_for_it() -> None:
    cuda = Cuda(lasts=9)
    updates = Beside(GPU, cuda)
    with updates.run([]):
        pass
    updates.wait()
    assert cuda.log[-1] == "the host waits" and not updates.busy


def test_on_a_cpu_updates_are_made_at_once() -> None:
    updates = updates_on(torch.device("cpu"))
    assert isinstance(updates, Between) and not updates.overlaps
    with updates.run([]):
        assert not updates.busy
    updates.wait()


@pytest.fixture
def settings(tmp_path, monkeypatch) -> RunSettings:
    monkeypatch.setattr(learning, "WINDOW", 4)
    folder = write_checkpoint(tmp_path / "model", Sizes(side=4))
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"a {n} cat\n" for n in range(16)))
    return RunSettings(prompt=str(prompts), model_path=str(folder), dtype="fp64", device="cpu",
                       method=GRAFT, batch_size=3, output_dir=str(tmp_path / "run"), learn=True,
                       learn_share=0.5, drafter_path="new")  # fmt: skip


@pytest.fixture
def clock(monkeypatch) -> list[float]:
    """The learner's clock, which tests put forward."""
    now = [0.0]
    clocks = SimpleNamespace(perf_counter=lambda: now[0], time=time.time)
    monkeypatch.setattr(learning, "time", clocks)
    return now


def noted(learner: learning.Learner, cuda: Cuda, monkeypatch) -> list[str]:
    """Let a learner's steps stand in the log; returns it."""
    update, publish, merge = learner.lessons.update, learner._publish, learner._merge
    monkeypatch.setattr(learner.lessons, "update", lambda: (cuda.log.append("update"), update()))
    monkeypatch.setattr(learner, "_publish", lambda: (cuda.log.append("publish"), publish()))
    monkeypatch.setattr(learner, "_merge", lambda: (cuda.log.append("save"), merge()))
    return cuda.log


def test_rounds_go_on_beside_updates(settings, clock, monkeypatch) -> None:
    """Weights are taken over once they are finished; only a save waits for them."""
    monkeypatch.setattr(learning, "pays", lambda *_: True)
    session, learner = learning.open_learner(settings, 16, 0, open_real_session)
    cuda = Cuda(lasts=5)  # asked twice a round
    learner.updates = Beside(session.target.device, cuda)
    log, weights = noted(learner, cuda, monkeypatch), learner.network.fc.weight
    rounds = []
    for step in draw(session, prompt_items(settings), 0):
        clock[0] += 1
        begun, before = len(log), weights.clone()
        learner.after(step)
        rounds.append(log[begun:])
        assert torch.equal(weights, before) == ("publish" not in rounds[-1])
    begin = ["side waits for main", "on side", "update", "on main", "ends on side"]
    told = [line for line in log if line in ("update", "publish", "the host waits", "save")]
    assert told.count("publish") > 2
    for line, following in pairwise(told):
        if line == "update":
            assert following in ("publish", "the host waits")  # never two in flight
        if following == "the host waits":
            assert line == "update"
    assert all(told[at + 1] == "save" for at, line in enumerate(told) if line == "the host waits")
    alone = [lines for lines in rounds if "update" in lines and "save" not in lines]
    assert alone and all(lines[-5:] == begin for lines in alone)
    assert any(not lines for lines in rounds)  # an update was in flight, and nothing waited
    learner.end()
    assert learner.updates.busy is False


def test_its_share_is_of_the_time_of_the_rounds(settings, clock, monkeypatch) -> None:
    """By a clock on which every round takes a second, and all else no time."""
    monkeypatch.setattr(learning, "pays", lambda *_: True)
    session, learner = learning.open_learner(settings, 16, 0, open_real_session)
    learner.updates = Beside(session.target.device, Cuda(lasts=3))
    drawing = beside = 0
    for step in draw(session, prompt_items(settings), 0):
        clock[0] += 1
        flew = learner.beside
        learner.after(step)
        if learner.spans:
            drawing, beside = drawing + 1, beside + flew
    longest = 2  # rounds of an update that began within the share
    assert 0 < beside <= settings.learn_share * drawing + longest * len(learner.spans)
    assert all(0 < span.learning <= 0.5 * span.drawing + longest for span in learner.spans[1:])


def test_images_are_those_of_plain_decoding(settings, monkeypatch) -> None:
    monkeypatch.setattr(learning, "updates_on", lambda device: Beside(device, Cuda(lasts=5)))
    plain = replace(settings, method=MethodSettings("ar"), learn=None, learn_share=None,
                    drafter_path=None, output_dir=settings.output_dir + "_plain")  # fmt: skip
    found = []
    for run in (plain, settings):
        generate_images(run)
        lines = read_lines(Path(run.output_dir) / "records.jsonl")
        found.append({line["id"]: line["tokens_sha256"] for line in lines})
    assert found[0] == found[1] and len(found[0]) == 16
    text = (Path(settings.output_dir) / "learned/log.jsonl").read_text()
    log = [json.loads(line) for line in text.splitlines()]
    assert log[0]["updates"] == 0 < log[-1]["updates"]
