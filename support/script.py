"""Running a script's function with the flags of the command line."""

import sys
from collections.abc import Callable
from inspect import signature
from itertools import pairwise
from typing import get_type_hints

import fire
from fire.decorators import SetParseFn, SetParseFns
from fire.parser import DefaultParseValue

from configs.fields import mismatch, one_of
from support.border import run_guarded

_TEXTS = (str, str | None)


def run_script(function: Callable[..., None]) -> None:
    """Call a function through fire, with the flags of the command line.

    Parameters that are texts get what was typed: fire would make the number 20240101 of the folder
    2024_01_01, and a tuple of a,b. A failure ends the process with an exit code of
    support/border.py; every ValueError counts as a flag or file that cannot be used.
    """

    def run() -> None:
        _check_flags(function, sys.argv[1:])
        kinds = get_type_hints(function)
        others = {name: DefaultParseValue for name, kind in kinds.items() if kind not in _TEXTS}
        # the default, since it also holds for what `*folders` takes
        fire.Fire(SetParseFn(str)(SetParseFns(**others)(function)))

    if code := run_guarded(run, refusals=ValueError):
        sys.exit(code)


def _check_flags(function: Callable[..., None], words: list[str]) -> None:
    """Refuse a flag that the function lacks, and one without its value.

    fire would run the function first and complain afterwards, or take True for the value.
    """
    flags, kinds = ["help", *signature(function).parameters], get_type_hints(function)
    for word, following in pairwise([*words, "--"]):
        if not word.startswith("--"):
            continue
        name = word[2:].partition("=")[0].replace("-", "_")
        if name not in flags and name.removeprefix("no") not in flags:
            raise mismatch("flags", word, one_of("--" + flag for flag in flags[1:]))
        if "=" not in word and following.startswith("--") and kinds.get(name, bool) is not bool:
            raise mismatch(word, "nothing", "a value")
