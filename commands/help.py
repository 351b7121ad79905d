"""The help of the program and of its commands: all flags by group, or those of one method."""

import textwrap
from collections.abc import Sequence
from dataclasses import MISSING, Field
from typing import Any

from commands import NAMES, Command, command, text_after
from configs.fields import declared, help_text, kind, parse
from configs.methods import applicable
from configs.recipes import method_flags

_WIDTH, _COLUMN = 110, 29


def program_help() -> str:
    """Return the help of the program: its commands."""
    rows = [f"  python main.py {name:16} {command(name).summary}" for name in NAMES]
    commands, prompt = "\n".join(rows), "a red circle on a plain blue background"
    return f"""\
ADT-Tree: exact, fast image generation with autoregressive models

Commands:
{commands}

Flags: python main.py <command> --help; of one method: \
python main.py generate_images --method adt --help
Version: python main.py --version
Example:
  python main.py generate_images --prompt "{prompt}" --num_images 4"""


def asked_help(asked: Command, words: Sequence[str]) -> str:
    """Return the help that the words after a command's name ask for.

    With `--method NAME`, it has the flags that work with this method.
    """
    asked.import_plugin(words)
    return command_help(asked, text_after("--method", words))


def command_help(asked: Command, method: str | None = None) -> str:
    """Return the help of a command, by group; method: leave out flags of other methods."""
    flags = asked.known.flags
    shown = [*flags]
    if method is not None and "method" in flags:
        fitting = applicable({"method": parse(flags["method"], "method", method)})
        shown = [flag for flag in flags if flag not in method_flags() or flag in fitting]
    rows = [f"python main.py {asked.name} --flag value ..."]
    rows += textwrap.wrap(asked.summary, _WIDTH)
    for group, declared_there in flag_groups(asked).items():
        chosen = {flag: f for flag, f in declared_there.items() if flag in shown}
        if chosen:
            rows += ["", f"{group}:"]
            rows += [row for flag, f in chosen.items() for row in _flag_rows(flag, f)]
    if left_out := len(flags) - len(shown):
        rows += ["", f"without --method, --help has {left_out} more flags"]
    return "\n".join(rows)


def flag_groups(asked: Command) -> dict[str, dict[str, Field]]:
    """Return a command's flags by their headings."""
    groups: dict[str, dict[str, Field]] = {}
    flags = asked.known.flags
    for owner in asked.owners:
        for group, flag, f in declared(owner):
            if flags.get(flag) is f:
                groups.setdefault(group, {})[flag] = f
    return groups


def _flag_rows(name: str, f: Field) -> list[str]:
    choices = f.metadata.get("choices")
    text = help_text(f) + (f" [{', '.join(choices)}]" if choices else "")
    left, indent = f"  --{name}{value_name(f)}", " " * _COLUMN
    row = f"{left:{_COLUMN - 1}} {text} (default: {default_text(f)})"
    return textwrap.wrap(row, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def value_name(f: Field) -> str:
    """Return what stands after a flag's name: nothing after a switch's."""
    return {bool: "", int: " N", float: " X", str: " TEXT"}[kind(f)]


def default_text(f: Field) -> str:
    """Return a flag's default in words."""
    switch = kind(f) is bool and f.default is not None
    default: Any = ("off", "on")[bool(f.default)] if switch else f.default
    default = {MISSING: "required", None: "off"}.get(default, default)
    shown = f.metadata.get("shown", default)
    return shown() if callable(shown) else str(shown)
