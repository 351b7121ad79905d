"""The program's folders, from the ground up: each may import those before it; what files import."""

import ast
from collections.abc import Sequence
from pathlib import Path

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
    return command(name).texts(words)
