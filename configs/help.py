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


def _command_help(command: str) -> str:
    """Return the help of a command: its flags in the groups of the classes that declare them."""
    groups: dict[str, list[str]] = {}
    known = flags_of(command)
    for owner in (part for each in COMMANDS[command].settings for part in parts_of(each)):
        own = inspect.get_annotations(owner)
        groups.setdefault(owner.group, []).extend(
            _help_line(flag, f)
            for flag, f in settings_fields(owner).items()
            if f.name in own and known.get(flag) is f
        )
    summary = textwrap.wrap(COMMANDS[command].summary, _WIDTH - 2)
    lines = [f"python main.py {command} --flag value ...", *(f"  {line}" for line in summary)]
    for group, flags in groups.items():
        lines += ["", f"{group}:", *flags] if flags else []
    return "\n".join(lines)


def _help_line(name: str, f: Field) -> str:
    """Return a flag's lines: its name, what it does, its choices and its default."""
    switch = kind(f) is bool
    default = ("off", "on")[f.default] if switch and f.default is not None else f.default
    shown = f.metadata.get("shown", default)
    choices = f" [{', '.join(f.metadata['choices'])}]" if "choices" in f.metadata else ""
    left = f"  --{name}" + ("" if switch else {int: " N", float: " X", str: " TEXT"}[kind(f)])
    text = f"{left:{_COLUMN - 1}} {f.metadata['help']}{choices} (default: {shown})"
    indent = " " * _COLUMN
    return "\n".join(textwrap.wrap(text, _WIDTH, subsequent_indent=indent, break_on_hyphens=False))
