"""Flags that take several names: by commas, in double quotes where a name holds a comma."""

import os
import re
from collections.abc import Iterable

# A name in quotes, in which a quote is doubled, or a bare one; then a comma or the end.
_ENTRY = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^,]*?))\s*(,|\Z)', re.DOTALL)


def split_list(text: str) -> list[str]:
    """Return the names in a list such as `one,"two, and more"`; blanks around bare names go."""
    names: list[str] = []
    end, more = 0, ","
    while more:
        match = _ENTRY.match(text, end)
        assert match is not None  # the pattern matches any text
        quoted, bare, more = match.groups()
        names.append(bare if quoted is None else quoted.replace('""', '"'))
        end = match.end()
    return names


def join_list(names: Iterable[str]) -> str:
    """Return the list that `split_list` splits into these names."""
    return ",".join(map(in_list, names))


def run_parts(name: str) -> list[str]:
    """Return the folders that `one+two` joins to one run; a folder of that very name is one."""
    return [name] if os.path.exists(name) else [*map(os.path.expanduser, name.split("+"))]


def in_list(name: str) -> str:
    """Return a name as a list writes it: in quotes if it needs them."""
    bare = split_list(name) == [name] and not name.startswith('"')
    return name if bare else '"' + name.replace('"', '""') + '"'
