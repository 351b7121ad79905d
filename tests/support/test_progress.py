"""What a log and a terminal show of a command that takes long."""

import io
import re
import sys
import time

import pytest
from fake_session import FakeEngine

from decoding.images import Job
from support import progress as module
from support.progress import DecodingProgress, Progress

STAMP = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\] "


@pytest.fixture
def fast_log(monkeypatch):
    """A line every hundredth of a second."""
    monkeypatch.setattr(module, "_pauses", lambda: iter([0.01] * 1000))


def wait_for(capsys, text: str) -> list[str]:
    """Return the lines of the log up to one that holds a text."""
    said, until = "", time.monotonic() + 10
    while text not in said and time.monotonic() < until:
        time.sleep(0.005)
        said += capsys.readouterr().err
    assert text in said
    return [re.sub(STAMP, "", line) for line in said.splitlines() if re.match(STAMP, line)]


def test_a_log_has_a_line_at_once_and_others_while_nothing_happens(fast_log, capsys) -> None:
    with DecodingProgress("generating 4 images into out", 5, done=1) as shown:
        first, *_, last = wait_for(capsys, "loading")
        assert first == "generating 4 images into out"
        assert last == "1/5 images, loading the model"
        for step in FakeEngine().generate(Job(str(n), "p", n) for n in range(2)):
            shown.show(step)
        line = wait_for(capsys, "3/5")[-1]
    rates = r"[\d,]+ images/h, (\d+ s left|finishing), [\d.]+ tokens/s"
    assert re.fullmatch(rf"3/5 images, {rates}, tau 4\.00", line)
    capsys.readouterr()
    time.sleep(0.05)
    assert capsys.readouterr().err == "", "a line after the end"


def test_the_time_left_counts_tokens_of_unfinished_images(monkeypatch) -> None:
    """And after a resume only those of this run."""
    clock = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: clock[0])
    shown = DecodingProgress("generating", 10, done=6, shown=False)
    shown.begin(16)
    steps = FakeEngine().generate(Job(str(n), "p", n) for n in range(4))
    clock[0] = 10.0
    shown.show(next(steps))  # of two images, 4 tokens each and those of their prefill
    assert "54 s left" in shown._state() and shown.done == 6
    for _ in range(3):
        clock[0] += 10
        shown.show(next(steps))
    assert shown.done == 8 and "left" in shown._state()


def test_without_a_total_and_with_a_limit_of_time(fast_log, capsys) -> None:
    with Progress("encoding") as shown:
        shown.update(2, "0 skipped")
        shown.update(0, "1 skipped")
        line = wait_for(capsys, "1 skipped")[-1]
    assert re.fullmatch(r"2 images, [\d,]+ images/h, 1 skipped", line)
    one = Progress("", shown=False)
    one.done = 1
    assert one._state().startswith("1 image, ")
    one.total = 1
    assert one._state().startswith("1/1 image, ")
    with Progress("trying") as shown:
        shown.limit = 7200.0
        shown.update()
        assert re.search(r"2 h 0 min left, until \w+ \d\d:\d\d$", wait_for(capsys, " left")[-1])


def test_a_terminal_has_a_bar(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal := io.StringIO())
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    with DecodingProgress("generating 2 images", 2) as shown:
        shown.say("warming up")
        shown.note("a remark")
        for step in FakeEngine().generate(Job(str(n), "p", n) for n in range(2)):
            shown.show(step)
    text = terminal.getvalue()
    assert text.startswith("generating 2 images\n")
    assert "warming up" in text and "a remark\n" in text
    assert "2/2" in text and "tokens/s, tau 4.00" in text


def test_what_is_not_shown_prints_nothing(fast_log, capsys) -> None:
    with Progress("generating", 2, shown=False) as shown:
        shown.say("warming up")
        shown.note("a remark")
        shown.update(2)
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
