"""Running a script's function with the flags of the command line."""

import sys
from collections.abc import Callable
from inspect import signature

import fire

from support.border import run_guarded


def run_script(function: Callable[..., None]) -> None:
    """Call a function through fire, with the flags of the command line.

    A failure ends the process with an exit code of support/border.py; every ValueError counts as a
    flag or file that cannot be used.
    """

    def run() -> None:
        _check_flags(function, sys.argv[1:])
        fire.Fire(function)

    if code := run_guarded(run, refusals=ValueError):
        sys.exit(code)


def _check_flags(function: Callable[..., None], words: list[str]) -> None:
    """Refuse a flag that the function lacks: fire would run it first and complain afterwards."""
    known = ["help", *signature(function).parameters]
    for word in words:
        name = word[2:].partition("=")[0].replace("-", "_")
        if word.startswith("--") and name not in known and name.removeprefix("no") not in known:
            raise ValueError(
                f"--{name}: unknown flag; allowed: {', '.join('--' + flag for flag in known[1:])}"
            )
