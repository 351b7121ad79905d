"""Named trees as published, and static trees grown from a drafter against rank paths followed by
hand.
"""

from __future__ import annotations

from collections import Counter

import pytest
from fakes import PathDrafter, random_distribution, round_of, scored_paths

from configs.method_table import TREES
from decoding.graphs import TreeShape
from decoding.policies.static import NAMED_TREES, StaticTree, rank_paths
from decoding.proposals import TopK
from decoding.tree import DraftTree

PUBLISHED = {  # nodes per level, nodes with children, leaves
    "mc_sim_7b_63": ([4, 8, 8, 3, 2], 10, 15),
    "mc_sim_7b_63_balanced": ([3, 8, 9, 3, 2], 9, 16),
    "naive_extend_57": ([5, 13, 16, 14, 9], 24, 33),
    "medusa_2_7b_63": ([10, 23, 23, 7], 21, 42),
    "reverse_balanced_25": ([3, 4, 6, 5, 7], 10, 15),
    "chain": ([1, 1, 1, 1, 1], 4, 1),
}


def test_every_tree_of_the_command_line_is_there() -> None:
    assert set(TREES) == set(NAMED_TREES) == set(PUBLISHED)


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_the_published_ones(name) -> None:
    paths = rank_paths(NAMED_TREES[name])
    levels, inner, leaves = PUBLISHED[name]
    assert len(set(paths)) == len(paths) == sum(levels)
    per_level = Counter(map(len, paths))
    assert [per_level[d] for d in range(1, len(levels) + 1)] == levels
    parents = {path[:-1] for path in paths}
    assert parents <= {(), *paths}, "every node's parent is a node"
    assert len(parents - {()}) == inner
    assert len(set(paths) - parents) == leaves
    assert paths == sorted(paths, key=lambda path: (len(path), path))
    assert all(path[-1] == 0 or (*path[:-1], path[-1] - 1) in paths for path in paths), (
        "ranks have no gaps"
    )


def by_hand(paths: list[tuple[int, ...]], image: int) -> dict[tuple[int, ...], float]:
    """Token paths and scores that the rank paths select."""
    found: dict[tuple[int, ...], tuple[tuple[int, ...], float]] = {(): ((), 0.0)}
    for ranks in paths:
        tokens, score = found[ranks[:-1]]
        best = random_distribution(image, tokens, vocab=12).sort(descending=True)
        found[ranks] = (
            (*tokens, int(best.indices[ranks[-1]])),
            score + float(best.values[ranks[-1]]),
        )
    return dict(list(found.values())[1:])


def grow(name: str, shapes: list[TreeShape]) -> DraftTree:
    policy = StaticTree(rank_paths(NAMED_TREES[name]))
    drafter = PathDrafter(lambda image, path: random_distribution(image, path, vocab=12))
    return policy.grow(round_of(shapes), drafter, TopK())


@pytest.mark.parametrize("name", PUBLISHED)
def test_grown_tree_follows_the_ranks(name) -> None:
    paths = rank_paths(NAMED_TREES[name])
    tree = grow(name, [StaticTree(paths).largest] * 2)
    for image in range(2):
        expected = by_hand(paths, image)
        assert scored_paths(tree, image) == pytest.approx(expected)


@pytest.mark.parametrize("name", PUBLISHED)
def test_an_image_near_its_end_takes_no_node_from_its_neighbour(name) -> None:
    """One image may draft two levels only; the other one's tree stays whole."""
    paths, largest = (
        rank_paths(NAMED_TREES[name]),
        StaticTree(rank_paths(NAMED_TREES[name])).largest,
    )
    tree = grow(name, [largest, TreeShape(2, largest.width, largest.nodes)])
    assert scored_paths(tree, 0) == pytest.approx(by_hand(paths, 0))
    assert scored_paths(tree, 1) == pytest.approx(
        by_hand([path for path in paths if len(path) <= 2], 1)
    )


def test_controller_stops_where_the_image_ends() -> None:
    policy = StaticTree(rank_paths(NAMED_TREES["mc_sim_7b_63"]))
    controller = policy.controller(0)
    assert [controller.shape(9, remaining).depth for remaining in (99, 6, 5, 2, 1)] == [
        5,
        5,
        4,
        1,
        0,
    ]
