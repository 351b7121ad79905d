"""The exact verifier against a naive walk down random trees."""

from __future__ import annotations

import pytest
import torch
from fakes import DictatedStreams, random_tree, tree_of

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
        children = (
            (tree.parents[image] == path[-1])
            & tree.present[image]
            & (tree.tokens[image] == choice)
            & (tree.depths[image] > 0)  # the root is its own parent
        )
        if not children.any():
            return path, emitted
        path.append(int(children.nonzero()[0]))


@pytest.mark.parametrize("absent", [0.0, 0.3])
@pytest.mark.parametrize("nodes", [0, 1, 5, 24])
@pytest.mark.parametrize("temperature", [0, 1])
def test_verdict_is_that_of_a_naive_walk(nodes, absent, temperature) -> None:
    generator = torch.Generator().manual_seed(nodes)
    longest, size = 0, (6, nodes + 1, VOCAB)
    for _ in range(8):
        tree = random_tree(generator, 6, nodes, VOCAB, absent)
        log_p, noise = torch.randn(2, *size, generator=generator, dtype=torch.float64)
        log_p, noise = log_p.log_softmax(-1), noise * temperature
        streams = DictatedStreams(noise if temperature else noise[..., :1])
        verdict = Exact()(tree, log_p, streams)
        choices = (log_p + noise).argmax(-1)
        for image in range(6):
            path, emitted = walk(tree, image, choices[image].tolist())
            count = len(path)
            assert int(verdict.accepted[image]) == count - 1
            assert verdict.path[image, :count].tolist() == path
            assert verdict.emitted[image, :count].tolist() == emitted
            longest = max(longest, count)
    assert longest >= {0: 1, 1: 2}.get(nodes, 3), "some drafts are accepted"


@pytest.mark.parametrize(
    ("tree", "choices"),
    [
        # node 1 is absent, so its fitting child 2 must not be accepted
        (tree_of([0, 1, 1, 2], [0, 0, 1, 2], absent=(1,)), [1, 1, 2, 0]),
        (tree_of([0, 2, 1], [0, 0, 1]), [1, 1, 1]),  # a right child below a wrong draft
    ],
    ids=["absent", "wrong"],
)
def test_a_parent_that_is_not_accepted_hides_its_children(tree, choices) -> None:
    log_p = torch.full((1, tree.nodes + 1, 3), -9.0)
    log_p[0, torch.arange(tree.nodes + 1), torch.tensor(choices)] = 0.0
    verdict = Exact()(tree, log_p, DictatedStreams(torch.zeros(1, tree.nodes + 1, 1)))
    assert verdict.accepted.tolist() == [0] and verdict.emitted[0, 0] == choices[0]
