"""Running a script's function with the flags of the command line."""

import sys
from collections.abc import Callable

import fire


def run_script(function: Callable[..., None]) -> None:
    """Call it through fire; bad values end in one line and exit code 2."""
    try:
        fire.Fire(function)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
