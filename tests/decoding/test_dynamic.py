"""Dynamic trees against EAGLE-2 in plain Python (arXiv 2406.16858), and pruning under ties."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import (
    MadeNoise,
    Path,
    PathDrafter,
    path_to,
    random_distribution,
    random_tree,
    round_of,
    scored_paths,
)

from decoding.graphs import TreeShape, largest_of
from decoding.noise import gumbel
from decoding.policies.dynamic import DynamicTree, best_nodes
from decoding.proposals import PROPOSALS
from decoding.tree import DraftTree

VOCAB, DECIDED = 9, (3, 8)


def noise_at(image: int, position: int, proposal: str) -> torch.Tensor:
    if proposal == "topk":
        return torch.zeros(VOCAB, dtype=torch.float64)
    return gumbel(image, "target", torch.tensor([position]), VOCAB)[0]


def eagle2(image: int, shape: TreeShape, proposal: str) -> dict[Path, float]:
    """Grow level by level from the best `width` nodes of the last level; keep the best `nodes` of
    the whole pool.
    """
    pool: dict[Path, float] = {}
    selected: dict[Path, float] = {(): 0.0}
    for level in range(shape.depth):
        newest: dict[Path, float] = {}
        for path, score in selected.items():
            noise = noise_at(image, DECIDED[image] + level, proposal)
            chances = (random_distribution(image, path) + noise).log_softmax(-1)
            best = chances.topk(min(shape.width, VOCAB))
            for token, gain in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                newest[(*path, token)] = score + gain
        pool |= newest
        selected = dict(sorted(newest.items(), key=lambda item: -item[1])[: shape.width])
    return dict(sorted(pool.items(), key=lambda item: -item[1])[: shape.nodes])


def grow(shapes: list[TreeShape], proposal: str) -> DraftTree:
    def noise(positions: torch.Tensor) -> torch.Tensor:
        rows = enumerate(positions.tolist())
        return torch.stack(
            [torch.stack([noise_at(i, p, proposal) for p in row]) for i, row in rows]
        )

    policy, drafter = DynamicTree(largest_of(shapes)), PathDrafter(random_distribution)
    round = round_of(shapes, DECIDED[: len(shapes)], MadeNoise(noise))
    return policy.grow(round, drafter, PROPOSALS[proposal]())


SHAPES = [
    *([shape] * 2 for shape in (
        TreeShape(1, 3, 2), TreeShape(4, 3, 10), TreeShape(5, 2, 100), TreeShape(3, 20, 30),
        TreeShape(6, 1, 4),
    )),
    # images of different shapes must not disturb each other
    [TreeShape(5, 2, 7), TreeShape(2, 4, 12)],
    [TreeShape(4, 3, 6), TreeShape(0, 3, 6)],
]  # fmt: skip


@pytest.mark.parametrize("proposal", ["topk", "coupled"])
@pytest.mark.parametrize("shapes", SHAPES, ids=str)
def test_trees_are_those_of_eagle2(shapes, proposal) -> None:
    tree = grow(shapes, proposal)
    for image, shape in enumerate(shapes):
        assert scored_paths(tree, image) == pytest.approx(eagle2(image, shape, proposal))


def test_one_call_of_the_drafter_per_level() -> None:
    shape, drafter = TreeShape(4, 3, 100), PathDrafter(random_distribution)
    DynamicTree(shape).grow(round_of([shape]), drafter, PROPOSALS["topk"]())
    assert drafter.levels == 4


@pytest.mark.parametrize("nodes", [1, 3, 8, 15])
def test_pruning_keeps_parents_when_scores_tie(nodes) -> None:
    """A child that is certain has its parent's score; published code keeps such children without
    their parents.
    """
    generator = torch.Generator().manual_seed(nodes)
    tree = random_tree(generator, 20, 15, vocab=4)
    scores = torch.zeros_like(tree.scores)
    for node in range(1, 16):
        step = -torch.randint(2, (20,), generator=generator).double()
        scores[:, node] = scores.gather(1, tree.parents[:, node : node + 1])[:, 0] + step
    tied = replace(tree, scores=scores)
    shape = TreeShape(9, 9, nodes)
    kept = best_nodes(tied, scores, round_of([shape] * 20))
    for image in range(20):
        best = sorted(scores[image, 1:].tolist())[15 - nodes :]
        assert sorted(kept.scores[image, 1:].tolist()) == best
        whole = {path_to(tied, image, node) for node in range(16)}
        paths = [path_to(kept, image, node) for node in range(1, nodes + 1)]
        assert set(paths) <= whole and len(set(paths)) == nodes
        assert all(path[:-1] == () or path[:-1] in paths for path in paths)


def test_tokens_outside_the_distribution_do_not_become_nodes() -> None:
    """Under top-k sampling the drafter's distribution may have fewer tokens than a node may have
    children.
    """

    def narrow(image: int, path: Path) -> torch.Tensor:
        distribution = random_distribution(image, path)
        excluded = distribution < distribution.topk(2).values[-1]
        return distribution.masked_fill(excluded, -torch.inf).log_softmax(-1)

    policy = DynamicTree(TreeShape(3, 5, 40))
    tree = policy.grow(round_of([policy.largest]), PathDrafter(narrow), PROPOSALS["topk"]())
    assert len(scored_paths(tree, 0)) == 2 + 4 + 8
