"""The report in a real browser, from disk and without a network: desk, phone and paper."""

import pytest
from browser import needs_browser
from made_runs import scenes, write_pair

import main

COUNT = 12
pytestmark = needs_browser

_MEASURE = """() => ({
  wide: document.documentElement.scrollWidth,
  images: document.images.length,
  broken: [...document.images].filter(image => !image.complete || !image.naturalWidth).length,
  scrolling: [...document.querySelectorAll('.scroll')]
    .filter(box => box.scrollWidth > box.clientWidth).length,
})"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Return the report of plain decoding and a relaxed run with a long name, trace and fault."""
    folder = tmp_path_factory.mktemp("report")
    plain, other = write_pair(folder, *scenes(COUNT), "adt_lantern_k100_delta02_shared_budget")
    (plain / "img" / f"{COUNT - 1:05d}_0.png").unlink()
    flags = {"output_dir": f"{plain},{other}", "ref_dir": plain / "img", "images": 2}
    flags |= {"cache_dir": folder / "features", "report_dir": folder / "out"}
    assert main.main(["evaluate", *(f"--{name}={value}" for name, value in flags.items())]) == 0
    return folder / "out/report.html"


@pytest.mark.parametrize(
    ("width", "media"),
    [(1280, "screen"), (390, "screen"), (1000, "screen"), (1180, "screen"), (703, "print")],
    ids=["desk", "phone", "1000", "1180", "A4 without margins"],
)
def test_nothing_overflows_nothing_is_broken_and_nothing_is_loaded(report, chromium, width, media):
    page, asked = chromium.new_page(viewport={"width": width, "height": 900}), []
    page.on("request", lambda sent: asked.append(sent.url))
    page.emulate_media(media=media)
    page.goto(report.as_uri())
    shown = page.evaluate(_MEASURE)
    assert shown == {"wide": width, "images": 2 * 3 + 1, "broken": 0, "scrolling": 0}
    assert [url for url in asked if not url.startswith("data:")] == [report.as_uri()]
    page.close()
