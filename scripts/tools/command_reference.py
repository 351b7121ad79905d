"""Write docs/commands from the flags: a page per command, and one of all commands.

`python -m scripts.tools.command_reference`
"""

from dataclasses import Field
from pathlib import Path

from configs.commands import COMMANDS
from configs.help import default_text, flag_groups, value_name
from configs.method_table import METHODS
from configs.methods import applicable
from configs.targets import ROOT
from support.script import run_script

_NOTE = "<!-- Made from the flags by `python -m scripts.tools.command_reference`. -->"
# By command: an example, and the page that explains it.
_GUIDES = {
    "generate_images": ('--prompt "a small red circle on a grassy background"', "generating.md"),
    "benchmark": ("--prompt prompts.txt --methods ar,jacobi,adt", "measuring.md"),
    "evaluate": ("--output_dir outputs/ar,outputs/adt", "evaluating.md"),
    "extract_tokens": ("--from_prompts --num_images 1000 --output_dir work/own", "training.md"),
    "inspect": ("--model anole --dtype bf16", "models.md"),
    "vq_distances": ("--model anole", "methods/acceptance.md"),
    "demo": ("--port 7860", "page.md"),
    "train_drafter": ("--config configs/training/tiny.yaml --tokens work/own", "training.md"),
}
_METHODS = """## Flags by method

A flag that a method has no use for is refused. All methods but `ar` also take `--verifier`.

| method | its flags |
|---|---|"""


def command_reference(*, output: str = str(ROOT / "docs/commands")) -> None:
    """Write the pages.

    Args:
        output: their folder.
    """
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, encoding="utf-8")
    print(f"{folder}: {len(pages())} pages")


def pages() -> dict[str, str]:
    """Return the text of every page by the name of its file."""
    return {"README.md": _overview()} | {f"{name}.md": _page(name) for name in COMMANDS}


def _overview() -> str:
    rows = [f"| [{name}]({name}.md) | {_cell(c.summary)} |" for name, c in COMMANDS.items()]
    sections = [
        "# Commands",
        _NOTE,
        "`python main.py COMMAND --help all` prints the same. In the environment that `make demo` "
        "has made, `adt-tree COMMAND` is the same as `python main.py COMMAND`.",
        "| command | what it does |\n|---|---|\n" + "\n".join(rows),
        "Flags are written `--flag value` or `--flag=value`. A switch needs no value; `--noflag` "
        "turns it off. An unknown flag ends the command before anything is loaded.",
    ]
    return "\n\n".join(sections) + "\n"


def _page(command: str) -> str:
    summary, (example, guide) = COMMANDS[command].summary, _GUIDES[command]
    sections = [
        f"# {command}",
        _NOTE,
        f"{summary[0].upper()}{summary[1:]}. [Guide](../{guide}), [all commands](README.md).",
        "<!-- not run: an example of the guide's -->\n"
        f"```bash\npython main.py {command} {example}\n```",
    ]
    if "method" in {flag for flags in flag_groups(command).values() for flag in flags}:
        sections.append(_METHODS + "\n" + "\n".join(map(_method_row, METHODS)))
    for group, flags in flag_groups(command).items():
        rows = "\n".join(_flag_row(flag, f) for flag, f in flags.items())
        sections.append(f"## {group}\n\n| flag | what it does | default |\n|---|---|---|\n{rows}")
    return "\n\n".join(sections) + "\n"


def _method_row(method: str) -> str:
    elsewhere = {"method", "verifier", "adt"}
    flags = [flag for flag in applicable({"method": method}) if flag not in elsewhere]
    shown = dict.fromkeys("adt_*" if flag.startswith("adt_") else flag for flag in flags)
    return f"| `{method}` | {' '.join(f'`--{flag}`' for flag in shown) or 'none'} |"


def _flag_row(name: str, f: Field) -> str:
    text = f.metadata["help"]
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
