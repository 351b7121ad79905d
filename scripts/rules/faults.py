"""Planted faults that enumeration must see, down to one node in a thousand."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple, cast

from decoding.noise import HostNoise
from decoding.rules.path_explore import PathExplore
from decoding.rules.sjd_pac import SjdPac
from decoding.rules.spectr import SpecTr
from decoding.verifiers.host import HostRule, ImageTree
from decoding.verifiers.sampled import Sampled
from scripts.rules.whole_rounds import (
    P_STAYS,
    RATIO_1,
    BlockKeepsRest,
    ForgetsBranch,
    Keeps,
    KeepsRest,
)


class Careless(Sampled):
    """Accepts the first child outright at one node in a thousand."""

    def choose_child(self, tree: ImageTree, node: int, noise: HostNoise) -> tuple:
        if tree.children[node] and noise.accept(tree.depths[node], -1 - node) < 0.001:
            return tree.children[node][0], tree.p(node)
        return super().choose_child(tree, node, noise)


class OneNumber(Sampled):
    """Judges all siblings with the same number."""

    def choose_child(self, tree: ImageTree, node: int, noise: HostNoise) -> tuple:
        return super().choose_child(tree, node, cast(HostNoise, _Shared(noise)))


class _Shared:
    def __init__(self, noise: HostNoise):
        self.noise = noise

    def accept(self, depth: int, column: int) -> float:
        return self.noise.accept(depth, 0)


class Fault(NamedTuple):
    """A rule with a fault, and where it shows."""

    name: str
    rule: HostRule
    tree: str
    proposal: str = "sampled"
    broken: Callable[[], AbstractContextManager] = nullcontext


FAULTS = (
    Fault("one node in a thousand accepts outright", Careless(), "chain"),
    Fault("the same in a tree", Careless(), "three levels"),
    Fault("siblings share a number", OneNumber(), "siblings"),
    Fault("the refused stay", Keeps(), "cousins", "topk"),
    Fault("p stays", Sampled(), "siblings", broken=P_STAYS),
    Fault("pruned by value", Sampled(), "pruned"),
    Fault("p stays, from the leaves", KeepsRest(), "cousins"),
    Fault("p stays, of a block", BlockKeepsRest(), "chain"),
    Fault("a refused branch is forgotten", ForgetsBranch(), "three levels"),
    Fault("min(1, p / q) of every draw", SpecTr(), "siblings", broken=RATIO_1),
    Fault("path by path", PathExplore(), "cousins"),
    Fault("the longest path wins", SjdPac(), "cousins"),
)
