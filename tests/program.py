"""The program's folders, from the ground up: each may import those before it; what files import."""

import ast
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import commands
from commands import command

FOLDERS = (
    "configs",
    "support",
    "models",
    "decoding",
    "drafters",
    "runs",
    "eval",
    "adt_tree",
    "page",
    "commands",
    "scenes",
    "scripts",
)


def imports(path: Path) -> set[str]:
    """Return the dotted names that a file imports, anywhere in its code."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def read_words(name: str, words: Sequence[str]) -> dict[str, str]:
    """The texts of a command's flags, by name, in the words that follow it."""
    asked = command(name)
    asked.import_plugin(words)
    return commands.read_words(words, asked.known)


def settings_of(name: str, texts: Mapping[str, str]) -> Any:
    """The settings of a command from the texts of its flags, by name."""
    asked = command(name)
    return asked.settings(*commands.values_of(texts, asked.known))


run_settings = partial(settings_of, "generate_images")
benchmark_settings = partial(settings_of, "benchmark")
tune_settings = partial(settings_of, "tune")
extraction_settings = partial(settings_of, "extract_tokens")
inspect_settings = partial(settings_of, "inspect")
page_settings = partial(settings_of, "demo")
train_settings = partial(settings_of, "train_drafter")
