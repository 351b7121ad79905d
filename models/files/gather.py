"""Several reads whose faults are told together, and keys under other names."""

import re
from collections.abc import Callable, Sequence
from typing import Any

Rules = Sequence[tuple[str, str]]  # regular expressions and what replaces them


def all_of(*reads: Callable[[], Any]) -> list[Any]:
    """Return what every read returns; a ValueError holds the faults of all that fail."""
    results, faults = [], []
    for read in reads:
        try:
            results.append(read())
        except ValueError as error:
            faults.append(str(error))
    if faults:
        raise ValueError("; ".join(dict.fromkeys(faults)))
    return results


def renamed(name: str, rules: Rules) -> str:
    """Return a key with every pattern replaced, one rule after the other."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name
