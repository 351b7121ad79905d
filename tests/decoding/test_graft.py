"""Grafted trees against plain Python: which paths they hold, what these promise, which of them are
renewed.
"""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from fakes import Path, path_to, random_tree, round_of, tree_of

from decoding.graft import HALVED, REFRESH, Chain, graft, verify_gain
from decoding.graphs import TreeShape
from decoding.policies.dynamic import best_nodes
from decoding.tree import DraftTree

VOCAB, WINDOW = 3, 5


def chain(generator: torch.Generator, images: int, reach: int = WINDOW) -> Chain:
    tokens = torch.randint(VOCAB, (images, WINDOW), generator=generator)
    hits = torch.rand(images, WINDOW, generator=generator, dtype=torch.float64).log()
    return Chain(tokens, hits, torch.full((images, 1), reach))


def grafted_paths(tree: DraftTree, image: int, ahead: Chain) -> dict[Path, float]:
    """The chances of all paths: those of the tree, better where they are foreseen, and their
    continuations.
    """
    tokens, hits = ahead.tokens[image].tolist(), ahead.log_hits[image].exp().tolist()
    chances: dict[Path, float] = {(): 1.0}
    paths = {n: path_to(tree, image, n) for n in tree.present[image].nonzero().flatten().tolist()}
    for node, path in paths.items():
        if path:
            above = tree.scores[image, tree.parents[image, node]]
            chance, step = math.exp(float(tree.scores[image, node] - above)), len(path) - 1
            if step < WINDOW and path[-1] == tokens[step]:
                chance = max(chance, hits[step])
            chances[path] = chances[path[:-1]] * chance
    for path in list(chances):
        while len(path) < min(WINDOW, int(ahead.reach[image])):
            longer = (*path, tokens[len(path)])
            chances.setdefault(longer, chances[path] * hits[len(path)])
            path = longer
    return chances


@pytest.mark.parametrize("reach", [0, 2, WINDOW, 9])
@pytest.mark.parametrize("nodes", [1, 6])
def test_every_path_once_with_its_chance(nodes, reach) -> None:
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        tree = random_tree(generator, 2, nodes, VOCAB, absent=0.2)
        ahead = chain(generator, 2, reach)
        found, _ = graft(tree, ahead)
        for image in range(2):
            present = found.present[image].nonzero().flatten().tolist()
            paths = [path_to(found, image, node) for node in present]
            scores = dict(zip(paths, found.scores[image, present].exp().tolist(), strict=True))
            assert len(scores) == len(paths)  # nothing twice
            assert scores == pytest.approx(grafted_paths(tree, image, ahead))
            assert [len(path) for path in paths] == found.depths[image, present].tolist()
            assert found.height >= max(map(len, paths))


def test_the_best_path_and_its_continuation_are_renewed() -> None:
    scores = [math.log(chance) for chance in (1.0, 0.6, 0.3, 0.1, 0.2)]
    tree = tree_of([0, 1, 2, 0, 1], [0, 0, 0, 1, 2], scores=scores)
    ahead = Chain(torch.tensor([[0, 0, 2, 2]]), torch.full((1, 4), 0.5).log(), torch.tensor([[4]]))
    found, best = graft(tree, ahead)
    extra = (verify_gain(found, best) - found.scores.exp())[0]
    nodes = extra.gt(1e-6).nonzero().flatten().tolist()
    renewed = {path_to(found, 0, node): float(extra[node]) for node in nodes}
    # (1, 0) is foreseen: 0.3 instead of 0.1, more than 0.2 of (2, 1)
    paths = (), (1,), (1, 0), (1, 0, 2), (1, 0, 2, 2)
    expected = {path: REFRESH * 2 ** -((len(path) / HALVED) ** 2) for path in paths}
    assert renewed == pytest.approx(expected)


def test_pruning_keeps_what_is_worth_most() -> None:
    generator = torch.Generator().manual_seed(3)
    found, path = graft(random_tree(generator, 1, 6, VOCAB), chain(generator, 1))
    gain = verify_gain(found, path)
    kept = best_nodes(found, gain, round_of([TreeShape(3, 3, 8, WINDOW)]))
    present = found.present[0].nonzero().flatten().tolist()[1:]
    gains = {path_to(found, 0, node): float(gain[0, node]) for node in present}
    best = sorted(gains, key=lambda path: -gains[path])[:8]
    assert {path_to(kept, 0, node) for node in range(1, kept.nodes + 1)} == set(best)


def test_a_chain_alone_carries_what_its_tokens_were_taken_from() -> None:
    generator = torch.Generator().manual_seed(0)
    log_q = torch.rand(1, WINDOW, VOCAB, generator=generator)
    tree = replace(chain(generator, 1, 3), log_q=log_q).as_tree(torch.tensor([0]))
    assert tree.depths.tolist() == [list(range(WINDOW + 1))]
    assert torch.equal(tree.log_q[0, tree.parents[0, 1:]], log_q[0])
    assert tree.chain and tree.levels.tolist() == [3]
