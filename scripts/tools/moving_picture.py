"""Record the page: `python -m scripts.tools.moving_picture`.

Plain decoding and a fast method generate an image side by side, at the same number of forward
passes, in a real browser (Chromium on PATH). README shows the recording.
"""

import io
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from shutil import which
from urllib.parse import urlencode

from PIL import Image
from playwright.sync_api import Page, sync_playwright

from configs.targets import ROOT
from support.script import run_script

PASS = 40  # milliseconds of the recording per forward pass
HOLD = 3000  # milliseconds of its last picture
BUSY = "['waiting', 'drawing'].includes(document.querySelector('.stage').dataset.state)"


def moving_picture(
    *,
    prompt: str = "a large yellow star above a large green square on a cloudy blue background",
    method: str = "adt",
    seed: int = 5,
    port: int = 7861,
    browser: str = "chromium",
    output: str = "docs/images/page.webp",
) -> None:
    """Write an animated WebP file of the page's panels while the included model generates.

    Args:
        prompt: what the image shows.
        method: the fast method.
        seed: of the image.
        port: of the page's server.
        browser: the name or path of Chromium.
        output: the file to write.
    """
    words = ["demo", f"--port={port}", f"--method={method}", "--device=cpu"]
    command = [sys.executable, str(ROOT / "main.py"), *words]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as playwright,
    ):
        try:
            assert server.stdout is not None, "a pipe"
            address = server.stdout.readline().split(": ")[0]
            if not address.startswith("http"):
                raise ValueError(f"expected the page's address, got {address!r}")
            chrome = playwright.chromium.launch(
                executable_path=which(browser) or browser, args=["--no-sandbox"]
            )
            page = chrome.new_page(viewport={"width": 1280, "height": 1000})
            wish = {"prompt": prompt, "method": method, "seed": seed, "slow": 1}
            page.goto(f"{address}?{urlencode(wish)}")
            pictures = dict(_pictures(page))
        finally:
            server.terminate()
    passes = [*pictures]
    lasts = [PASS * (after - before) for before, after in pairwise(passes)]
    first, *rest = (Image.open(io.BytesIO(pictures[n])).convert("RGB") for n in passes)
    first.save(
        output, save_all=True, append_images=rest, duration=[*lasts, HOLD],
        loop=0, quality=60, method=4,
    )  # fmt: skip
    size = Path(output).stat().st_size / 2**20
    print(f"{output}: {len(passes)} pictures of {passes[-1]} passes, {size:.1f} MiB")


def _pictures(page: Page) -> Iterator[tuple[int, bytes]]:
    """Watch the page generate what its address says; yields passes of plain decoding, a picture."""
    stage = page.locator("#stage")
    stage.locator(".panel").first.wait_for()
    page.wait_for_function("document.querySelector('.stage').dataset.state === 'drawing'")
    counted, shown, box = page.locator(".panel.plain .forwards"), "", stage.bounding_box()
    assert box is not None, "the stage is shown"

    def picture() -> bytes:
        return page.screenshot(clip=box)  # the stage's own height changes with its texts

    while page.evaluate(BUSY):
        if (now := counted.inner_text()) != shown and now.isdigit():
            shown = now
            yield int(now), picture()
    yield int(counted.inner_text()), picture()  # replaces the last one


if __name__ == "__main__":
    run_script(moving_picture)
