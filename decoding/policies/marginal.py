"""Marginal-value trees: every level and every node must pay for itself, at measured prices.

With estimated path probabilities P(v), a tree of nodes V decides about 1 + sum P(v) tokens in the
time of one target forward pass over |V| nodes and of its draft levels. The tree keeps the number of
best nodes that promises most tokens per second. One more level is grown if a level like the newest
would raise that rate. If nearby trees of the image were accepted less or more than they promised,
the probabilities are taken to a power first. Where nearby trees did not pay, none is grown
(`decoding.policies.ways`).
"""

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.policies.base import Controller, Outcome, Shape, TreePlan
from decoding.policies.dynamic import DynamicTree
from decoding.policies.ways import Prices, Ways
from decoding.transfer import constant
from decoding.tree import DraftTree

PRIOR = 2.0  # tokens, promised and accepted, that count as seen in every neighbourhood
LEAST_DOUBT, MOST_DOUBT = 0.5, 2.0


class MarginalController:
    """Compares what an image's trees promised with their accepted lengths, left and above.

    It also notes what they brought, and chooses rounds that grow none, or no level, by that.
    """

    def __init__(self, ways: Ways, columns: int):
        self.ways, self.columns = ways, columns
        # expected and actual accepted length of the round that decided each image position
        self.rounds: list[tuple[float, int]] = [(0.0, 0)]

    def shape(self, position: int, remaining: int) -> Shape:
        return replace(self.ways.shape(position, remaining), doubt=self._doubt(position))

    def _doubt(self, position: int) -> float:
        """Return the power for path probabilities: above 1 if the neighbours promised too much."""
        near = [self.rounds[-1]]
        if position >= self.columns:
            near.append(self.rounds[position - self.columns])
        expected, accepted = (PRIOR + sum(values) for values in zip(*near, strict=True))
        return min(max((expected / accepted) ** 0.5, LEAST_DOUBT), MOST_DOUBT)

    def observe(self, outcome: Outcome) -> None:
        self.ways.observe(outcome)
        self.rounds += [(outcome.expected, outcome.accepted)] * (outcome.accepted + 1)


class MarginalTree(DynamicTree):
    """A dynamic tree that picks its own size within bounds.

    The device is waited for to learn it, unless the plan's sizes are fixed.

    Every image is sized by itself, so that its trees do not depend on its batch, unless ways are
    compared by a clock; the batch pays for the largest one.
    """

    name = "marginal"
    sizes_itself = True

    def __init__(self, largest: Shape, prices: Prices, columns: int, renews: bool = False):
        """largest: bounds; prices: of up to as many nodes and levels; columns: image tokens per
        row; renews: as of `DynamicTree`."""
        super().__init__(largest, renews)
        assert len(prices.verify) > largest.nodes and len(prices.draft) > largest.depth
        self.prices, self.columns = prices, columns
        self.shared = Ways(largest, prices) if prices.timed else None

    def controller(self, seed: int) -> Controller:
        return MarginalController(self.shared or Ways(self.largest, self.prices), self.columns)

    def ended(self, tree: DraftTree, plan: TreePlan) -> Tensor:
        """Return the images whose rate another level would lower.

        The next level is imagined from the newest one: each of its best nodes gets children with
        the same shares of its probability, rank by rank, as the newest level's nodes have of
        theirs. The window continues the deepest nodes in either case, so a level gains less where
        it foresees well.
        """
        chances = self._doubted(tree, plan).scores.exp()
        family = (-1, plan.width)  # parents, children by rank
        newest, parents = chances[:, -tree.newest :], tree.parents[:, -tree.newest :]
        expected = chances.gather(1, parents).unflatten(1, family).sum(1).clamp_min(1e-30)
        share = newest.unflatten(1, family).sum(1) / expected
        expanded = newest.topk(min(plan.width, tree.newest), 1).values
        children = (expanded[..., None] * share[:, None]).flatten(1)
        level = tree.height
        grown = torch.cat([chances, self._continued(newest, plan, level)], 1)
        more = torch.cat([chances, children, self._continued(children, plan, level + 1)], 1)
        now = self._rates(grown, plan, tree.drafted)
        deeper = self._rates(more, plan, tree.drafted, more=1)
        return deeper.amax(1, keepdim=True) <= now.amax(1, keepdim=True)

    @staticmethod
    def _continued(chances: Tensor, plan: TreePlan, depth: int) -> Tensor:
        """Return the chances (images, n) of foreseen tokens after nodes (images, k) of a depth."""
        if plan.ahead is None:
            return chances[:, :0]
        chain = (plan.ahead[:, depth:] * plan.limits.doubt.to(chances)).cumsum(1).exp()
        place = torch.arange(depth, plan.ahead.shape[1], device=chain.device)
        chain = chain.masked_fill(place >= plan.limits.window, 0)  # an image may end before
        return (chances[..., None] * chain[:, None]).flatten(1)

    def prune(self, tree: DraftTree, plan: TreePlan) -> DraftTree:
        """Return the tree of the best nodes, as many as promise most tokens per second.

        Foreseen tokens alone are all kept: what they renew is worth more than their own chances.
        """
        if not tree.drafted:
            return super().prune(tree, plan)
        tree = self.valued(self._doubted(tree, plan))
        rates = self._rates(
            tree.scores.exp() if tree.worth is None else tree.worth, plan, tree.drafted
        )
        nodes = rates.argmax(1, keepdim=True).minimum(plan.limits.nodes)
        plan = replace(plan, limits=replace(plan.limits, nodes=nodes), uniform=False)
        if not plan.fixed:  # on a CPU what nobody wants need not be verified
            plan = replace(plan, largest=replace(plan.largest, nodes=int(nodes.max())))
        return super().prune(tree, plan)

    def _rates(self, worth: Tensor, plan: TreePlan, grown: int, more: int = 0) -> Tensor:
        """Return tokens per millisecond (images, 1 + most nodes) if the best 0, 1, 2, ... are kept.

        Args:
            worth: (images, 1 + nodes) tokens that each node yields; the bonus token comes on top.
            plan: for the levels that each image has paid for.
            grown: levels of the batch.
            more: levels still to grow.

        An image is priced as if all of the batch were like it.
        """
        ordered = worth[:, 1:].sort(dim=1, descending=True).values[:, : self.largest.nodes]
        tokens = 1 + F.pad(ordered.cumsum(1), (1, 0))
        levels = plan.limits.depth.clamp(max=grown) + more
        verify = constant(tuple(self.prices.verify[: tokens.shape[1]]), worth.device)
        return tokens / (verify + constant(self.prices.draft, worth.device)[levels])

    @staticmethod
    def _doubted(tree: DraftTree, plan: TreePlan) -> DraftTree:
        """Return the tree with its probabilities taken to the images' powers."""
        power = plan.limits.doubt.to(tree.scores)
        scores = tree.scores * power
        worth = None if tree.worth is None else tree.worth - tree.scores.exp() + scores.exp()
        return replace(tree, scores=scores, worth=worth)
