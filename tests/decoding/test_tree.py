"""DraftTree against brute force on random trees."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import Path, path_to, random_tree, tree_of

from decoding.tree import GrowingTree


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(0)


@pytest.mark.parametrize("nodes", [0, 1, 2, 3, 7, 20])
def test_a_node_sees_itself_and_its_ancestors(nodes, generator) -> None:
    tree = random_tree(generator, 3, nodes, vocab=5)
    for node in range(nodes + 1):
        for image in range(3):
            ancestors, step = {node}, node
            while step:
                step = int(tree.parents[image, step])
                ancestors.add(step)
            assert set(tree.visible[image, node].nonzero().flatten().tolist()) == ancestors
        last = torch.full((3, 1), node)
        assert torch.equal(tree.path_mask(last), tree.visible[:, node])
        assert torch.equal(tree.verified_path(last), tree.visible[:, node])


def test_visible_of_a_long_chain() -> None:
    tree = tree_of([0] * 41, [0, *range(40)])
    for width in (1, 41):  # a chain has a shortcut
        visible = replace(tree, width=width).visible[0]
        assert torch.equal(visible, torch.ones(41, 41).tril().bool())


def test_extend_hangs_children_below_nodes_of_the_last_level(generator) -> None:
    tree = GrowingTree.root(torch.tensor([3, 4]), torch.float64)
    newest: list[list[Path]] = [[()], [()]]
    paths: list[list[Path]] = [[()], [()]]
    for picks in ([[0], [0]], [[1, 0, 2], [0, 2, 1]], [[8, 3], [4, 6]]):  # per image
        picked = torch.tensor(picks)
        tokens = torch.randint(5, (*picked.shape, 3), generator=generator)
        scores = -torch.rand(tokens.shape, generator=generator, dtype=torch.float64)
        tree = tree.extend(picked, tokens, scores)
        for image in range(2):
            parents = [newest[image][pick] for pick in picks[image]]
            rows = zip(parents, tokens[image].tolist(), strict=True)
            newest[image] = [(*path, token) for path, row in rows for token in row]
            paths[image] += newest[image]
    whole = tree.complete()
    assert (whole.height, whole.width, whole.nodes) == (3, 3, tree.nodes)
    for image in range(2):
        assert [path_to(whole, image, n) for n in range(whole.nodes + 1)] == paths[image]
        assert whole.depths[image].tolist() == list(map(len, paths[image]))


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
        paths = [path_to(tree, image, node) for node in kept[image]]
        assert [path_to(small, image, i + 1) for i in range(7)] == paths
        assert small.scores[image, 1:].tolist() == tree.scores[image, kept[image]].tolist()
        assert small.depths[image].tolist() == [0, *map(len, paths)]


def test_distributions_stay_with_their_nodes() -> None:
    """Grown over two levels, then cut: a node's children and the distribution that they were drawn
    from move together.
    """
    growing, zeros = GrowingTree.root(torch.zeros(2).long(), torch.float64), torch.zeros(2, 1, 3)
    first, second = torch.randn(2, 1, 5), torch.randn(2, 2, 5)
    tokens = torch.tensor([[[4, 1, 2]]] * 2)
    growing = growing.extend(torch.zeros(2, 1).long(), tokens, zeros, first)
    nodes = torch.tensor([[1, 3], [2, 3]])
    growing = growing.extend(nodes - 1, torch.zeros(2, 2, 2).long(), torch.zeros(2, 2, 2), second)
    tree = growing.complete()
    assert tree.width == 3 and torch.equal(tree.log_q[:, 0], first[:, 0])
    assert torch.equal(tree.log_q.gather(1, nodes[..., None].expand(-1, -1, 5)), second)
    # the third child, and its first
    small = tree.keep(torch.tensor([[3, 6], [3, 6]]), torch.zeros(2, 2))
    assert small.parents.tolist() == [[0, 0, 1]] * 2 and small.width == 3
    assert torch.equal(small.log_q[:, :2], torch.stack([first[:, 0], second[:, 1]], 1))


def test_absent_nodes_are_no_levels(generator) -> None:
    tree = random_tree(generator, 2, 9, vocab=4)
    scores = tree.scores.masked_fill(tree.depths == tree.depths.amax(1, keepdim=True), -torch.inf)
    shorter = replace(tree, scores=scores)
    assert torch.equal(shorter.levels, tree.levels - 1)
    assert torch.equal(shorter.present.sum(1), (scores > -torch.inf).sum(1))


def test_the_root_alone() -> None:
    tree = GrowingTree.root(torch.tensor([4, 5]), torch.float64).complete()
    assert tree.nodes == 0 and tree.levels.tolist() == [0, 0] and tree.chain
    assert tree.visible.tolist() == [[[True]], [[True]]] and tree.present.all()
    assert tree.scores.dtype == torch.float64
