"""What a command prints apart from its result."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@cache
def remark(text: str) -> None:
    """Print a remark on stderr, once, however often the command comes by."""
    print(f"note: {text}", file=sys.stderr)


def first_line(error: Exception) -> str:
    """Return the first line of an error's text, or what kind of error it is."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


@contextmanager
def printed_unless_saved(*rows: dict[str, Any]) -> Iterator[None]:
    """Print rows of figures, a line of JSON each, if the block, which saves them, fails.

    For figures that are not printed otherwise.
    """
    try:
        yield
    except Exception:
        print(*map(json.dumps, rows), sep="\n", flush=True)
        raise
