"""Marginal-value trees: every draft level and every node has to pay for itself, at this machine's prices.

With estimated path probabilities P(v), a tree of nodes V decides 1 + sum P(v) tokens in the time of a target forward
over |V| nodes and of its draft levels. The best nodes are kept up to the number that promises most tokens per
second; a level is grown if one like the newest would raise that rate. Where earlier trees nearby kept less or more than
they promised, the probabilities are taken to a power.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.policies.base import Controller, Outcome, Shape, TreePlan
from decoding.policies.dynamic import DynamicTree
from decoding.transfer import on_device
from decoding.tree import DraftTree

PRIOR = (
    2.0  # tokens that a neighbourhood is thought to have promised and kept before it has been seen
)
LEAST_DOUBT, MOST_DOUBT = 0.5, 2.0


@dataclass(frozen=True)
class Prices:
    """Milliseconds of a round: verify[n] of verifying n nodes, drafts apart; level of a draft level."""

    verify: tuple[float, ...]
    level: float


class MarginalController:
    """What an image's trees promised, and what they came to, at the left and the upper neighbour."""

    def __init__(self, largest: Shape, columns: int):
        self.largest, self.columns = largest, columns
        self.rounds: list[tuple[float, int]] = [
            (0.0, 0)
        ]  # per image position: expected and accepted draft tokens

    def shape(self, position: int, remaining: int) -> Shape:
        return replace(self.largest.within(remaining), doubt=self._doubt(position))

    def _doubt(self, position: int) -> float:
        near = [self.rounds[-1]] + (
            [self.rounds[position - self.columns]] if position >= self.columns else []
        )
        expected, accepted = (PRIOR + sum(values) for values in zip(*near, strict=True))
        return min(max((expected / accepted) ** 0.5, LEAST_DOUBT), MOST_DOUBT)

    def observe(self, outcome: Outcome) -> None:
        self.rounds += [(outcome.expected, outcome.accepted)] * (outcome.accepted + 1)


class MarginalTree(DynamicTree):
    """A dynamic tree that is given bounds, not a size. To choose levels and nodes it waits for the device.

    Every image is sized by itself, so that its trees do not depend on its batch; the batch pays for the largest one.
    """

    name = "marginal"
    sizes_itself = True

    def __init__(self, largest: Shape, prices: Prices, columns: int):
        """largest: bounds; prices: of up to as many nodes; columns: image tokens per row."""
        super().__init__(largest)
        assert len(prices.verify) > largest.nodes
        self.prices, self.columns = prices, columns

    def controller(self, seed: int) -> Controller:
        return MarginalController(self.largest, self.columns)

    def narrow(self, tree: DraftTree, plan: TreePlan) -> TreePlan:
        """No further level for images whose rate it would lower if its nodes' parents had children as fruitful, rank by
        rank, as those of the newest level."""
        chances = self._doubted(tree, plan).scores.exp()
        family = (-1, plan.width)  # parents, children by rank
        newest, parents = chances[:, -tree.newest :], tree.parents[:, -tree.newest :]
        expected = chances.gather(1, parents).unflatten(1, family).sum(1).clamp_min(1e-30)
        share = newest.unflatten(1, family).sum(1) / expected
        expanded = newest.topk(min(plan.width, tree.newest), 1).values
        children = (expanded[..., None] * share[:, None]).flatten(1)
        now = self._rates(chances, plan, tree.drafted)
        deeper = self._rates(torch.cat([chances, children], 1), plan, tree.drafted, more=1)
        return plan.end((deeper.amax(1) <= now.amax(1)).tolist(), tree.height)

    def prune(self, tree: DraftTree, plan: TreePlan) -> DraftTree:
        """The best nodes, up to the number that promises most tokens per second."""
        tree = self._doubted(tree, plan)
        rates = self._rates(
            tree.scores.exp() if tree.worth is None else tree.worth, plan, tree.drafted
        )
        shapes = zip(plan.shapes, rates.argmax(1).tolist(), strict=True)
        return super().prune(
            tree, TreePlan(tuple(replace(s, nodes=min(s.nodes, count)) for s, count in shapes))
        )

    def _rates(self, worth: Tensor, plan: TreePlan, grown: int, more: int = 0) -> Tensor:
        """Tokens per millisecond (images, 1 + most nodes), the bonus token included, of rounds that verify the best 0,
        1, 2, ... nodes of worth (images, 1 + nodes), if all images were like this one; more: levels still to grow."""
        ordered = worth[:, 1:].sort(dim=1, descending=True).values[:, : self.largest.nodes]
        tokens = 1 + F.pad(ordered.cumsum(1), (1, 0))
        levels = on_device(
            [[min(shape.depth, grown) + more] for shape in plan.shapes], worth.device
        )
        verify = on_device(list(self.prices.verify[: tokens.shape[1]]), worth.device)
        return tokens / (verify + levels * self.prices.level)

    @staticmethod
    def _doubted(tree: DraftTree, plan: TreePlan) -> DraftTree:
        """The tree with its probabilities taken to the images' powers."""
        power = on_device([[shape.doubt] for shape in plan.shapes], tree.scores.device).to(
            tree.scores
        )
        scores = tree.scores * power
        worth = None if tree.worth is None else tree.worth - tree.scores.exp() + scores.exp()
        return replace(tree, scores=scores, worth=worth)
