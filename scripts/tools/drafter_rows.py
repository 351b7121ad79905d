"""The rows of `scripts.tools.all_drafters`: drafters, their methods, numbers of draft tokens."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from configs.fields import refuse
from models.files.folders import checkpoint_folder
from support.provenance import checkpoint_id

PRICED = "priced"
# By the number of draft tokens: name -> entry of --methods. Foreseen tokens do not continue the
# trees of `graft_similar`, which knows the way better.
_SIMILAR = "graft_similar:size=fixed:window=0"
DRAFTERS: dict[str, dict[str, str]] = {
    "16": {
        "jacobi": "jacobi:window=16",
        "ngram": "ngram:width=4:nodes=16",
        "similar": "similar:width=3:nodes=16",
        "adt": "adt:nodes=16",
        "eagle2": "eagle2:width=4:nodes=16",
        "marginal": "marginal:size=fixed:nodes=16",
        "graft": "graft:size=fixed:nodes=16",
        "graft_similar, head on level 1": f"{_SIMILAR}:depth=16:width=3:nodes=16:head_depth=1",
        "graft_similar, head on levels 1-2": f"{_SIMILAR}:depth=16:width=3:nodes=16:head_depth=2",
        "graft_similar, head on all": f"{_SIMILAR}:depth=16:width=3:nodes=16",
        "block": "block:depth=16:width=3:nodes=16",
    },
    "58": {
        "jacobi": "jacobi:window=58",
        "ngram": "ngram",
        "similar": "similar",
        "adt": "adt:nodes=58:adt_d_max=8:adt_k_max=10:adt_d_init=5:adt_k_init=10",
        "eagle2": "eagle2",
        "marginal": "marginal:size=fixed",
        "graft": "graft:size=fixed:depth=5:width=10",
        "graft_similar, head on level 1": f"{_SIMILAR}:head_depth=1",
        "graft_similar, head on levels 1-2": f"{_SIMILAR}:head_depth=2",
        "graft_similar, head on all": _SIMILAR,
        "block": "block",
    },
    PRICED: {
        "jacobi": "jacobi:size=priced",
        "similar": "similar:size=priced",
        "marginal": "marginal",
        "graft": "graft",
        "graft_similar, head on level 1": "graft_similar:head_depth=1",
        "graft_similar, head on levels 1-2": "graft_similar:head_depth=2",
        "graft_similar, head on all": "graft_similar",
        "block": "block:size=priced",
    },
}
# The same for each head of --heads.
HEADS: dict[str, dict[str, str]] = {
    budget: {name: DRAFTERS[budget][name] for name in names}
    for budget, names in {"16": ("adt", "eagle2"), PRICED: ("marginal",)}.items()
}


@dataclass(frozen=True)
class Line:
    """A row to measure: its number of draft tokens, its name, and its entry of --methods."""

    nodes: str
    name: str
    entry: str


@dataclass(frozen=True)
class Part:
    """The rows of one drafter: its folder, None for the target's own, and its file of costs."""

    drafter: str | None
    costs: Path
    lines: list[Line]


def parts_of(methods: str | None, nodes: str | None, heads: str | None, folder: Path) -> list[Part]:
    """Return what the flags of these names ask for: the rows of the target's own drafter first.

    Raises:
        ValueError: a method or a budget has no row; or --heads lacks a name or a folder, has a name
            twice, or has no row with these methods and budgets.
    """
    own = Part(None, folder / "costs.json", _chosen(methods, nodes, DRAFTERS))
    return [own, *_heads(heads, methods, nodes, folder)]


def _heads(heads: str | None, methods: str | None, nodes: str | None, folder: Path) -> list[Part]:
    """Return the parts of the heads that --heads names."""
    entries = [] if heads is None else heads.split(",")
    found = [(name.strip(), path.strip()) for name, _, path in (e.partition("=") for e in entries)]
    if not all(map(all, found)) or len(dict(found)) < len(found):
        refuse("heads", heads, "name=folder with different names, by commas")
    lines = _chosen(methods, nodes, HEADS)
    if found and not lines:
        allowed = "with some of --methods adt, eagle2, marginal and of --nodes 16, priced"
        refuse("heads", heads, allowed)
    parts = []
    for name, path in found:
        place = checkpoint_folder(path, "--heads")
        own = [replace(line, name=f"{name}: {line.name}") for line in lines]
        parts.append(Part(str(place), folder / f"costs-{checkpoint_id(place)}.json", own))
    return parts


def _chosen(
    methods: str | None, nodes: str | None, drafters: Mapping[str, Mapping[str, str]]
) -> list[Line]:
    """Return the lines of these methods and budgets; a SettingsError for one that has none."""
    lines = [
        Line(budget, name, entry) for budget, own in drafters.items() for name, entry in own.items()
    ]
    entries = (entry for own in DRAFTERS.values() for entry in own.values())
    budgets = _wanted("nodes", nodes, list(DRAFTERS))
    names = _wanted("methods", methods, [entry.partition(":")[0] for entry in entries])
    return [
        line for line in lines if line.nodes in budgets and line.entry.partition(":")[0] in names
    ]


def _wanted(flag: str, given: str | None, known: Sequence[str]) -> list[str]:
    """Return what a flag names, by commas; all that is known without it."""
    known = list(dict.fromkeys(known))
    wanted = known if given is None else [name.strip() for name in given.split(",")]
    if not set(wanted) <= set(known):
        refuse(flag, given, f"{', '.join(known)}, by commas")
    return wanted
