"""Named trees as published, and static trees grown from a drafter against rank paths followed by
hand.
"""

from __future__ import annotations

from collections import Counter

import pytest
from fakes import Path, PathDrafter, random_distribution, round_of, scored_paths

from configs.method_table import TREES
from decoding.policies.static import NAMED_TREES, StaticTree, rank_paths
from decoding.proposals import TopK

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
    without_gaps = (path[-1] == 0 or (*path[:-1], path[-1] - 1) in paths for path in paths)
    assert all(without_gaps)


def by_hand(paths: list[Path], image: int) -> dict[Path, float]:
    """Token paths and scores that the rank paths select."""
    selected: dict[Path, tuple[Path, float]] = {(): ((), 0.0)}
    for ranks in paths:
        tokens, score = selected[ranks[:-1]]
        best = random_distribution(image, tokens, vocab=12).sort(descending=True)
        token, gain = int(best.indices[ranks[-1]]), float(best.values[ranks[-1]])
        selected[ranks] = (*tokens, token), score + gain
    return dict(list(selected.values())[1:])


@pytest.mark.parametrize("depth", [9, 2])
@pytest.mark.parametrize("name", PUBLISHED)
def test_grown_tree_follows_the_ranks(name, depth) -> None:
    """An image near its end drafts two levels only; the other one's tree stays whole."""
    policy = StaticTree(rank_paths(NAMED_TREES[name]))
    cut = policy.largest._replace(depth=min(depth, policy.largest.depth))
    drafter = PathDrafter(lambda image, path: random_distribution(image, path, vocab=12))
    tree = policy.grow(round_of([policy.largest, cut]), drafter, TopK())
    for image, shape in enumerate((policy.largest, cut)):
        paths = [path for path in rank_paths(NAMED_TREES[name]) if len(path) <= shape.depth]
        assert scored_paths(tree, image) == pytest.approx(by_hand(paths, image))


def test_controller_stops_where_the_image_ends() -> None:
    policy = StaticTree(rank_paths(NAMED_TREES["mc_sim_7b_63"]))
    controller = policy.controller(0)
    depths = [controller.shape(9, remaining).depth for remaining in (99, 6, 5, 2, 1)]
    assert depths == [5, 5, 4, 1, 0]
