"""The report in a real browser, from disk and without a network: desk, phone and paper."""

import html
import json
import re
import subprocess
from pathlib import Path

import pytest
from browser import BROWSER, needs_browser
from made_runs import scenes, write_pair

import main

DESK, PHONE, PAPER = 1280, 390, 703  # pixels; paper: A4 without its margins
COUNT = 12

pytestmark = [needs_browser, pytest.mark.usefixtures("one_thread")]

# A frame may have any width, a window of Chromium has at least 500 pixels. What a frame loads is
# listed in its own resources.
_MEASURE = """
addEventListener('load', () => {
  const frames = [...document.querySelectorAll('iframe')].map(frame => {
    const page = frame.contentDocument, boxes = [...page.querySelectorAll('.scroll')];
    return {
      wide: page.documentElement.scrollWidth, images: page.images.length,
      broken: [...page.images].filter(image => !image.complete || !image.naturalWidth).length,
      loaded: frame.contentWindow.performance.getEntriesByType('resource').map(entry => entry.name)
        .filter(name => !name.startsWith('data:')),
      scrolling: boxes.filter(box => box.scrollWidth > box.clientWidth).length,
    };
  });
  document.body.textContent = JSON.stringify(frames);
});
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """Return the report of plain decoding and a relaxed run with a long name, trace and fault."""
    folder = tmp_path_factory.mktemp("report")
    plain, other = write_pair(folder, *scenes(COUNT), "adt_lantern_k100_delta02_shared_budget")
    (plain / "img" / f"{COUNT - 1:05d}_0.png").unlink()
    flags = {"output_dir": f"{plain},{other}", "ref_dir": plain / "img", "images": 2}
    flags |= {"cache_dir": folder / "features", "report_dir": folder / "out"}
    assert main.main(["evaluate", *(f"--{name}={value}" for name, value in flags.items())]) == 0
    return folder / "out/report.html"


def browse(folder: Path, page: Path, *words: str) -> str:
    """Return what the browser prints."""
    options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", *words]
    command = [BROWSER, f"--user-data-dir={folder / 'profile'}", *options, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def framed(folder: Path, texts: dict[int, str], script: str = "") -> Path:
    """Write a page with each text in a frame of its width."""
    style = 'style="border:0;display:block;height:4000px;width:{}px"'
    frames = [
        f'<iframe {style.format(width)} srcdoc="{html.escape(text)}"></iframe>'
        for width, text in texts.items()
    ]
    path = folder / "frames.html"
    path.write_text(
        f'<!doctype html><body style="margin:0">{"".join(frames)}<script>{script}</script></body>'
    )
    return path


def measured(folder: Path, texts: dict[int, str]) -> dict[int, dict]:
    """Return what the browser finds in each text at its width."""
    dump = browse(folder, framed(folder, texts, _MEASURE), "--dump-dom")
    frames = json.loads(html.unescape(re.search(r"<body[^>]*>(.*)</body>", dump, re.DOTALL)[1]))
    return dict(zip(texts, frames, strict=True))


def test_nothing_overflows_nothing_is_broken_and_nothing_is_loaded(page, tmp_path):
    text = page.read_text()
    paper = text.replace("@media print", "@media all")
    frames = measured(tmp_path, {DESK: text, PHONE: text, 1000: text, 1180: text, PAPER: paper})
    for width, frame in frames.items():
        assert frame["wide"] == width and frame["scrolling"] == 0, "a table is cut off"
        assert frame["images"] == 2 * 3 + 1 and frame["broken"] == 0 and frame["loaded"] == []
    # and faults would be seen
    fault = '<img src="data:image/png;base64,AAAA"><img src="http://127.0.0.1:9/a.png">'
    fault += f"<pre>{'x' * 300}</pre></body>"
    frame = measured(tmp_path, {PHONE: text.replace("</body>", fault)})[PHONE]
    assert frame["wide"] > PHONE and frame["broken"] == 2
    assert frame["loaded"] == ["http://127.0.0.1:9/a.png"]
