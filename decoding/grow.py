"""Growing a draft tree level by level."""

from dataclasses import dataclass, replace

from torch import Tensor

from decoding.drafter import Drafter, Informed
from decoding.graft import Foreseen, graft
from decoding.kernels import steps_for
from decoding.noise import Noise
from decoding.policies.base import TreePlan, TreePolicy
from decoding.proposals import Proposal
from decoding.tree import DraftTree


@dataclass(frozen=True)
class Speculation:
    """A way to draft: who proposes, which nodes a tree has, how children are taken from a proposal.

    foreseen: how the tokens that the drafter foresees are taken, if not as children are.
    """

    drafter: Drafter
    policy: TreePolicy
    proposal: Proposal
    foreseen: Proposal | None = None


class Grower:
    """Grows a tree level by level: select nodes, expand them, take children; then prunes it.

    After every level the policy may end growth early. A policy for which this only saves work is
    asked on a CPU alone, since on a GPU the answer costs a wait for the device.
    """

    def __init__(
        self,
        policy: TreePolicy,
        drafter: Drafter,
        proposal: Proposal,
        foreseen: Proposal | None = None,
        distributions: bool = False,
    ):
        """Compose a way to draft.

        Args:
            policy: which nodes are expanded, and which are kept.
            drafter: proposes distributions.
            proposal: takes children from them.
            foreseen: takes the tokens that the drafter foresees; `proposal` if None.
            distributions: whether trees carry the drafter's distributions, for verifiers that
                read them.
        """
        self.policy, self.drafter, self.proposal = policy, drafter, proposal
        self.foreseen, self.distributions = foreseen or proposal, distributions
        self.informed = isinstance(drafter, Informed)

    def __call__(self, root: DraftTree, plan: TreePlan, noise: Noise, decided: Tensor) -> DraftTree:
        """Return the trees that a round verifies.

        Args:
            root: the trees without nodes.
            plan: depth, width and node budget of each image's tree.
            noise: the positional noise that the proposal reads.
            decided: (images, 1) image tokens decided so far: the position of the root's children.
        """
        if self.informed and self.proposal.stream == "target":
            self.drafter.hear(noise)
        tree, level, foreseen = root, 1, None
        drawn = noise.ahead(decided, max(plan.levels, plan.window))  # (images, levels, vocab)
        while level <= plan.levels:
            nodes = self.policy.select(tree, plan, level)  # (images, k)
            log_q = self.drafter.expand(tree, nodes)  # (images, k, vocab)
            count, trust = self.policy.branching(plan, level), self.drafter.trust
            if self.proposal.stream == "draft":
                # the target's noise belongs to a position, draws belong to a parent
                here = noise.children(decided + level - 1, nodes.shape[1])
            else:
                here = drawn[:, level - 1 : level]
            tokens, hits = self.proposal.children(log_q, here, count, level, trust)
            read = log_q if self.distributions else None
            tree = extended(tree, plan, (nodes, tokens, hits), read)
            if level < plan.levels:
                if foreseen is None and plan.window and self.policy.sizes_itself:
                    foreseen = self._foresee(plan, drawn)
                    plan = replace(plan, ahead=foreseen.hits)
                plan = self._narrow(tree, plan)
            level += 1
        if plan.window:
            tree = graft(tree, foreseen or self._foresee(plan, drawn))
        if tree.nodes:
            tree = self.policy.prune(tree, plan)
        if self.policy.sizes_itself:
            tree = replace(tree, grown=plan.limits.depth.clamp(max=tree.drafted))
        return tree

    def _narrow(self, tree: DraftTree, plan: TreePlan) -> TreePlan:
        """Return the plan after a level, without the next ones where no image needs them."""
        shapes = self.policy.sizes_itself
        if not shapes and (plan.fixed or not tree.tokens.is_cpu):
            return plan  # the answer would only save work
        if (ended := self.policy.ended(tree, plan)) is None:
            return plan
        if shapes:
            plan = plan.end(ended, tree.height)
            ended = plan.limits.depth <= tree.height
        if plan.fixed or not bool(ended.all()):
            return plan
        return replace(plan, largest=replace(plan.largest, depth=tree.height))

    def _foresee(self, plan: TreePlan, drawn: Tensor) -> Foreseen:
        """Return the tokens that the drafter foresees, to be grafted onto every node.

        drawn: (images, n, vocab) the noise at the next positions.
        """
        log_q = self.drafter.foresee()[:, : plan.window]  # (images, window, vocab)
        tokens, hits = self.foreseen.children(log_q, drawn[:, : log_q.shape[1]], 1, 1)
        read = log_q if self.distributions else None
        return Foreseen(tokens[..., 0], hits[..., 0], plan.limits.window, read)


def extended(
    tree: DraftTree, plan: TreePlan, children: tuple[Tensor, Tensor, Tensor], log_q: Tensor | None
) -> DraftTree:
    """Return the tree with a new level, within the limits of every image.

    children: nodes (images, k), their children's tokens and estimates (images, k, c). log_q: as for
    `DraftTree.extend`.
    """
    nodes, tokens, hits = children
    if kernels := steps_for(hits):
        limits = None if plan.uniform else (plan.limits.depth, plan.limits.width, plan.width)
        columns = kernels.extend(tree.columns, tree.height, children, limits)
        return tree.with_level(columns, nodes, tokens, log_q)
    scores = tree.scores.gather(1, nodes)[..., None] + hits  # (images, k, c)
    return tree.extend(nodes, tokens, plan.restrict(scores, tree.height + 1), log_q)
