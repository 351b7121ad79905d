"""The help of the program and of its commands."""

import inspect
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import Field

from configs.fields import checked, kind, parts_of, settings_fields
from configs.flags import COMMANDS, flags_of
from configs.method_flags import METHOD_FLAGS, applicable

_WIDTH, _COLUMN = 110, 29


def help_text(command: str | None = None, method: str | None = None) -> str:
    """Return the help of a command, or of the whole program.

    method: leave out the flags of other methods, and say so.

    Raises:
        SettingsError: there is no such method.
    """
    return _program_help() if command is None else _command_help(command, method)


def named_method(words: Sequence[str]) -> str | None:
    """Return what `--method` names in the words of a command line that asks for help."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        name, equals, text = word.partition("=")
        if name == "--method":
            return text if equals else following
    return None


def _program_help() -> str:
    prompt = "a small red circle on a grassy background"
    lines = [
        "ADT-Tree: exact, fast image generation with autoregressive models",
        "",
        "Commands:",
        *(f"  python main.py {name:16} {command.summary}" for name, command in COMMANDS.items()),
        "",
        "Flags: python main.py <command> --help; of one method: "
        "python main.py generate_images --method adt --help",
        f'Example:\n  python main.py generate_images --prompt "{prompt}" --num_images 4',
    ]
    return "\n".join(lines)


def flag_groups(command: str) -> dict[str, dict[str, Field]]:
    """Return a command's flags by the headings of the classes that declare them."""
    groups: dict[str, dict[str, Field]] = {}
    known = flags_of(command)
    for owner in (part for each in COMMANDS[command].settings for part in parts_of(each)):
        own = inspect.get_annotations(owner)
        groups.setdefault(owner.group, {}).update(
            (flag, f)
            for flag, f in settings_fields(owner).items()
            if f.name in own and known.get(flag) is f
        )
    return {group: flags for group, flags in groups.items() if flags}


def _command_help(command: str, method: str | None) -> str:
    """Return the help of a command: its flags by groups."""
    every = flags_of(command)
    known = every if method is None or "method" not in every else _flags_with(every, method)
    summary = textwrap.wrap(COMMANDS[command].summary, _WIDTH - 2)
    lines = [f"python main.py {command} --flag value ...", *(f"  {line}" for line in summary)]
    for group, flags in flag_groups(command).items():
        shown = [_help_line(flag, f) for flag, f in flags.items() if flag in known]
        lines += ["", f"{group}:", *shown] if shown else []
    if len(known) < len(every):
        left_out = f"{len(every) - len(known)} flags of other methods and rules are left out"
        lines += ["", f"{left_out}; all of them: `python main.py {command} --help`"]
    return "\n".join(lines)


def _flags_with(flags: Mapping[str, Field], method: str) -> dict[str, Field]:
    """Return those of a command's flags that a method has, by name."""
    checked(METHOD_FLAGS["method"], "method", method)
    own = applicable({"method": method})
    return {name: f for name, f in flags.items() if name not in METHOD_FLAGS or name in own}


def _help_line(name: str, f: Field) -> str:
    """Return a flag's lines: its name, what it does, its choices and its default."""
    choices = f" [{', '.join(f.metadata['choices'])}]" if "choices" in f.metadata else ""
    left = f"  --{name}{value_name(f)}"
    text = f"{left:{_COLUMN - 1}} {f.metadata['help']}{choices} (default: {default_text(f)})"
    indent = " " * _COLUMN
    return "\n".join(textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False))


def value_name(f: Field) -> str:
    """Return what stands after a flag's name: nothing after a switch's."""
    return {bool: "", int: " N", float: " X", str: " TEXT"}[kind(f)]


def default_text(f: Field) -> str:
    """Return a flag's default in words."""
    switch = kind(f) is bool and f.default is not None
    default = ("off", "on")[f.default] if switch else f.default
    return str(f.metadata.get("shown", default))
