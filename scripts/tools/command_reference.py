"""Write docs/commands.md from the flags: flags that commands share stand there once.

`python -m scripts.tools.command_reference`
"""

from collections import Counter
from dataclasses import Field
from pathlib import Path

from commands import NAMES, command
from commands.help import default_text, flag_groups, value_name
from configs.fields import help_text
from configs.methods import METHODS, applicable
from configs.targets import ROOT
from support.script import run_script

_NOTE = "<!-- Made from the flags by `python -m scripts.tools.command_reference`. -->"
# By command: an example, and the page that explains it.
GUIDES = {
    "generate_images": ('--prompt "a red circle on a plain blue background"', "generating.md"),
    "benchmark": ("--prompt prompts.txt --methods ar,jacobi,adt", "measuring.md"),
    "tune": ("--model tiny --minutes 10", "which_method.md"),
    "evaluate": ("--output_dir outputs/ar,outputs/adt", "evaluating.md"),
    "extract_tokens": ("--from_prompts --num_images 1000 --output_dir work/own", "training.md"),
    "inspect": ("--model anole --dtype bf16", "models.md"),
    "vq_distances": ("--model anole", "acceptance.md"),
    "demo": ("--port 7860", "generating.md#in-a-browser"),
    "train_drafter": ("--config configs/training/tiny.yaml --tokens work/own", "training.md"),
}
_TABLE = "| flag | what it does | default |\n|---|---|---|\n"
_METHODS = """## Flags by method

Each method rejects flags it does not use. All methods except `ar` also take `--verifier`.

| method | what it is | its flags |
|---|---|---|"""


def command_reference(*, output: str = str(ROOT / "docs/commands.md")) -> None:
    """Write the page to a file."""
    text = page()
    Path(output).write_text(text, encoding="utf-8")
    print(f"{output}: {text.count(chr(10))} lines")


def page() -> str:
    """Return the page docs/commands.md."""
    shared = _shared_flags()
    sections = [
        "# Commands",
        _NOTE,
        "`python main.py COMMAND --help` prints the same flags. After `make demo`, "
        "`adt-tree COMMAND` is short for `python main.py COMMAND`.",
        "The commands: " + ", ".join(f"[{name}](#{name})" for name in NAMES) + ".",
        "Write flags as `--flag value` or `--flag=value`. A switch needs no value; `--noflag` "
        "turns it off. You can repeat a flag that takes a list instead of writing commas. If you "
        "mistype a flag, the command stops before it loads anything.",
        *(_command(name, shared) for name in NAMES),
        _METHODS + "\n" + "\n".join(map(_method_row, METHODS)),
        *(f"## {group}\n\n{_TABLE}" + "\n".join(rows) for group, rows in shared.items()),
    ]
    return "\n\n".join(sections) + "\n"


def _shared_flags() -> dict[str, list[str]]:
    """Return the rows that several commands have, by the heading of their group."""
    counts = Counter(row for name in NAMES for row in _rows(name))
    shared: dict[str, list[str]] = {}
    for (group, row), commands in counts.items():
        if commands > 1:
            shared.setdefault(group, []).append(row)
    return shared


def _command(name: str, shared: dict[str, list[str]]) -> str:
    """Return a command's section: an example, its own flags and where the shared ones are."""
    summary, (example, guide) = command(name).summary, GUIDES[name]
    unshared: list[str] = []
    elsewhere: dict[str, list[str]] = {}  # shared rows by group
    for group, row in _rows(name):
        if row in shared.get(group, ()):
            elsewhere.setdefault(group, []).append(row)
        else:
            unshared.append(row)
    references = [_reference(group, rows, shared[group]) for group, rows in elsewhere.items()]
    sections = [
        f"## {name}",
        f"{summary[0].upper()}{summary[1:]}. [Guide]({guide}), for example "
        f"`python main.py {name} {example}`.",
        _TABLE + "\n".join(unshared) if unshared else "",
        "Shared flags: " + "; ".join(references),
    ]
    return "\n\n".join(filter(None, sections)) + "."


def _reference(group: str, rows: list[str], shared: list[str]) -> str:
    """Return a link to a group, with the flags of it that the command has, if not all."""
    anchor = "".join(c for c in group.lower() if c.isalnum() or c in " -_").replace(" ", "-")
    names = ", ".join(f"`{row.split('`')[1].split()[0]}`" for row in rows)
    return f"[{group}](#{anchor})" + ("" if len(rows) == len(shared) else f" ({names})")


def _rows(name: str) -> list[tuple[str, str]]:
    """Return a command's flags: the heading of the group and the row of the table."""
    return [
        (group, _flag_row(flag, f))
        for group, flags in flag_groups(command(name)).items()
        for flag, f in flags.items()
    ]


def _method_row(method: str) -> str:
    elsewhere = {"method", "verifier"}
    flags = [flag for flag in applicable({"method": method}) if flag not in elsewhere]
    shown = dict.fromkeys("adt_*" if flag.startswith("adt_") else flag for flag in flags)
    words = " ".join(f"`--{flag}`" for flag in shown) or "none"
    return f"| `{method}` | {METHODS[method].summary} | {words} |"


def _flag_row(name: str, f: Field) -> str:
    text = help_text(f)
    if "choices" in f.metadata:
        text += ": " + ", ".join(f"`{choice}`" for choice in f.metadata["choices"])
    return f"| `--{name}{value_name(f)}` | {_cell(text)} | {_cell(default_text(f))} |"


def _cell(text: str) -> str:
    """Return a text as a cell of a Markdown table."""
    for mark, shown in (("|", "\\|"), ("<", "&lt;"), (">", "&gt;"), ("*", "\\*")):
        text = text.replace(mark, shown)
    return text


if __name__ == "__main__":
    run_script(command_reference)
