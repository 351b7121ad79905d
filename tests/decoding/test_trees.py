"""Trees by brute force; dynamic ones against EAGLE-2 (arXiv 2406.16858), static ones by hand."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch
from fakes import (
    Path,
    PathDrafter,
    path_to,
    random_distribution,
    random_tree,
    round_of,
    scored_paths,
    tree_of,
)

from configs.methods import TREES
from configs.rules import PROPOSALS, loaded
from decoding.drafter import ChainDrafter
from decoding.noise import gumbel
from decoding.policies.chain import ChainTree
from decoding.policies.dynamic import HALVED, REFRESH, DynamicTree, best_nodes, verify_gain
from decoding.policies.static import StaticTree, rank_paths
from decoding.proposals import Predictions, TopK
from decoding.round import Round, TreeShape, largest_of
from decoding.tree import DraftTree

VOCAB, DECIDED = 9, (3, 8)


def eagle2(image: int, shape: TreeShape, proposal: str) -> dict[Path, float]:
    """Grow the `width` best nodes of each level; keep the `nodes` best of the whole pool."""
    pool: dict[Path, float] = {}
    selected: dict[Path, float] = {(): 0.0}
    for level in range(shape.depth):
        newest: dict[Path, float] = {}
        for path, score in selected.items():
            chances = random_distribution(image, path)  # topk: whatever the noise
            if proposal == "coupled":
                position = torch.tensor([DECIDED[image] + level])
                values = chances + gumbel(image, "target", position, VOCAB)[0]
                chances = values - values.topk(3).values.logsumexp(-1)
            best = chances.topk(min(shape.width, VOCAB))
            for token, gain in zip(best.indices.tolist(), best.values.tolist(), strict=True):
                newest[(*path, token)] = score + gain
        pool |= newest
        selected = dict(sorted(newest.items(), key=lambda item: -item[1])[: shape.width])
    return dict(sorted(pool.items(), key=lambda item: -item[1])[: shape.nodes])


def grow(shapes: list[TreeShape], proposal: str) -> DraftTree:
    def noise(positions: torch.Tensor) -> torch.Tensor:
        rows = enumerate(positions)
        return torch.stack([gumbel(image, "target", row, VOCAB) for image, row in rows])

    policy, drafter = DynamicTree(largest_of(shapes)), PathDrafter(random_distribution)
    round = round_of(shapes, DECIDED[: len(shapes)], noise)
    return policy.grow(round, drafter, loaded(PROPOSALS[proposal])())


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


def check_parents(kept: DraftTree, tree: DraftTree, nodes: int) -> None:
    """All nodes are those of the whole tree, once each, and so are their parents."""
    for image in range(len(tree.tokens)):
        whole = {path_to(tree, image, node) for node in range(tree.nodes + 1)}
        paths = {path_to(kept, image, node) for node in range(1, nodes + 1)}
        assert paths <= whole and len(paths) == nodes
        assert all(path[:-1] == () or path[:-1] in paths for path in paths)


@pytest.mark.parametrize("nodes", [1, 3, 8, 15])
def test_pruning_keeps_parents_when_scores_tie(nodes) -> None:
    """A certain child has its parent's score; published code keeps it without the parent."""
    generator = torch.Generator().manual_seed(nodes)
    tree = random_tree(generator, 20, 15, vocab=4)
    scores = torch.zeros_like(tree.scores)
    for node in range(1, 16):
        step = -torch.randint(2, (20,), generator=generator).double()
        scores[:, node] = scores.gather(1, tree.parents[:, node : node + 1])[:, 0] + step
    tied = replace(tree, scores=scores)
    kept = best_nodes(tied, scores, round_of([TreeShape(9, 9, nodes)] * 20))
    check_parents(kept, tied, nodes)
    best = scores[:, 1:].sort(1).values[:, 15 - nodes :]
    assert torch.equal(kept.scores[:, 1:].sort(1).values, best)


@pytest.mark.parametrize("nodes", [1, 3, 8, 15])
def test_pruning_keeps_parents_where_rounding_favours_children(nodes) -> None:
    """A certain child may be worth a rounding step more than its parent."""
    generator = torch.Generator().manual_seed(nodes)
    tree = random_tree(generator, 20, 16, vocab=4)
    certain = torch.rand(tree.scores.shape, generator=generator) < 0.9
    scores = tree.scores.clone()
    for node in range(1, 17):
        above = scores.gather(1, tree.parents[:, node : node + 1])[:, 0]
        more = above.nextafter(torch.ones_like(above))
        raised = certain[:, node] & (tree.depths[:, node] > 1)
        scores[:, node] = torch.where(raised, more, scores[:, node])
    rounded = replace(tree, scores=scores)
    gain = verify_gain(rounded)
    assert (gain[:, :, None] <= gain[:, None])[tree.visible].all()  # as that of every ancestor
    kept = best_nodes(rounded, gain, round_of([TreeShape(9, 9, nodes)] * 20))
    check_parents(kept, tree, nodes)


