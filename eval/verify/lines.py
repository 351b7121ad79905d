"""What `verify` says: a line per check, as a table for readers and as JSON for programs."""

import json
import textwrap
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

_WIDTH = 100


@dataclass(frozen=True)
class Line:
    """The outcome of one check.

    state: "ok", "failed" or "skipped". text: what was measured, or why nothing was. cause: where it
    failed, the likely cause. figures: the numbers, by name.
    """

    check: str
    state: str
    text: str
    cause: str | None = None
    figures: dict[str, object] = field(default_factory=dict)


def judged(check: str, good: bool, text: str, cause: str, **figures: object) -> Line:
    """Return the line of a check that was made; `cause` is told only if it failed."""
    state, told = ("ok", None) if good else ("failed", cause)
    return Line(check, state, text, told, figures)


def skipped(check: str, reason: str) -> Line:
    """Return the line of a check that was not made."""
    return Line(check, "skipped", reason)


def failures(lines: Sequence[Line]) -> list[str]:
    """Return the names of the checks that failed."""
    return [line.check for line in lines if line.state == "failed"]


def as_table(lines: Sequence[Line]) -> str:
    """Return the lines for readers, wrapped; a failed one is followed by its likely cause."""
    widest = max(len(line.check) for line in lines)
    rows = []
    for line in lines:
        start = f"{line.check:{widest}}  {line.state:7}  "
        texts = [line.text] if line.cause is None else [line.text, f"likely cause: {line.cause}"]
        for text in texts:
            rows += textwrap.wrap(
                " ".join(text.split()),
                _WIDTH,
                initial_indent=start,
                subsequent_indent=" " * (widest + 11),
                break_on_hyphens=False,
                break_long_words=False,
            )
            start = " " * (widest + 11)
    return "\n".join(rows)


def as_json(lines: Sequence[Line]) -> str:
    """Return the lines for programs, as one line of JSON."""
    return json.dumps({"ok": not failures(lines), "lines": [asdict(line) for line in lines]})
