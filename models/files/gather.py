"""Several reads whose faults are told together."""

from collections.abc import Callable, Sequence
from typing import Any

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
    rest = len(faults) - _SHOWN
    return "; ".join([*faults[:_SHOWN], *([f"and {rest} more"] if rest > 0 else [])])
