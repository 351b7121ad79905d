"""The help of the program and of its commands."""

import inspect
import textwrap
from dataclasses import Field

from configs.fields import kind, parts_of, settings_fields
from configs.flags import COMMANDS, flags_of

_WIDTH, _COLUMN = 110, 29


def help_text(command: str | None = None) -> str:
    """Return the help of a command, or of the whole program."""
    return _program_help() if command is None else _command_help(command)


def _program_help() -> str:
    prompt = "a small red circle on a grassy background"
    lines = [
        "ADT-Tree: exact, fast image generation with autoregressive models",
        "",
        "Commands:",
        *(f"  python main.py {name:16} {command.summary}" for name, command in COMMANDS.items()),
        "",
        "Flags: python main.py <command> --help",
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


def _command_help(command: str) -> str:
    """Return the help of a command: its flags by groups."""
    summary = textwrap.wrap(COMMANDS[command].summary, _WIDTH - 2)
    lines = [f"python main.py {command} --flag value ...", *(f"  {line}" for line in summary)]
    for group, flags in flag_groups(command).items():
        lines += ["", f"{group}:", *(_help_line(flag, f) for flag, f in flags.items())]
    return "\n".join(lines)


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
