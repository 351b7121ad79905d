"""The help of the program and of its commands."""

import inspect
import textwrap
from collections.abc import Sequence
from dataclasses import MISSING, Field

from configs.command_line import import_named_plugin, method_flags
from configs.commands import COMMANDS, flags_of
from configs.fields import help_text, kind, parse, parts_of, settings_fields
from configs.methods import applicable

_WIDTH, _COLUMN = 110, 29
# Flags of the short help, which fits on a terminal of 24 lines and 100 columns.
_COMMON_WIDTH = 100
_COMMON = """
    prompt num_images seed output_dir methods repeats minutes config method nodes verifier cfg
    temperature top_k model model_path drafter_path dtype device batch_size tokens drafter steps lr
    start_from baseline ref_dir report_dir metrics data_dir from_prompts run json port share_on
    neighbours
"""


def asked_help(words: Sequence[str]) -> str:
    """Return the help that the words after a command's name ask for.

    `--help all` names every flag, `--help` with `--method NAME` those of one method.
    """
    command, *rest = words
    given: dict[str, str] = {}
    for word, following in zip(rest, [*rest[1:], ""], strict=True):
        name, equals, text = word.partition("=")
        given[name] = text if equals else following
    import_named_plugin(command, rest)
    everything = "all" in (given.get("--help"), given.get("-h"))
    return command_help(command, None if everything else given.get("--method"), everything)


def program_help() -> str:
    """Return the help of the program: its commands and two examples."""
    rows = [f"  python main.py {name:16} {command.summary}" for name, command in COMMANDS.items()]
    commands, prompt = "\n".join(rows), "a red circle on a plain blue background"
    return f"""\
ADT-Tree: exact, fast image generation with autoregressive models

Commands:
{commands}

Flags: python main.py <command> --help; all of them: --help all; of one method: \
python main.py generate_images --method adt --help
Version: python main.py --version
Example:
  python main.py generate_images --prompt "{prompt}" --num_images 4"""


def command_help(command: str, method: str | None = None, everything: bool = False) -> str:
    """Return the help of a command: its common flags, one a line, on one screen.

    method: show all flags that work with this method instead. everything: show all flags.
    """
    flags = flags_of(command)
    of_method = method is not None and "method" in flags
    brief = not everything and not of_method
    shown = [flag for flag in flags if everything or flag in _COMMON.split()]
    if of_method:
        fitting = applicable({"method": parse(method_flags()["method"], "method", method)})
        shown = [flag for flag in flags if flag not in method_flags() or flag in fitting]
    rows = [f"python main.py {command} --flag value ..."]
    rows += [*textwrap.wrap(COMMANDS[command].summary, _WIDTH), *([""] if brief else [])]
    for group, declared in flag_groups(command).items():
        chosen = {flag: f for flag, f in declared.items() if flag in shown}
        if brief:
            rows += [_common_row(flag, f) for flag, f in chosen.items()]
        elif chosen:
            rows += ["", f"{group}:"]
            rows += [row for flag, f in chosen.items() for row in _flag_rows(flag, f)]
    if left_out := len(flags) - len(shown):
        single = "; --method NAME --help lists those of one method" if "method" in flags else ""
        rows += ["", f"--help all lists {left_out} more flags by group{single}"]
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


def _common_row(name: str, f: Field) -> str:
    """Return a flag's line in the short help: as much of help, choices and default as fits."""
    text = help_text(f).partition(";")[0]
    choices = f"[{', '.join(f.metadata['choices'])}]" if "choices" in f.metadata else ""
    usual = f"(default: {default_text(f).partition(';')[0]})"
    left = f"  --{name}{value_name(f)}"
    parts = (text, choices, usual), (text, choices), (choices, usual), (choices,), (text, usual)
    rows = [f"{left:23} {' '.join(filter(None, part))}" for part in parts if part[0]]
    return next((row for row in rows if len(row) <= _COMMON_WIDTH), f"{left:23} {text}")


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
    """Return a setting's default as the help shows it."""
    switch = kind(f) is bool and f.default is not None
    default = ("off", "on")[f.default] if switch else f.default
    default = {MISSING: "required", None: "off"}.get(default, default)
    shown = f.metadata.get("shown", default)
    return shown() if callable(shown) else str(shown)
