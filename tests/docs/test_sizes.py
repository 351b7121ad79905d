"""The documentation stays short and in plain words; code names pages that exist."""

import re

import pytest
from markdown_pages import PAGES, prose, read

from configs.targets import ROOT

GUIDES = [page for page in PAGES if page.startswith(("docs/", "README")) and "commands" not in page]
# words that a reader stumbles over -> the usual one
PLAIN = {
    r"\banew\b": "again",
    r"\bbesides\b": "as well",
    r", too\b": "as well",
    r"\bin place of\b": "instead of",
    r"\b(lies?|lie) in\b": "is in",
    r"\bcomes? to\b": "is",
    r"\bpays\b": "is faster",
    r"\bSR\b": "speed-up",
}
SOURCES = ("*.py", "*.sh", "*.yaml")
HERE = ("tests", ".venv", ".git", "work", "outputs")


def test_the_documentation_has_few_pages_and_lines() -> None:
    pages = [page for page in PAGES if page.startswith("docs/")]
    assert len(pages) <= 26
    assert sum(read(page).count("\n") for page in pages) <= 3000
    assert read("README.md").count("\n") <= 110


@pytest.mark.parametrize("page", GUIDES)
def test_guides_use_plain_words(page: str) -> None:
    for word, better in PLAIN.items():
        found = re.search(word, prose(page))
        assert not found, f"{page}: {found[0]!r}; say {better!r}"


def test_code_names_pages_that_exist() -> None:
    paths = [path for kind in SOURCES for path in ROOT.rglob(kind)]
    for path in paths:
        if path.relative_to(ROOT).parts[0] not in HERE:
            for name in re.findall(r"docs/[\w/]+\.(?:md|json)", path.read_text(encoding="utf-8")):
                assert (ROOT / name).exists(), f"{path.relative_to(ROOT)} names {name}"
