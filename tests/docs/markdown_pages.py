"""The documentation's pages: their headings, links and code blocks.

What a test is to do with a block is written in comments on the lines before it, which a reader of
the rendered page does not see:

    <!-- smoke -->              run it in `make test`; other blocks are run in `make test-all`
    <!-- not run: WHY -->       never run it; its commands are checked all the same
    <!-- shorter: A => B -->    run it with B in place of A
    <!-- file: PATH -->         it is the text of this file, written before what follows is run
    <!-- append: PATH -->       it is the end of this file
"""

import re
from dataclasses import dataclass
from pathlib import Path

from configs.targets import ROOT

PAGES = ("README.md", "ckpts/tiny/README.md", "configs/prompts/README.md")
PAGES += tuple(sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")))
_KINDS = ("smoke", "not run", "shorter", "file", "append")
_BLOCK = re.compile(r"(?ms)^((?:<!--[^\n]*-->\n)*)```(\w*)\n(.*?)^```$")
_COMMENT = re.compile(r"<!-- ([a-z ]+?)(?:: (.*?))? -->")


@dataclass(frozen=True)
class Block:
    """A code block: its language, its text, and what the comments before it say, by kind."""

    language: str
    text: str
    marks: tuple[tuple[str, str], ...] = ()

    def mark(self, kind: str) -> str | None:
        """Return what a comment of this kind says; None without one."""
        return dict(self.marks).get(kind)

    @property
    def written(self) -> bool:
        return self.mark("file") is not None or self.mark("append") is not None

    @property
    def tested(self) -> str:
        """The text as a test runs it."""
        text = self.text
        for kind, change in self.marks:
            if kind == "shorter":
                long, short = change.split(" => ")
                assert long in text, f"{long!r} is not in the block:\n{text}"
                text = text.replace(long, short)
        return text


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    found = []
    for comments, language, text in _BLOCK.findall(read(page)):
        marks = tuple(_COMMENT.findall(comments))
        assert all(kind in _KINDS for kind, _ in marks), f"{page}: {marks}"
        assert ("not run", "") not in marks, f"{page}: say why this block is not run:\n{text}"
        found.append(Block(language, text, marks))
    return found


def prose(page: str) -> str:
    return _BLOCK.sub("", read(page))


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    text = _BLOCK.sub("", page.read_text(encoding="utf-8"))
    found: dict[str, int] = {}
    for heading in re.findall(r"(?m)^#{1,6} +(.+?) *$", text):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        found[anchor] = found.get(anchor, -1) + 1
    return {a if not n else f"{a}-{n}" for a, count in found.items() for n in range(count + 1)}


def links(page: str) -> list[str]:
    """Return the targets of a page's links and pictures, those to other hosts left out."""
    text = re.sub(r"`[^`\n]*`", "", prose(page))
    pairs = re.findall(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"", text)
    return [one or other for one, other in pairs if not re.match("[a-z]+:", one or other)]
