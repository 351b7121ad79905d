"""What a command says on stderr, apart from its progress."""

import re

PROGRESS = re.compile(r"\[\d{4}-[\d: -]+\] .*\n")


def without_progress(text: str) -> str:
    """Return the text without a log's lines of progress, which begin with the time."""
    return PROGRESS.sub("", text)
