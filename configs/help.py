"""The help of the program and of its commands."""

import inspect
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import Field

from configs.command_line import METHOD_FLAGS
from configs.commands import COMMANDS, flags_of
from configs.fields import kind, parse, parts_of, settings_fields
from configs.methods import applicable

_WIDTH, _COLUMN = 110, 29
_SCREEN = 45  # lines: a longer help shows the flags below only
_COMMON = """
    prompt num_images seed output_dir methods repeats config method proposal nodes verifier cfg
    temperature top_k top_p model model_path drafter_path dtype device batch_size compile tokens
    drafter steps lr start_from metrics ref_dir baseline data_dir from_prompts json port share_on
"""


def asked_help(words: Sequence[str]) -> str:
    """Return the help that the words after a command's name ask for.

    `--help all` names every flag, `--help` with `--method NAME` those of one method.

    Raises:
        SettingsError: there is no such method.
    """
    command, *rest = words
    method = None
    for word, following in zip(rest, [*rest[1:], ""], strict=True):
        name, equals, text = word.partition("=")
        if name == "--method":
            method = text if equals else following
        everything = word in ("--help", "-h") and following == "all"
        if everything:
            return command_help(command, everything=True)
    return command_help(command, method)


def program_help() -> str:
    """Return the help of the whole program."""
    rows = [
        "ADT-Tree: exact, fast image generation with autoregressive models",
        "",
        "Commands:",
        *(f"  python main.py {name:16} {command.summary}" for name, command in COMMANDS.items()),
        "",
        "Flags: python main.py <command> --help; all of them: --help all; of one method: "
        "python main.py generate_images --method adt --help",
        "Example:",
        '  python main.py generate_images --prompt "a small red circle on a grassy background" '
        "--num_images 4",
    ]
    return "\n".join(rows)


def command_help(command: str, method: str | None = None, everything: bool = False) -> str:
    """Return the help of a command by groups: on one screen, unless everything is asked for.

    method: show the flags of this method, and no other's.
    """
    flags, brief = flags_of(command), False
    if method is not None and "method" in flags:
        method = parse(METHOD_FLAGS["method"], "method", method)
        fitting = applicable({"method": method})
        shown = [flag for flag in flags if flag not in METHOD_FLAGS or flag in fitting]
    elif everything or len(_rows(command, flags)) <= _SCREEN:
        shown = [*flags]
    else:
        shown, brief = [flag for flag in flags if flag in _COMMON.split()], True
    rows = _rows(command, shown, brief)
    if len(shown) < len(flags):
        rows += ["", f"{len(flags) - len(shown)} flags are left out; all: --help all"]
        rows[-1] += "; of one method: --method NAME --help" if "method" in flags else ""
    return "\n".join(rows)


def flag_groups(command: str) -> dict[str, dict[str, Field]]:
    """Return a command's flags by the headings of the classes that declare them."""
    groups: dict[str, dict[str, Field]] = {}
    flags = flags_of(command)
    for owner in (inner for outer in COMMANDS[command].settings for inner in parts_of(outer)):
        declared = inspect.get_annotations(owner)
        groups.setdefault(owner.group, {}).update(
            (flag, f)
            for flag, f in settings_fields(owner).items()
            if f.name in declared and flags.get(flag) is f
        )
    return {group: flags for group, flags in groups.items() if flags}


def _rows(command: str, shown: Collection[str], brief: bool = False) -> list[str]:
    """Return the lines of a command's help with some of its flags; brief: without headings."""
    summary = textwrap.wrap(COMMANDS[command].summary, _WIDTH - 2)
    rows = [f"python main.py {command} --flag value ...", *(f"  {text}" for text in summary)]
    rows += [""] if brief else []
    for group, flags in flag_groups(command).items():
        chosen = {flag: f for flag, f in flags.items() if flag in shown}
        rows += ["", f"{group}:"] if chosen and not brief else []
        rows += [row for flag, f in chosen.items() for row in _flag_rows(flag, f, brief)]
    return rows


def _flag_rows(name: str, f: Field, brief: bool) -> list[str]:
    """Return a flag's lines: its name, what it does, its choices and its default.

    brief: what it does up to the first semicolon, and no default that depends on others.
    """
    text, choices = f.metadata["help"], f.metadata.get("choices")
    text = text.partition(";")[0] if brief else text
    text += f" [{', '.join(choices)}]" if choices else ""
    default = default_text(f).partition(";")[0] if brief else default_text(f)
    text += "" if brief and len(default) > 25 else f" (default: {default})"
    left, indent = f"  --{name}{value_name(f)}", " " * _COLUMN
    row = f"{left:{_COLUMN - 1}} {text}"
    return textwrap.wrap(row, _WIDTH, subsequent_indent=indent, break_on_hyphens=False)


def value_name(f: Field) -> str:
    """Return what stands after a flag's name: nothing after a switch's."""
    return {bool: "", int: " N", float: " X", str: " TEXT"}[kind(f)]


def default_text(f: Field) -> str:
    """Return a flag's default in words."""
    switch = kind(f) is bool and f.default is not None
    default = ("off", "on")[f.default] if switch else f.default
    return str(f.metadata.get("shown", default))
