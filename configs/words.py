"""The words of a command line as the texts of flags; nothing is converted here.

Every word is looked at before fire sees it: fire runs a command first and complains about flags
afterwards, takes `--prompt` without a value for True, fills parameters with stray words and lets
the last of two values win.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import Field
from typing import NoReturn

from configs.fields import SettingsError, allowed, kind
from configs.flags import COMMANDS, GONE, flags_of
from configs.targets import TARGETS


def read_words(command: str, words: Sequence[str]) -> dict[str, str]:
    """Return the texts of the flags, by name, in the words that follow a command.

    Raises:
        SettingsError: a word out of place, an unknown flag, a flag without a value or given twice.
    """
    flags, texts, rest = flags_of(command), {}, list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--") or word == "--":
            _refuse_word(word, flags)
        name, equals, text = word[2:].partition("=")
        name = name.replace("-", "_")
        negated = None if equals else _negated(name, flags)
        check_known(negated or name, command)
        if negated:
            name, text = negated, "false"
        elif not equals:
            text = _value(name, flags[name], rest)
        if name in texts:
            found = f"found twice, as {texts[name]!r} and {text!r}"
            raise SettingsError(f"--{name}: {found}; allowed: once")
        texts[name] = text
    return texts


def check_known(
    name: str, command: str, flags: Mapping[str, Field] | None = None, where: str = ""
) -> None:
    """Refuse a flag that a command does not have; the error names similar ones.

    flags: all that are allowed, if not those of the command; where: the file that has it as a key.
    """
    flags = flags_of(command) if flags is None else flags
    if name in flags:
        return
    shown = f"{where}: {name}" if where else f"--{name}"
    if hint := {**GONE, **COMMANDS[command].gone}.get(name):
        raise SettingsError(f"{shown}: no such flag here; {hint}")
    near = difflib.get_close_matches(name, flags, 3, 0.6)
    dashes = "" if where else "--"
    hint = f"did you mean {' or '.join(dashes + each for each in near)}? " if near else ""
    help_command = f"python main.py {command} --help"
    raise SettingsError(f"{shown}: unknown flag; {hint}allowed: those of `{help_command}`")


def _is_flag(word: str) -> bool:
    """Return whether a word cannot be the value of the flag before it; "-1" and "-5 °C" can."""
    return re.match(r"--|-[a-zA-Z]", word) is not None


def _negated(name: str, flags: Mapping[str, Field]) -> str | None:
    """Return the switch that `noNAME` or `no_NAME` turns off."""
    target = name.removeprefix("no").removeprefix("_")
    negates = name not in flags and name.startswith("no") and target in flags
    return target if negates and kind(flags[target]) is bool else None


def _value(name: str, f: Field, rest: list[str]) -> str:
    """Return the text of a flag without '=': the next word, taken off `rest`; of a switch true."""
    if kind(f) is bool:
        return rest.pop(0) if rest and rest[0].lower() in ("true", "false") else "true"
    if not rest or _is_flag(rest[0]):
        found = f"no value but {rest[0]!r}" if rest else "no value"
        more = f"; a value that starts with a dash is written --{name}=VALUE" if rest else ""
        raise SettingsError(f"--{name}: found {found}; allowed: {allowed(f)}{more}")
    return rest.pop(0)


def _refuse_word(word: str, flags: Mapping[str, Field]) -> NoReturn:
    if word.startswith("-") and word not in ("-", "--"):
        hint = "flags are written with two dashes: --flag value or --flag=value"
        raise SettingsError(f"{word}: unknown flag; {hint}")
    hint = "values follow their flag: --flag value or --flag=value"
    if word in TARGETS and "model" in flags:
        hint = f"did you mean --model {word}?"
    elif "prompt" in flags:
        hint = 'a prompt with blanks needs quotes: --prompt "a red circle"'
    raise SettingsError(f"{word!r}: a word without a flag; {hint}")
