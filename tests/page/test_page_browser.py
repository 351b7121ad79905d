"""The page in a real browser, with the shipped model: from the prompt to both finished images."""

import signal
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.request import urlopen

import pytest
from browser import ALL, needs_browser, only_in_all, serving
from playwright.sync_api import Page

from page.stage import WORDS

pytestmark = needs_browser
PROMPT = "a small yellow star on a grassy green background"
DESK, PHONE = (1280, 1000), (390, 844)
SECONDS = 120_000  # milliseconds: a busy machine draws for half a minute


@dataclass
class Served:
    url: str
    home: Path
    work: Path
    process: subprocess.Popen = field(repr=False)


@pytest.fixture(scope="module")
def served(tmp_path_factory) -> Iterator[Served]:
    """The page of the shipped model, served by a process of its own.

    Its home has the kernels that are compiled already, which takes half a minute.
    """
    root = tmp_path_factory.mktemp("page")
    compiled = Path.home() / ".cache" / "adt-tree"
    for folder in (compiled, root / "home" / ".cache", root / "work"):
        folder.mkdir(parents=True, exist_ok=True)
    (root / "home" / ".cache" / "adt-tree").symlink_to(compiled)
    words = f"--output_dir={root / 'out'}", "--method=jacobi"
    own = {"HOME": str(root / "home"), "OMP_NUM_THREADS": "1"}
    with serving(root / "work", *words, **own) as (address, process):
        yield Served(f"http://{address}/", root / "home", root / "work", process)


@dataclass
class Visit:
    """An open page, what it asked the network for, and its errors."""

    page: Page
    asked: list[str]
    faults: list[str]


@pytest.fixture
def visit(served, chromium, request) -> Iterator[Visit]:
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
    panels = (page.locator(f".panel.{name}") for name in ("plain", "fast"))
    return [int(panel.get_attribute("data-decided")) for panel in panels]


@pytest.mark.parametrize(
    "visit", [DESK, pytest.param(PHONE, marks=only_in_all)], indirect=True, ids=["desk", "phone"]
)
def test_from_the_prompt_to_both_images(served, visit):
    page = visit.page
    draw(page, PROMPT)
    page.locator(".stage[data-state=drawing]").wait_for(timeout=SECONDS)
    begun = "document.querySelector('.panel.fast').dataset.decided > 60"
    page.wait_for_function(begun, timeout=SECONDS)
    before = decided(page)
    assert before[0] < 256 and "take turns" in page.locator(".verdict").text_content()
    page.locator(".stage[data-state=done]").wait_for(timeout=SECONDS)
    assert decided(page) == [256, 256] and before[1] < 256
    assert page.locator(".stage").get_attribute("data-same") == "yes"
    title = page.locator(".answer")
    assert title.text_content().startswith("Identical image, ")
    assert title.bounding_box()["y"] < page.locator(".panel.plain").bounding_box()["y"]
    size = title.evaluate("found => parseFloat(getComputedStyle(found).fontSize)")
    assert size >= (24 if page.viewport_size == {"width": DESK[0], "height": DESK[1]} else 20)
    assert page.locator(".panel.fast .name").text_content() == WORDS["jacobi"]
    label = f"Image of “{PROMPT}” by {WORDS['jacobi']}"
    assert page.get_by_role("img", name=label, exact=True).count() == 1
    plain, fast = (
        int(page.locator(f".panel.{name} .forwards").text_content()) for name in ("plain", "fast")
    )
    assert plain == 256 and fast < 200
    assert f"{fast} forward passes instead of 256" in page.locator(".reason").text_content()
    pixels = "canvas => [...canvas.getContext('2d').getImageData(0, 0, 64, 64).data]"
    page.wait_for_timeout(500)  # the last pictures are decoded
    one, other = (page.locator(f".panel.{name} .image").evaluate(pixels)
                  for name in ("plain", "fast"))  # fmt: skip
    assert one == other and len(set(one)) > 20
    link = page.get_by_role("link", name="Link to this image")
    assert link.evaluate("shown => shown.href") == page.url  # to keep it with its settings
    if ALL:
        page.goto(page.url)  # who opens it sees that image, not the example
        page.locator(".stage[data-state=drawing]").wait_for(timeout=SECONDS)
        page.locator(".stage[data-state=done]").wait_for(timeout=SECONDS)
        assert f"“{PROMPT}”" in page.locator(".about").text_content()
        page.wait_for_timeout(500)
        assert page.locator(".panel.fast .image").evaluate(pixels) == one
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide == page.viewport_size["width"]
    boxes = page.locator(".stage dd, .stage dt, .verdict, .stage h3, .legend li").evaluate_all(
        "found => found.map(e => e.scrollWidth - e.clientWidth)"
    )
    assert max(boxes) <= 0  # no text is wider than its place
    outside = [url for url in visit.asked if not url.startswith((served.url, "data:", "blob:"))]
    assert outside == [] and visit.faults == []