def test_tokens_outside_the_distribution_do_not_become_nodes() -> None:
    """Under top-k sampling q may have fewer tokens than a node may have children."""

    def narrow(image: int, path: Path) -> torch.Tensor:
        distribution = random_distribution(image, path)
        excluded = distribution < distribution.topk(2).values[-1]
        return distribution.masked_fill(excluded, -torch.inf).log_softmax(-1)

    policy = DynamicTree(TreeShape(3, 5, 40))
    tree = policy.grow(round_of([policy.largest]), PathDrafter(narrow), loaded(PROPOSALS["topk"])())
    assert len(scored_paths(tree, 0)) == 2 + 4 + 8


PUBLISHED = {  # nodes per level, nodes with children, leaves
    "mc_sim_7b_63": ([4, 8, 8, 3, 2], 10, 15),
    "mc_sim_7b_63_balanced": ([3, 8, 9, 3, 2], 9, 16),
    "naive_extend_57": ([5, 13, 16, 14, 9], 24, 33),
    "medusa_2_7b_63": ([10, 23, 23, 7], 21, 42),
    "reverse_balanced_25": ([3, 4, 6, 5, 7], 10, 15),
    "chain": ([1, 1, 1, 1, 1], 4, 1),
    "two_chains": ([2] * 12, 22, 2),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_are_the_published_ones(name) -> None:
    assert set(TREES) == set(PUBLISHED)
    paths = rank_paths(TREES[name])
    levels, inner, leaves = PUBLISHED[name]
    assert len(set(paths)) == len(paths) == sum(levels)
    assert [*Counter(map(len, sorted(paths, key=len))).values()] == levels
    parents = {path[:-1] for path in paths}
    assert parents <= {(), *paths}, "every node's parent is a node"
    assert len(parents - {()}) == inner
    assert len(set(paths) - parents) == leaves
    assert paths == sorted(paths, key=lambda path: (len(path), path))
    assert all(path[-1] == 0 or (*path[:-1], path[-1] - 1) in paths for path in paths)


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
    policy = StaticTree(rank_paths(TREES[name]))
    cut = policy.largest._replace(depth=min(depth, policy.largest.depth))
    drafter = PathDrafter(lambda image, path: random_distribution(image, path, vocab=12))
    tree = policy.grow(round_of([policy.largest, cut]), drafter, TopK())
    for image, shape in enumerate((policy.largest, cut)):
        paths = [path for path in rank_paths(TREES[name]) if len(path) <= shape.depth]
        assert scored_paths(tree, image) == pytest.approx(by_hand(paths, image))


def test_absent_nodes_are_no_levels() -> None:
    tree = random_tree(torch.Generator().manual_seed(0), 2, 9, vocab=4)
    scores = tree.scores.masked_fill(tree.depths == tree.depths.amax(1, keepdim=True), -torch.inf)
    shorter = replace(tree, scores=scores)
    assert torch.equal(shorter.levels, tree.levels - 1)
    assert torch.equal(shorter.present.sum(1), (scores > -torch.inf).sum(1))


def test_the_path_to_the_best_of_the_deepest_nodes_is_renewed() -> None:
    scores = [math.log(chance) for chance in (1.0, 0.6, 0.3, 0.1, 0.2)]
    tree = tree_of([0, 1, 2, 0, 1], [0, 0, 0, 1, 2], scores=scores)
    extra = (verify_gain(tree) - tree.scores.exp())[0]
    nodes = extra.gt(1e-6).nonzero().flatten().tolist()
    renewed = {path_to(tree, 0, node): float(extra[node]) for node in nodes}
    expected = {path: REFRESH * 2 ** -((len(path) / HALVED) ** 2) for path in ((), (2,), (2, 1))}
    assert renewed == pytest.approx(expected)


class AheadDrafter(ChainDrafter):
    """Predicts the same distributions (images, window, vocab) in every round."""

    dtype = torch.float64

    def __init__(self, log_q: torch.Tensor):
        self.log_q = log_q

    def predict_ahead(self, round: Round) -> Predictions:
        return Predictions(self.log_q)


def test_a_chain_has_the_best_token_of_every_position_up_to_an_images_end() -> None:
    generator = torch.Generator().manual_seed(0)
    log_q = torch.randn(2, 5, 7, generator=generator, dtype=torch.float64).log_softmax(-1)
    policy = ChainTree(5)
    round = round_of([policy.largest, policy.largest.within(3)])  # the second image ends
    tree = policy.grow(round, AheadDrafter(log_q), loaded(PROPOSALS["topk"])())
    hits, tokens = log_q.max(-1)
    assert torch.equal(tree.tokens[:, 1:], tokens)
    torch.testing.assert_close(tree.scores[0, 1:], hits[0].cumsum(0))
    assert tree.present[1].tolist() == [True] * 3 + [False] * 3
    assert tree.chain and tree.depths[0].tolist() == list(range(6))
