"""Rules that judge one image's tree at a time on the host.

A walk stops at the first child that it accepts, so it reads few nodes of a tree. As operations of a
GPU every one of its steps would be a launch for all children and all images; on the host it is a
loop over small arrays. Some rules have a kernel for a GPU instead (`decoding.verifiers.nodewise`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from decoding.device import on_device, to_host
from decoding.noise import HostNoise
from decoding.noise_table import NodeNoise
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict

Array = np.ndarray
# the accepted child of a node, and the distribution (vocab,) of the next token if that is None
Choice = tuple[int | None, Array]
TINY = np.finfo(float).tiny  # stands for 0 where it would divide


@dataclass(frozen=True)
class ImageTree:
    """One image's tree. Index 0 is the root, parents precede children."""

    tokens: list[int]
    parents: list[int]
    depths: list[int]
    children: list[list[int]]  # of every node those that are present, in the tree's order
    log_p: Array  # (1 + nodes, vocab) the target's distribution after every node
    log_q: Array | None  # the drafter's, which children were sampled from; None: they were not
    by_rank: bool  # as in `DraftTree`

    def p(self, node: int) -> Array:
        """Return the target's distribution (vocab,) after a node, in fp64."""
        return softmax(self.log_p[node])

    def q(self, node: int, drawn: Sequence[int] = ()) -> Array:
        """Return the drafter's distribution (vocab,) after a node, in fp64, without drawn tokens.

        It is all 0 if nothing is left.
        """
        assert self.log_q is not None, "only rules with `reads_distributions` ask"
        # not q without them, scaled: beside a likely token others may be 0 that are drawn after it
        rest = self.log_q[node].copy()
        rest[list(drawn)] = -np.inf
        return softmax(rest) if rest.max() > -np.inf else np.zeros(len(rest))

    def draws(self, node: int) -> Iterator[tuple[int, int, Array]]:
        """Yield a node's children, their tokens and the q that each was drawn from, in turn."""
        drawn: list[int] = []
        for child in self.children[node]:
            yield child, self.tokens[child], self.q(node, drawn)
            drawn.append(self.tokens[child])

    def path_to(self, node: int) -> list[int]:
        """Return the nodes from the root to a node."""
        path = [node]
        while path[-1]:
            path.append(self.parents[path[-1]])
        return path[::-1]


class HostRule:
    """A rule that judges on the host: it copies trees and distributions there once.

    Its random numbers are those of the streams `accept` and `residual`. Numbers of the stream
    `target` would bias it, since `coupled` drafts were chosen with them.
    """

    name: str
    lossless = True
    on_device = False
    reads_distributions = False
    emptied = "rounding has left no token to draw"

    def judge(self, tree: ImageTree, noise: HostNoise) -> tuple[list[int], Array]:
        """Judge a tree above temperature 0.

        Returns:
            The root and the accepted nodes in order, and the distribution (vocab,) of the bonus
            token that follows them.
        """
        raise NotImplementedError

    def judge_greedily(self, tree: ImageTree, noise: HostNoise) -> tuple[list[int], Array]:
        """Judge a tree at temperature 0: a child has to be the target's argmax."""
        path = [0]
        while True:
            choice = int(tree.log_p[path[-1]].argmax())
            right = [child for child in tree.children[path[-1]] if tree.tokens[child] == choice]
            if not right:
                return path, point_mass(choice, tree.log_p.shape[1])
            path.append(right[0])

    def __call__(self, tree: DraftTree, log_p: Tensor, noise: NodeNoise) -> Verdict:
        """Return the verdict on a batch of trees.

        Raises:
            FloatingPointError: no token is left for a bonus token.
        """
        rows = []
        for one, numbers in zip(trees_on_host(tree, log_p), noise.images(), strict=True):
            judge = self.judge_greedily if numbers.greedy else self.judge
            path, distribution = judge(one, numbers)
            if not distribution.any():
                raise FloatingPointError(
                    f"--verifier {self.name}: all children were refused and {self.emptied}"
                )
            rows.append(_packed(one, path, draw(distribution, numbers.residual(len(path) - 1))))
        return Verdict.unpack(on_device(rows, log_p.device))


class Walk(HostRule):
    """Goes down from the root while a child is accepted, judging children in the tree's order."""

    def choose_child(self, tree: ImageTree, node: int, noise: HostNoise) -> Choice:
        """Return the accepted child of a node."""
        raise NotImplementedError

    def judge(self, tree: ImageTree, noise: HostNoise) -> tuple[list[int], Array]:
        path = [0]
        while True:
            child, distribution = self.choose_child(tree, path[-1], noise)
            if child is None:
                return path, distribution
            path.append(child)


def trees_on_host(tree: DraftTree, log_p: Tensor) -> list[ImageTree]:
    """Return every image's tree; waits for the device."""
    # one copy for all four, since each copy waits for the device
    columns = torch.stack([tree.tokens, tree.parents, tree.depths, tree.present], 1).tolist()
    p, q = to_host(log_p), None if tree.log_q is None else to_host(tree.log_q)
    trees = []
    for image, (tokens, parents, depths, present) in enumerate(columns):
        children: list[list[int]] = [[] for _ in tokens]
        for node in range(1, len(tokens)):
            if present[node]:
                children[parents[node]].append(node)
        own_q = None if q is None else q[image]
        trees.append(ImageTree(tokens, parents, depths, children, p[image], own_q, tree.by_rank))
    return trees


def _packed(tree: ImageTree, path: list[int], bonus: int) -> list[int]:
    """Return the row of `Verdict.packed` that emits a path's tokens and the bonus token."""
    emitted = [*(tree.tokens[node] for node in path[1:]), bonus]
    rest = [0] * (len(tree.tokens) - len(path))
    return [len(path) - 1, *path, *rest, *emitted, *rest]


def softmax(log_weights: Array) -> Array:
    """Return the distribution (vocab,) of log-probabilities, in fp64."""
    # in their own type, whose rounding is as large: in fp64 exp takes seven times as long
    weights = np.exp(log_weights - log_weights.max()).astype(np.float64)
    return weights / weights.sum()


def normalised(weights: Array) -> Array:
    """Return weights (vocab,) scaled to sum to 1; zeros stay."""
    total = weights.sum()
    return weights / total if total > 0 else weights


def draw(distribution: Array, number: float) -> int:
    """Return the token of a distribution (vocab,) that a number of (0, 1) stands for."""
    # one number and a running sum: a Gumbel number per token would take longer than the walk
    running = distribution.cumsum()
    token = int(np.searchsorted(running, number * running[-1], side="right"))
    return min(token, len(running) - 1)  # NaN, which is reported after the round, sorts last


def residual(p: Array, q: Array) -> Array:
    """Return norm(max(p - q, 0)): what is left for the bonus token where a draw was refused."""
    return normalised(np.maximum(p - q, 0))


def point_mass(token: int, vocab: int) -> Array:
    """Return the distribution (vocab,) of a token that is certain."""
    distribution = np.zeros(vocab)
    distribution[token] = 1
    return distribution
