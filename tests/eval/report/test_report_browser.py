"""The report in a real browser, from disk and without a network: desk, phone and paper."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from browser import BROWSER, needs_browser
from made_runs import scenes, write_run
from PIL import Image
from playwright.sync_api import sync_playwright

import main

DESK, PHONE, PAPER = 1280, 390, 703  # pixels; paper: A4 without its margins
COUNT = 12

pytestmark = [
    needs_browser,
    pytest.mark.usefixtures("one_thread"),
]

# A frame may have any width, a window of Chromium has at least 500 pixels. What a frame loads is
# listed in its own resources.
_MEASURE = """
addEventListener('load', () => {
  const found = [...document.querySelectorAll('iframe')].map(frame => {
    const page = frame.contentDocument, boxes = [...page.querySelectorAll('.scroll')];
    return {
      wide: page.documentElement.scrollWidth, images: page.images.length,
      broken: [...page.images].filter(image => !image.complete || !image.naturalWidth).length,
      loaded: frame.contentWindow.performance.getEntriesByType('resource').map(entry => entry.name)
        .filter(name => !name.startsWith('data:')),
      scrolling: boxes.filter(box => box.scrollWidth > box.clientWidth).length,
    };
  });
  document.body.textContent = JSON.stringify(found);
});
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Path:
    """Return the report of plain decoding and a relaxed run with a long name, trace and fault."""
    folder = tmp_path_factory.mktemp("report")
    images, prompts = scenes(COUNT)
    plain = write_run(folder / "ar", images, prompts)
    noisy = [np.clip(image.astype(int) + 3, 0, 255).astype(np.uint8) for image in images]
    relaxed = {"lossless": False, "seconds": 1.0, "tau": 2.0, "target_forwards": 128}
    flags = {"method": "adt", "verifier": "lantern"}
    other = write_run(
        folder / "adt_lantern_k100_delta02_shared_budget", noisy, prompts, flags, **relaxed
    )
    rounds = {"id": "00000_0", "accepted": 2, "depth": 2, "top1": [0.5] * 3}
    lines = [rounds | {"round": n, "position": 1 + 3 * n} for n in range(85)]
    (other / "trace.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (plain / "img" / f"{COUNT - 1:05d}_0.png").unlink()
    words = [
        "evaluate",
        "--output_dir",
        f"{plain},{other}",
        "--ref_dir",
        str(plain / "img"),
        "--images",
        "2",
    ]
    assert (
        main.main(
            [*words, "--cache_dir", str(folder / "features"), "--report_dir", str(folder / "out")]
        )
        == 0
    )
    return folder / "out/report.html"


def browse(folder: Path, page: Path, *words: str) -> str:
    """Return what the browser prints."""
    command = [
        BROWSER,
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={folder / 'profile'}",
    ]
    command += ["--hide-scrollbars", *words, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
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
    found = json.loads(html.unescape(re.search(r"<body[^>]*>(.*)</body>", dump, re.DOTALL)[1]))
    return dict(zip(texts, found, strict=True))


def test_nothing_overflows_nothing_is_broken_and_nothing_is_loaded(page, tmp_path):
    text = page.read_text()
    paper = text.replace("@media print", "@media all")
    found = measured(tmp_path, {DESK: text, PHONE: text, 1000: text, 1180: text, PAPER: paper})
    assert {width: each["wide"] for width, each in found.items()} == {
        width: width for width in found
    }
    for each in found.values():
        assert each["images"] == 2 * 3 + 1 and each["broken"] == 0 and each["loaded"] == []
        assert each["scrolling"] == 0, "a table is cut off"


def test_faults_of_a_page_would_be_seen(page, tmp_path):
    fault = '<img src="data:image/png;base64,AAAA"><img src="http://127.0.0.1:9/a.png">'
    fault += "<pre>{}</pre></body>"
    each = measured(
        tmp_path, {PHONE: page.read_text().replace("</body>", fault.format("x" * 300))}
    )[PHONE]
    assert (
        each["wide"] > PHONE
        and each["broken"] == 2
        and each["loaded"] == ["http://127.0.0.1:9/a.png"]
    )


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_pictures_of_the_screen(page, tmp_path, width):
    shot = tmp_path / "shot.png"
    browse(
        tmp_path,
        framed(tmp_path, {width: page.read_text()}),
        f"--window-size={width},1600",
        f"--screenshot={shot}",
    )
    with Image.open(shot) as image:
        pixels = np.asarray(image.convert("L"))
    assert pixels.shape == (1600, width)
    rows = (pixels < 128).any(axis=1)  # text from the top to the bottom
    assert pixels[0].min() == 255 and all(part.any() for part in np.array_split(rows, 8))


_PLOTS = """() => [...document.querySelectorAll('.plots svg')].map(plot => {
  const frame = plot.getBoundingClientRect(), texts = [...plot.querySelectorAll('text')];
  return {
    colours: [...new Set(texts.map(text => getComputedStyle(text).fill))],
    cut: texts.map(text => text.getBoundingClientRect())
      .filter(box => box.left < frame.left - 1 || box.right > frame.right + 1).length,
  };
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_plots_have_the_colours_of_the_page(scheme, page, tmp_path):
    shot = tmp_path / "plot.png"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        for width in (PHONE, 1180, 1400):
            tab = browser.new_page(
                color_scheme=scheme, viewport={"width": width, "height": 900}, offline=True
            )
            tab.goto(page.as_uri())
            text = tab.evaluate("getComputedStyle(document.body).color")
            assert tab.evaluate(_PLOTS) == [{"colours": [text], "cut": 0}] * 2
            tab.locator(".plots svg").first.screenshot(path=shot)
            with Image.open(shot) as image:
                around = image.convert("L").getpixel((1, 1))
            assert around == 255 if scheme == "light" else around < 40
        browser.close()


def test_paper(page, tmp_path):
    pdf = tmp_path / "report.pdf"
    browse(tmp_path, page, "--no-pdf-header-footer", f"--print-to-pdf={pdf}")
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes()))
    assert 1 <= pages <= 4
    if shutil.which("pdftotext"):
        text = subprocess.run(
            ["pdftotext", str(pdf), "-"], capture_output=True, text=True, check=True
        ).stdout
        assert all(
            title in text for title in ("Speed", "Images", "What the figures rest on", "Settings")
        )
