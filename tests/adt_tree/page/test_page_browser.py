"""The page in a real browser, with the shipped model: from the prompt to both finished images."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import pytest
from browser import BROWSER, needs_browser, only_in_all
from playwright.sync_api import Browser, Page, sync_playwright

from configs.schema import ROOT

pytestmark = needs_browser
PROMPT = "a small yellow star on a grassy background"
DESK, PHONE = (1280, 1000), (390, 844)
SECONDS = 120_000  # milliseconds: a busy machine draws for half a minute


@dataclass
class Served:
    """A running page and the folders of its process."""

    url: str
    home: Path
    work: Path
    process: subprocess.Popen = field(repr=False)


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    """The page of the shipped model, served by a process of its own."""
    root = tmp_path_factory.mktemp("page")
    for name in ("home", "work"):
        (root / name).mkdir()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Ctrl-C is not ignored, as it is in what a shell runs in the background.
    words = ["demo", f"--port={port}", f"--output_dir={root / 'out'}", "--method=jacobi"]
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "main.py"), *words, "--device=cpu"],
        cwd=root / "work", stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"HOME": str(root / "home"), "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    try:
        line = process.stdout.readline()
        assert line == f"http://127.0.0.1:{port}/: the page; Ctrl-C ends it\n", line
        yield Served(line.split(": ")[0], root / "home", root / "work", process)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@dataclass
class Visit:
    """An open page, what it asked the network for, and its errors."""

    page: Page
    asked: list[str]
    faults: list[str]


@pytest.fixture
def visit(served, chromium, request) -> Iterator[Visit]:
    """The page at a size, or on a desk."""
    width, height = getattr(request, "param", DESK)
    page = chromium.new_page(viewport={"width": width, "height": height})
    asked, faults = [], []
    page.on("request", lambda sent: asked.append(sent.url))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("console", lambda said: faults.append(said.text) if said.type == "error" else None)
    page.goto(served.url)
    page.locator(".stage").wait_for(timeout=SECONDS)
    yield Visit(page, asked, faults)
    page.close()


def draw(page: Page, prompt: str) -> None:
    page.get_by_label("Prompt").fill(prompt)
    page.get_by_role("button", name="Generate", exact=True).click()


def decided(page: Page) -> list[int]:
    return [
        int(page.locator(f".panel.{name}").get_attribute("data-decided"))
        for name in ("plain", "fast")
    ]


@pytest.mark.parametrize(
    "visit", [DESK, pytest.param(PHONE, marks=only_in_all)], indirect=True, ids=["desk", "phone"]
)
def test_from_the_prompt_to_both_images(served, visit):
    page = visit.page
    draw(page, PROMPT)
    page.wait_for_function(
        "document.querySelector('.panel.fast').dataset.decided > 60", timeout=SECONDS
    )
    before = decided(page)
    assert before[0] < 256 and "in turns" in page.locator(".verdict").text_content()
    page.locator(".stage[data-state=done]").wait_for(timeout=SECONDS)
    assert decided(page) == [256, 256] and before[1] < 256
    assert page.locator(".stage").get_attribute("data-same") == "yes"
    assert page.locator(".answer").text_content() == "Same image: yes"
    plain, fast = (
        int(page.locator(f".panel.{name} .forwards").text_content()) for name in ("plain", "fast")
    )
    assert plain == 256 and fast < 200
    pixels = "canvas => [...canvas.getContext('2d').getImageData(0, 0, 64, 64).data]"
    page.wait_for_timeout(500)  # the last pictures are decoded
    one, other = (page.locator(f".panel.{name} .image").evaluate(pixels)
                  for name in ("plain", "fast"))  # fmt: skip
    assert one == other and len(set(one)) > 20
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide == page.viewport_size["width"]
    boxes = page.locator(".stage dd, .stage dt, .verdict, .legend li").evaluate_all(
        "found => found.map(e => e.scrollWidth - e.clientWidth)"
    )
    assert max(boxes) <= 0  # no text is wider than its place
    outside = [url for url in visit.asked if not url.startswith((served.url, "data:", "blob:"))]
    assert outside == [] and visit.faults == []


@only_in_all
@pytest.mark.parametrize("visit", [PHONE], indirect=True, ids=["phone"])
def test_a_long_prompt_is_refused_in_words(visit):
    draw(visit.page, "word " * 300)
    visit.page.locator(".stage[data-state=refused]").wait_for(timeout=SECONDS)
    words = visit.page.locator(".verdict")
    said = "Error: prompt: expected a shorter prompt, got the prompt has 1204"
    assert said in words.text_content()
    visit.page.wait_for_timeout(1500)  # it scrolls there
    box = words.bounding_box()
    assert 0 <= box["y"] < PHONE[1] - box["height"]


@only_in_all
def test_visitors_wait_for_each_other(served, visit, chromium):
    visit.page.get_by_label("Slow: show every round").check()
    draw(visit.page, PROMPT)
    visit.page.locator(".stage[data-state=drawing]").wait_for(timeout=SECONDS)
    second = chromium.new_page()
    second.goto(served.url)
    draw(second, PROMPT)
    second.locator(".stage[data-state=waiting]").wait_for(timeout=SECONDS)
    visit.page.close()  # who leaves makes room
    second.locator(".stage[data-state=done]").wait_for(timeout=SECONDS)
    second.close()


@only_in_all
def test_stop_ends_the_drawing_and_the_next_visitor_draws(visit):
    page = visit.page
    page.get_by_label("Slow: show every round").check()
    draw(page, PROMPT)
    page.wait_for_function(
        "document.querySelector('.panel.fast').dataset.decided > 5", timeout=SECONDS
    )
    page.get_by_role("button", name="Stop").click()
    page.locator(".stage[data-state=stopped]").wait_for(timeout=SECONDS)
    left = decided(page)
    page.wait_for_timeout(1500)
    assert decided(page) == left and left[0] < 256
    page.get_by_label("Slow: show every round").uncheck()
    draw(page, PROMPT)
    page.locator(".stage[data-state=done]").wait_for(timeout=SECONDS)


def test_the_policy_is_sent_and_nothing_is_written_elsewhere(served):
    with urlopen(served.url, timeout=60) as answer:
        assert "default-src 'self'" in answer.headers["content-security-policy"]
    kept = [path for path in served.home.rglob("*") if path.is_file()]
    assert all(path.match(".cache/adt-tree/kernels-*.so") for path in kept)  # of --compile
    assert [*served.work.rglob("*")] == []


def test_ctrl_c_ends_it(served):
    served.process.send_signal(signal.SIGINT)
    started = time.monotonic()
    assert served.process.wait(60) in (0, 130) and time.monotonic() - started < 60
    assert "Traceback" not in served.process.stdout.read()
