"""The exact verifier against a naive walk down random trees."""

from __future__ import annotations

import pytest
import torch
from fakes import DictatedStreams, random_tree

from decoding.tree import DraftTree
from decoding.verifiers.exact import Exact

VOCAB = 4


def walk(tree: DraftTree, image: int, choices: list[int]) -> tuple[list[int], list[int]]:
    """Path (root first) and emitted tokens: follow the child that carries the target's choice while
    there is one.
    """
    path, emitted = [0], []
    while True:
        choice = choices[path[-1]]
        emitted.append(choice)
        children = [
            node
            for node in range(1, tree.nodes + 1)
            if int(tree.parents[image, node]) == path[-1]
            and bool(tree.present[image, node])
            and int(tree.tokens[image, node]) == choice
        ]
        if not children:
            return path, emitted
        path.append(children[0])


@pytest.mark.parametrize("absent", [0.0, 0.3])
@pytest.mark.parametrize("nodes", [0, 1, 5, 24])
@pytest.mark.parametrize("temperature", [0, 1])
def test_verdict_is_that_of_a_naive_walk(nodes, absent, temperature) -> None:
    generator = torch.Generator().manual_seed(nodes)
    longest = 0
    for _ in range(8):
        tree = random_tree(generator, 6, nodes, VOCAB, absent)
        log_p = torch.randn(
            6, nodes + 1, VOCAB, generator=generator, dtype=torch.float64
        ).log_softmax(-1)
        noise = torch.randn(
            6, nodes + 1, VOCAB if temperature else 1, generator=generator, dtype=torch.float64
        )
        verdict = Exact()(tree, log_p, DictatedStreams(noise * temperature))
        choices = (log_p + noise * temperature).argmax(-1)
        for image in range(6):
            path, emitted = walk(tree, image, choices[image].tolist())
            count = len(path)
            assert int(verdict.accepted[image]) == count - 1
            assert verdict.path[image, :count].tolist() == path
            assert verdict.emitted[image, :count].tolist() == emitted
            longest = max(longest, count)
    assert longest >= {0: 1, 1: 2}.get(nodes, 3), "some drafts are accepted"


def test_an_absent_node_hides_its_descendants() -> None:
    """The children of an absent node are never accepted, even where their tokens fit."""
    tree = DraftTree(
        torch.tensor([[0, 1, 1, 2]]),
        torch.tensor([[0, 0, 1, 2]]),
        torch.tensor([[0, 1, 2, 3]]),
        torch.tensor([[0.0, -torch.inf, -1.0, -2.0]]),
        height=3,
    )
    log_p = torch.full((1, 4, 3), -9.0)
    log_p[0, torch.arange(4), torch.tensor([1, 1, 2, 0])] = 0.0
    verdict = Exact()(tree, log_p, DictatedStreams(torch.zeros(1, 4, 1)))
    assert verdict.accepted.tolist() == [0] and verdict.emitted[0, 0] == 1


def test_a_wrong_parent_hides_a_right_child() -> None:
    tree = DraftTree(
        torch.tensor([[0, 2, 1]]),
        torch.tensor([[0, 0, 1]]),
        torch.tensor([[0, 1, 2]]),
        torch.zeros(1, 3),
        height=2,
    )
    log_p = torch.full((1, 3, 3), -9.0)
    log_p[0, :, 1] = 0.0  # the target wants 1, the draft says 2 and then 1
    assert Exact()(tree, log_p, DictatedStreams(torch.zeros(1, 3, 1))).accepted.tolist() == [0]
