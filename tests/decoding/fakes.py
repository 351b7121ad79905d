"""Trees, distributions and drafters made up for tests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.drafter import Decided
from decoding.noise import ImageNoise, NoiseShape
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict

Path = tuple[int, ...]


@dataclass(frozen=True)
class Dictated(ImageNoise):
    """Numbers that a test dictates: every draft is accepted with the same one."""

    number: float = 0.5

    def accept(self, depth: int, column: int) -> float:
        return self.number


@dataclass(frozen=True)
class DictatedStreams:
    """What a verifier reads: the target's noise (images, 1 + nodes, vocab or 1), accept numbers."""

    noise: Tensor
    number: float = 0.5

    def target(self) -> Tensor:
        return self.noise

    def images(self) -> list[Dictated]:
        images, _, width = self.noise.shape
        shape = NoiseShape(8, width, width == 1, self.noise.dtype, self.noise.device)
        return [Dictated(seed, 0, shape, self.number) for seed in range(images)]


def random_tree(
    generator: torch.Generator, images: int, nodes: int, vocab: int, absent: float = 0.0
) -> DraftTree:
    """Trees of random shape in the order of depth, siblings distinct; nodes are absent with this
    probability.
    """
    rows = []
    for _ in range(images):
        parents, used = [0], {}
        for node in range(1, nodes + 1):
            parent = max(parents[-1], int(torch.randint(node, (1,), generator=generator)))
            while len(used.get(parent, ())) == vocab:
                parent += 1
            used.setdefault(parent, []).append(node)
            parents.append(parent)
        tokens = [0] * (nodes + 1)
        for children in used.values():
            for child, token in zip(
                children, torch.randperm(vocab, generator=generator).tolist(), strict=False
            ):
                tokens[child] = token
        depths, scores = [0], [0.0]
        for node in range(1, nodes + 1):
            gone = torch.rand(1, generator=generator) < absent
            depths.append(depths[parents[node]] + 1)
            step = torch.rand(1, generator=generator, dtype=torch.float64).log()
            scores.append(-torch.inf if gone else scores[parents[node]] + float(step))
        rows.append((tokens, parents, depths, scores))
    tokens, parents, depths, scores = map(torch.tensor, zip(*rows, strict=True))
    return DraftTree(tokens, parents, depths, scores.double(), height=int(depths.max()))


def path_to(tree: DraftTree, image: int, node: int) -> Path:
    """The tokens from the root's child down to a node."""
    path: Path = ()
    while node:
        path = (int(tree.tokens[image, node]), *path)
        node = int(tree.parents[image, node])
    return path


def scored_paths(tree: DraftTree, image: int) -> dict[Path, float]:
    """The present nodes of an image's tree, as paths, with their scores."""
    present = tree.present[image].nonzero().flatten().tolist()
    return {path_to(tree, image, node): float(tree.scores[image, node]) for node in present if node}


def random_distribution(image: int, path: Path, vocab: int = 9, spread: float = 2.0) -> Tensor:
    """A log-distribution (vocab,) that is a function of an image and a path."""
    generator = torch.Generator().manual_seed(hash((image, *path)) % 2**31)
    return (spread * torch.randn(vocab, generator=generator, dtype=torch.float64)).log_softmax(-1)


class Unseeing:
    """A drafter without foresight, and without interest in what was verified."""

    window, replays, trust, reads = 0, False, None, ()

    def observe(self, tree: DraftTree, log_p: Tensor, verdict: Verdict) -> None:
        pass


class PathDrafter(Unseeing):
    """log q after a node = distribution(image, path below the root)."""

    def __init__(self, distribution: Callable[[int, Path], Tensor]):
        self.distribution = distribution
        self.levels = 0  # how often it was asked

    def expand(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        self.levels += 1
        rows = enumerate(nodes.tolist())
        return torch.stack(
            [
                torch.stack([self.distribution(i, path_to(tree, i, node)) for node in row])
                for i, row in rows
            ]
        )


class ScriptedDrafter(Unseeing):
    """log q after a node = distribution(text of the prompt's ids, image position), whatever the
    path.
    """

    def __init__(self, distribution: Callable[[Path, int], Tensor]):
        self.distribution = distribution

    def open(self, images: int, watch: object, fixed: bool = False) -> None:
        self.keys: list[Path] = [()] * images
        self.decided = [0] * images

    def start(self, image: int, prompt: object, features: Tensor, code: Tensor) -> None:
        self.keys[image], self.decided[image] = tuple(prompt.ids[0].tolist()), 1

    def expand(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        depths = tree.depths.gather(1, nodes).tolist()
        rows = zip(self.keys, self.decided, depths, strict=True)
        return torch.stack(
            [
                torch.stack([self.distribution(key, decided + d) for d in row])
                for key, decided, row in rows
            ]
        )

    def commit(self, decided: Decided) -> None:
        assert decided.codes.shape[1] >= max(decided.counts)
        self.decided = [a + b for a, b in zip(self.decided, decided.counts, strict=True)]

    def select(self, images: list[int]) -> None:
        self.keys, self.decided = [self.keys[i] for i in images], [self.decided[i] for i in images]


def chi_square(counts: Tensor, probabilities: Tensor) -> float:
    """p-value of counts (groups, n), given how many each group has; outcomes that are expected
    less than five times are pooled within their group, and left out if they still are too few.
    """
    expected = probabilities * counts.sum(1, keepdim=True)
    assert not counts[probabilities == 0].any(), "impossible outcomes"
    rare = expected < 5
    cells = []
    for numbers in (counts, expected):
        pooled = (numbers * rare).sum(1, keepdim=True)
        cells.append(torch.cat([numbers * ~rare, pooled], 1))
    enough = cells[1] >= 5
    freedom = (enough.sum(1) - 1).clamp(min=0).sum()
    if not freedom:
        return 1.0
    statistic = ((cells[0] - cells[1]) ** 2 / cells[1])[enough].sum()
    return float(torch.special.gammaincc(freedom / 2, statistic / 2))


def p_value(counts: Tensor, probabilities: Tensor) -> float:
    """Chi-square test; outcomes expected less than five times are pooled."""
    expected = probabilities * counts.sum()
    rare = expected < 5
    pooled = [
        torch.cat([x[~rare], x[rare].sum()[None]]) if rare.any() else x for x in (counts, expected)
    ]
    statistic = ((pooled[0] - pooled[1]) ** 2 / pooled[1]).sum()
    return float(torch.special.gammaincc(torch.tensor((len(pooled[0]) - 1) / 2), statistic / 2))


@dataclass(frozen=True)
class Drawn:
    """The noise of a round's children, by a function of positions; without one of T = 0."""

    at: Callable[[Tensor], Tensor] = lambda positions: torch.zeros(*positions.shape, 1)

    def ahead(self, decided: Tensor, count: int) -> Tensor:
        return self.at(decided + torch.arange(count))

    def children(self, positions: Tensor, parents: int) -> Tensor:
        return self.at(positions)