@only_in_all
def test_visitors_wait_for_each_other(served, visit, chromium):
    slowly(visit.page)
    draw(visit.page, PROMPT)
    visit.page.locator(".stage[data-state=drawing]").wait_for(timeout=SECONDS)
    second = chromium.new_page()
    second.goto(served.url)
    draw(second, PROMPT)
    second.locator(".stage[data-state=waiting]").wait_for(timeout=SECONDS)
    visit.page.close()  # who leaves makes room
    second.locator(".stage[data-state=done]").wait_for(timeout=SECONDS)
    second.close()


def slowly(page: Page, on: bool = True) -> None:
    """Set the pauses between rounds, in the settings."""
    box = page.get_by_label("Slow: show every round")
    if not box.is_visible():
        page.get_by_role("button", name="Settings").click()
    box.set_checked(on)


def state(page: Page) -> str:
    return page.locator(".stage").get_attribute("data-state")


@only_in_all
def test_stop_works_at_any_moment(visit):
    page = visit.page
    slowly(page)  # so that no image is finished before its Stop
    stop = page.get_by_role("button", name="Stop")
    for moment in (0, 20, 50, 100, 200, 400, 700, 1000, 1500, 2000, 2300, 2500):
        draw(page, PROMPT)
        page.wait_for_timeout(moment)
        stop.click()
        page.locator(".stage[data-state=stopped]").wait_for(timeout=20_000)
        page.wait_for_timeout(400)  # values that were under way have come
        assert state(page) == "stopped", f"stopped after {moment} ms"
        assert stop.is_disabled()
    slowly(page, False)
    draw(page, PROMPT)  # the machine is free
    page.locator(".stage[data-state=done]").wait_for(timeout=SECONDS)


@only_in_all
@pytest.mark.parametrize("visit", [DESK, PHONE], indirect=True, ids=["desk", "phone"])
def test_a_finished_example_is_there_first(visit):
    page = visit.page
    assert state(page) == "example" and decided(page) == [256, 256]
    title = page.get_by_role("heading", name="Identical image in")
    box = title.bounding_box()
    assert 0 < box["y"] < page.viewport_size["height"] - box["height"]  # without scrolling
    assert "passes instead of 256" in title.text_content()
    assert "Press Generate" in page.locator(".reason").text_content()
    assert page.locator(".seconds").all_text_contents() == ["–", "–"]  # of no machine


_FOCUSED = """() => {
  const found = document.activeElement, style = getComputedStyle(found);
  const label = found.getAttribute('aria-label') || found.labels?.[0]?.textContent
    || found.textContent;
  return [found.tagName, label.trim(), parseFloat(style.outlineWidth), style.outlineStyle];
}"""


@only_in_all
def test_the_keyboard_alone_is_enough(visit):
    page = visit.page
    page.get_by_role("button", name="Settings").click()
    page.locator("body").evaluate("found => { document.activeElement.blur(); scrollTo(0, 0); }")
    page.mouse.click(5, 5)
    named = []
    for _ in range(30):
        page.keyboard.press("Tab")
        tag, label, width, style = page.evaluate(_FOCUSED)
        if tag == "BODY":
            break
        assert label, f"{tag} without a label"
        assert width >= 2 and style != "none", f"{tag} {label}: no focus ring"
        named.append(label)
    said = " | ".join(named)
    for part in ("Prompt", "Fast method", "Generate", "Seed", "Temperature", "Slow", "Top-k"):
        assert part in said, said
    slowly(page)
    page.get_by_label("Prompt").focus()
    page.keyboard.press("Enter")  # generates
    page.locator(".stage[data-state=drawing]").wait_for(timeout=SECONDS)
    page.get_by_role("button", name="Stop").focus()
    page.keyboard.press("Enter")
    page.locator(".stage[data-state=stopped]").wait_for(timeout=SECONDS)
    focused = "document.activeElement.id"
    assert page.evaluate(focused) == "generate"  # Stop has nothing to do now
    page.keyboard.press("Enter")
    page.locator(".stage[data-state=drawing]").wait_for(timeout=SECONDS)
    assert page.evaluate(focused) == "stop"
    page.keyboard.press("Enter")
    page.locator(".stage[data-state=stopped]").wait_for(timeout=SECONDS)


def test_the_policy_is_sent_nothing_is_written_elsewhere_and_ctrl_c_ends_it(served):
    """In one test, since after its end nothing is served."""
    with urlopen(served.url, timeout=60) as answer:
        assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert [path.name for path in served.home.rglob("*")] == [".cache", "adt-tree"]
    assert [*served.work.rglob("*")] == []
    pid = served.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children")
    assert not children.exists() or children.read_text() == ""  # none can outlive it
    served.process.send_signal(signal.SIGINT)
    started = time.monotonic()
    assert served.process.wait(60) in (0, 130) and time.monotonic() - started < 60
    assert "Traceback" not in served.process.stdout.read()
