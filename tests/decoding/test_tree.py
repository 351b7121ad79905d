"""DraftTree against brute force on random trees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import path_to, random_tree

from decoding.tree import DraftTree


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("nodes", [0, 1, 2, 3, 7, 20])
def test_visible_is_self_and_ancestors(nodes, generator) -> None:
    tree = random_tree(generator, 3, nodes, vocab=5)
    for image in range(3):
        for node in range(nodes + 1):
            line, step = {node}, node
            while step:
                step = int(tree.parents[image, step])
                line.add(step)
            assert set(tree.visible[image, node].nonzero().flatten().tolist()) == line


def test_visible_of_a_long_chain() -> None:
    n = 40
    parents = torch.tensor([[0, *range(n)]])
    tree = DraftTree(
        torch.zeros_like(parents),
        parents,
        torch.arange(n + 1)[None],
        torch.zeros(1, n + 1),
        height=n,
    )
    assert torch.equal(tree.visible[0], torch.ones(n + 1, n + 1).tril().bool())


def test_extend_hangs_children_below_nodes_of_the_last_level(generator) -> None:
    tree, paths = DraftTree.root(torch.tensor([3, 4]), torch.float64), [{0: ()}, {0: ()}]
    levels = [[[0], [0]], [[2, 1, 3], [1, 3, 2]], [[9, 4], [5, 7]]]  # nodes to expand, per image
    for level, nodes in enumerate(torch.tensor(each) for each in levels):
        tokens = torch.randint(5, (*nodes.shape, 3), generator=generator)
        scores = -torch.rand(tokens.shape, generator=generator, dtype=torch.float64)
        tree, first = tree.extend(nodes, tokens, scores), tree.nodes + 1
        assert tree.newest == 3 * nodes.shape[1] and tree.height == level + 1
        for image, parents in enumerate(nodes.tolist()):
            for place, token in enumerate(tokens[image].flatten().tolist()):
                path = (*paths[image][parents[place // 3]], token)
                paths[image][first + place] = path
                assert path_to(tree, image, first + place) == path
                assert tree.depths[image, first + place] == len(path)


def test_keep_renumbers_parents(generator) -> None:
    tree = random_tree(generator, 3, 15, vocab=4)
    kept = []
    for image in range(3):
        chosen = {0}
        while len(chosen) < 8:  # a random set closed under parents
            node = int(torch.randint(1, 16, (1,), generator=generator))
            if int(tree.parents[image, node]) in chosen:
                chosen.add(node)
        kept.append(sorted(chosen - {0}))
    index = torch.tensor(kept)
    small = tree.keep(index, tree.scores.gather(1, index))
    assert small.nodes == 7
    for image in range(3):
        assert [path_to(small, image, i + 1) for i in range(7)] == [
            path_to(tree, image, i) for i in kept[image]
        ]
        assert small.scores[image, 1:].tolist() == tree.scores[image, kept[image]].tolist()
        assert small.depths[image].tolist() == [
            0,
            *(len(path_to(tree, image, i)) for i in kept[image]),
        ]


def test_distributions_stay_with_their_nodes() -> None:
    """Grown over two levels, then cut: a node's children and the distribution that they were drawn
    from move together.
    """
    tree, zeros = (
        DraftTree.root(torch.zeros(2, dtype=torch.long), torch.float64),
        torch.zeros(2, 1, 3),
    )
    first, second = torch.randn(2, 1, 5), torch.randn(2, 2, 5)
    tree = tree.extend(
        torch.zeros(2, 1, dtype=torch.long), torch.tensor([[[4, 1, 2]]] * 2), zeros, first
    )
    nodes = torch.tensor([[1, 3], [2, 3]])
    tree = tree.extend(nodes, torch.zeros(2, 2, 2, dtype=torch.long), torch.zeros(2, 2, 2), second)
    assert tree.width == 3 and torch.equal(tree.distributions[:, 0], first[:, 0])
    assert torch.equal(tree.distributions.gather(1, nodes[..., None].expand(-1, -1, 5)), second)
    small = tree.keep(
        torch.tensor([[3, 6], [3, 6]]), torch.zeros(2, 2)
    )  # the third child, and its first
    assert small.parents.tolist() == [[0, 0, 1]] * 2 and small.width == 3
    assert torch.equal(small.distributions[:, :2], torch.stack([first[:, 0], second[:, 1]], 1))


def test_absent_nodes_are_no_levels(generator) -> None:
    tree = random_tree(generator, 2, 9, vocab=4)
    scores = tree.scores.masked_fill(tree.depths == tree.depths.amax(1, keepdim=True), -torch.inf)
    shorter = replace(tree, scores=scores)
    assert torch.equal(shorter.levels, tree.levels - 1)
    assert torch.equal(shorter.present.sum(1), (scores > -torch.inf).sum(1))


def test_the_root_alone() -> None:
    tree = DraftTree.root(torch.tensor([4, 5]), torch.float64)
    assert tree.nodes == 0 and tree.levels.tolist() == [0, 0]
    assert tree.visible.tolist() == [[[True]], [[True]]] and tree.present.all()
    assert tree.scores.dtype == torch.float64
