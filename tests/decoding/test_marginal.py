"""Trees sized by prices: the number of nodes and of levels, the doubt that neighbours raise."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from fakes import Drawn, PathDrafter, random_distribution, random_tree

from decoding.grow import Grower
from decoding.policies.base import Outcome, Shape, TreePlan
from decoding.policies.marginal import (
    LEAST_DOUBT,
    MOST_DOUBT,
    MarginalController,
    MarginalTree,
)
from decoding.policies.ways import Prices, Ways
from decoding.proposals import TopK
from decoding.tree import DraftTree

LARGEST = Shape(4, 3, 12)


def prices(node: float, level: float = 0.5) -> Prices:
    verify = tuple(10 + node * nodes for nodes in range(LARGEST.nodes + 1))
    return Prices(verify, tuple(level * levels for levels in range(LARGEST.depth + 1)))


def best_count(chances: list[float], cost: Prices, levels: int) -> int:
    """By trying all."""
    ordered = sorted(chances, reverse=True)[: LARGEST.nodes]
    rates = [
        (1 + sum(ordered[:n])) / (cost.verify[n] + cost.draft[levels])
        for n in range(len(ordered) + 1)
    ]
    return rates.index(max(rates))


@pytest.mark.parametrize("node", [0.0, 0.3, 1.0, 3.0, 100.0])
@pytest.mark.parametrize("doubt", [1.0, 1.7])
def test_as_many_nodes_as_pay_for_themselves(node, doubt) -> None:
    for seed in range(10):
        tree = replace(random_tree(torch.Generator().manual_seed(seed), 3, 18, 4), drafted=2)
        policy, shape = MarginalTree(LARGEST, prices(node), 4), replace(LARGEST, doubt=doubt)
        kept = policy.prune(tree, TreePlan.of((shape,) * 3))
        for image in range(3):
            chances = (tree.scores[image, 1:] * doubt).exp().tolist()
            count = best_count(chances, prices(node), 2)
            expected = sorted(chances, reverse=True)[:count]
            found = kept.scores[image, 1:][kept.present[image, 1:]].exp().tolist()
            assert sorted(found, reverse=True) == pytest.approx(expected)


def grow(cost: Prices, seed: int = 0) -> DraftTree:
    policy = MarginalTree(LARGEST, cost, 4)
    root = DraftTree.root(torch.zeros(1, dtype=torch.long), torch.float64)
    drafter = PathDrafter(lambda image, path: random_distribution(seed, path))
    tree = Grower(policy, drafter, TopK())(
        root,
        TreePlan.of((LARGEST,)),
        Drawn(),
        torch.zeros(1, 1).long(),
    )
    assert drafter.levels <= LARGEST.depth
    return replace(tree, drafted=drafter.levels)


def test_levels_are_grown_while_they_pay() -> None:
    """Free levels are all taken, dear ones only once (nobody knows before), and dearer ones never
    more often.
    """
    counts = [grow(prices(0.05, level)).drafted for level in (0.0, 0.5, 1.5, 4.0, 50.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] == LARGEST.depth and counts[-1] == 1 and len(set(counts)) > 2


@pytest.mark.parametrize("level", [0.1, 1.0, 2.5, 3.5, 4.5, 6.0, 20.0])
def test_the_next_level_is_taken_for_one_like_the_newest(level) -> None:
    """Children of 0.6 and 0.2 promise theirs 0.36, 0.12, 0.12 and 0.04."""
    cost, shape = prices(0.3, level), Shape(4, 2, 12)
    root = DraftTree.root(torch.zeros(1, dtype=torch.long), torch.float64)
    nodes, tokens = torch.zeros(1, 1).long(), torch.tensor([[[3, 5]]])
    tree = root.extend(nodes, tokens, torch.tensor([[[0.6, 0.2]]], dtype=torch.float64).log())
    ended = MarginalTree(LARGEST, cost, 4).ended(tree, TreePlan.of((shape,)))

    def rate(chances: list[float], levels: int) -> float:
        count = best_count(chances, cost, levels)
        return (1 + sum(sorted(chances)[::-1][:count])) / (cost.verify[count] + levels * level)

    pays = rate([0.6, 0.2, 0.36, 0.12, 0.12, 0.04], 2) > rate([0.6, 0.2], 1)
    assert ended.tolist() == [[not pays]]
    assert pays == (level < 4)  # both answers occur


@pytest.mark.parametrize("level", [0.1, 0.5, 1.0, 1.5, 2.5, 6.0])
@pytest.mark.parametrize("window", [1, 2, 4])
def test_a_level_is_weighed_against_the_window(level, window) -> None:
    """Foreseen tokens hit in 0.6, 0.5, 0.4 and 0.3; without them a level of 2.5 would pay."""
    cost, shape = prices(0.3, level), Shape(4, 2, 12, window)
    root = DraftTree.root(torch.zeros(1, dtype=torch.long), torch.float64)
    nodes, tokens = torch.zeros(1, 1).long(), torch.tensor([[[3, 5]]])
    tree = root.extend(nodes, tokens, torch.tensor([[[0.6, 0.2]]], dtype=torch.float64).log())
    hits = torch.tensor([[0.6, 0.5, 0.4, 0.3]], dtype=torch.float64).log()
    plan = replace(TreePlan.of((shape,)), ahead=hits)
    ended = MarginalTree(shape, cost, 4).ended(tree, plan)

    def chains(chances: list[float], depth: int) -> list[float]:
        own = [0.6, 0.5, 0.4, 0.3][depth:window]
        return [p * math.prod(own[: n + 1]) for p in chances for n in range(len(own))]

    def rate(chances: list[float], levels: int) -> float:
        count = best_count(chances, cost, levels)
        return (1 + sum(sorted(chances)[::-1][:count])) / (cost.verify[count] + levels * level)

    newest, children = [0.6, 0.2], [0.36, 0.12, 0.12, 0.04]
    pays = rate(newest + children + chains(children, 2), 2) > rate(newest + chains(newest, 1), 1)
    assert ended.tolist() == [[not pays]]
    assert pays == (level < (4 if window == 1 else 0.8))  # a window of 1 ends where the tree does


def test_an_image_has_the_same_tree_in_every_batch() -> None:
    policy = MarginalTree(LARGEST, prices(0.9, 0.3), 4)

    def run(images: list[int]) -> list[dict[str, list[float]]]:
        root = DraftTree.root(torch.zeros(len(images), dtype=torch.long), torch.float64)
        drafter = PathDrafter(lambda image, path: random_distribution(images[image], path))
        tree = Grower(policy, drafter, TopK())(
            root,
            TreePlan.of((LARGEST,) * len(images)),
            Drawn(),
            torch.zeros(len(images), 1).long(),
        )
        return [sorted(tree.scores[row][tree.present[row]].tolist()) for row in range(len(images))]

    together = run([0, 1, 2, 3, 4])
    assert len({len(scores) for scores in together}) > 1
    for image in range(5):
        assert run([image])[0] == pytest.approx(together[image])


def test_neighbours_that_kept_less_than_they_promised_raise_doubt() -> None:
    def outcome(position: int, accepted: int, expected: float) -> Outcome:
        return Outcome(position, accepted, 4, 0.5, expected)

    controller = MarginalController(Ways(LARGEST, prices(0.0)), columns=3)
    assert controller.shape(1, 9).doubt == 1
    controller.observe(outcome(1, 0, 4.0))
    assert controller.shape(2, 8).doubt == pytest.approx(math.sqrt(3))
    controller.observe(outcome(2, 3, 0.0))  # positions 2 to 5
    assert controller.shape(6, 4).doubt == pytest.approx(
        math.sqrt(2 / (2 + 3 + 3)), abs=1e-9
    )  # left and above: 3 each
    controller.observe(outcome(6, 0, 1000.0))
    assert controller.shape(7, 2).doubt == MOST_DOUBT > 1 > LEAST_DOUBT
    assert controller.shape(7, 2).depth == 1  # the last token needs no draft
