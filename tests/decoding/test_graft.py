"""Grafted trees against plain Python: which paths they hold, what these promise, which of them are
renewed.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from fakes import Path, path_to, random_tree

from decoding.graft import Foreseen, graft
from decoding.policies.base import Shape, TreePlan
from decoding.policies.dynamic import DynamicTree
from decoding.renewal import HALVED, RENEWAL
from decoding.tree import DraftTree

VOCAB, WINDOW = 3, 5


def foreseen(generator: torch.Generator, images: int, reach: int = WINDOW) -> Foreseen:
    tokens = torch.randint(VOCAB, (images, WINDOW), generator=generator)
    hits = torch.rand(images, WINDOW, generator=generator, dtype=torch.float64).log()
    return Foreseen(tokens, hits, torch.full((images, 1), reach))


def grafted_paths(tree: DraftTree, image: int, ahead: Foreseen) -> dict[Path, float]:
    """The chances of all paths: those of the tree, better where they are foreseen, and their
    continuations.
    """
    tokens, hits = ahead.tokens[image].tolist(), ahead.hits[image].exp().tolist()
    chances: dict[Path, float] = {(): 1.0}
    paths = {n: path_to(tree, image, n) for n in tree.present[image].nonzero().flatten().tolist()}
    for node, path in paths.items():
        if path:
            own = math.exp(
                float(tree.scores[image, node] - tree.scores[image, tree.parents[image, node]])
            )
            place = len(path) - 1
            if place < WINDOW and path[-1] == tokens[place]:
                own = max(own, hits[place])
            chances[path] = chances[path[:-1]] * own
    for path in list(chances):
        while len(path) < min(WINDOW, int(ahead.reach[image])):
            longer = (*path, tokens[len(path)])
            chances.setdefault(longer, chances[path] * hits[len(path)])
            path = longer
    return chances


@pytest.mark.parametrize("reach", [0, 2, WINDOW, 9])
@pytest.mark.parametrize("nodes", [0, 1, 6])
def test_every_path_once_with_its_chance(nodes, reach) -> None:
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        tree = random_tree(generator, 2, nodes, VOCAB, absent=0.2)
        ahead = foreseen(generator, 2, reach)
        found = graft(tree, ahead)
        for image in range(2):
            present = found.present[image].nonzero().flatten().tolist()
            paths = [path_to(found, image, node) for node in present]
            scores = {
                path: math.exp(found.scores[image, node])
                for path, node in zip(paths, present, strict=True)
            }
            assert len(scores) == len(paths)  # nothing twice
            assert scores == pytest.approx(grafted_paths(tree, image, ahead))
            assert [len(path) for path in paths] == found.depths[image, present].tolist()
            assert found.height >= max(map(len, paths))


def test_the_best_path_and_its_continuation_are_renewed() -> None:
    tree = DraftTree(
        tokens=torch.tensor([[0, 1, 2, 0, 1]]),
        parents=torch.tensor([[0, 0, 0, 1, 2]]),
        depths=torch.tensor([[0, 1, 1, 2, 2]]),
        scores=torch.tensor([[1.0, 0.6, 0.3, 0.1, 0.2]]).log(),
        height=2,
    )
    ahead = Foreseen(
        torch.tensor([[0, 0, 2, 2]]), torch.full((1, 4), 0.5).log(), torch.tensor([[4]])
    )
    found = graft(tree, ahead)
    extra = found.worth[0] - found.scores[0].exp()
    renewed = {
        path_to(found, 0, node): float(extra[node])
        for node in extra.gt(1e-6).nonzero().flatten().tolist()
    }
    expected = {
        path: RENEWAL * 2 ** -((len(path) / HALVED) ** 2)
        for path in ((), (1,), (1, 0), (1, 0, 2), (1, 0, 2, 2))
    }
    assert renewed == pytest.approx(
        expected
    )  # (1, 0) is foreseen: 0.3 instead of 0.1, more than 0.2 of (2, 1)


def test_pruning_keeps_what_is_worth_most() -> None:
    generator = torch.Generator().manual_seed(3)
    found = graft(random_tree(generator, 1, 6, VOCAB), foreseen(generator, 1))
    shape = Shape(3, 3, 8, WINDOW)
    kept = DynamicTree(shape).prune(found, TreePlan.of((shape,)))
    present = found.present[0].nonzero().flatten().tolist()[1:]
    worth = {path_to(found, 0, node): float(found.worth[0, node]) for node in present}
    best = sorted(worth, key=lambda path: -worth[path])[:8]
    assert {path_to(kept, 0, node) for node in range(1, kept.nodes + 1)} == set(best)


def test_distributions_go_with_the_nodes_that_are_drawn_from_them() -> None:
    generator = torch.Generator().manual_seed(0)
    distributions = torch.rand(1, WINDOW, VOCAB, generator=generator)
    ahead = replace(foreseen(generator, 1), log_q=distributions)
    shape = Shape(0, 1, WINDOW, WINDOW)
    root = DraftTree.root(torch.tensor([0]), torch.float64)
    tree = DynamicTree(shape).prune(graft(root, ahead), TreePlan.of((shape,)))
    assert tree.depths.tolist() == [list(range(WINDOW + 1))]
    assert torch.equal(tree.distributions[0, tree.parents[0, 1:]], distributions[0])
    assert tree.width == 1
