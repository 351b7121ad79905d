"""Several reads whose faults are told together, and differences between weights in words."""

import re
from collections.abc import Callable, Sequence
from typing import Any

from support.wording import first_of

Rules = Sequence[tuple[str, str]]  # regular expressions and what replaces them
_SHOWN = 20  # differences in an error


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


def shown(faults: Sequence[str]) -> str:
    """Return the first of many differences in words, and how many more there are."""
    return first_of(faults, _SHOWN)


def renamed(name: str, rules: Rules) -> str:
    """Return a key with every pattern replaced, one rule after the other."""
    for pattern, replacement in rules:
        name = re.sub(pattern, replacement, name)
    return name
