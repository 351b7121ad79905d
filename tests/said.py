"""What a command says on stderr, apart from its progress."""

import re

PROGRESS = re.compile(r"\[\d{4}-[\d: -]+\] .*\n")


def without_progress(text: str) -> str:
    return PROGRESS.sub("", text)
