"""Links lead to files and headings that exist; every page can be reached from the README."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from markdown_pages import PAGES, anchors, links

from configs.targets import ROOT


def target(page: str, link: str) -> tuple[Path, str]:
    """The file and the anchor that a link on a page leads to."""
    name, _, anchor = link.partition("#")
    return ((ROOT / page).parent / name if name else ROOT / page).resolve(), anchor


@pytest.mark.parametrize("page", (*PAGES, "CONTRIBUTING.md", "CHANGELOG.md"))
def test_links_lead_somewhere(page: str) -> None:
    for link in links(page):
        path, anchor = target(page, link)
        assert path.exists(), f"{page}: {link}"
        assert not anchor or anchor in anchors(path), f"{page}: {link} has no such heading"


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen, rest = set(), ["README.md"]
    while rest:
        page = rest.pop()
        if page in seen:
            continue
        seen.add(page)
        paths = [target(page, link)[0] for link in links(page)]
        rest += [str(p.relative_to(ROOT)) for p in paths if p.suffix == ".md" and ROOT in p.parents]
    assert not set(PAGES) - seen


@pytest.mark.parametrize("drawing", sorted((ROOT / "docs").rglob("*.svg")), ids=lambda p: p.name)
def test_drawings_have_a_title_and_a_dark_variant(drawing: Path) -> None:
    root = ElementTree.parse(drawing).getroot()
    names = {child.tag.rpartition("}")[2] for child in root}
    assert {"title", "desc", "style"} <= names
    assert "prefers-color-scheme: dark" in drawing.read_text(encoding="utf-8")
