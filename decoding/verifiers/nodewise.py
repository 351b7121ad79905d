"""Rules that walk down a tree, on a GPU: all nodes are judged at once, then the path is followed.

What a walk does at a node depends on the node alone: its numbers are those of its position. So the
walk of the host and this one decide the same tokens, but where rounding decides. Where it leaves no
token after a refused child, the host ends with an error, and here that child is accepted.
"""

from dataclasses import replace

import torch
from torch import Tensor

from configs.rules import LanternSettings
from decoding.noise_table import NodeNoise
from decoding.sampling import choose
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from decoding.verifiers.exact import follow, path_verdict, reached, right_path
from decoding.verifiers.host import Walk
from decoding.verifiers.lantern import LanternCoupled
from support.constants import arange
from support.kernels import Kernels


class Nodewise:
    """Judges as `Rejection` and `Sampled` do, or with a bound as `Lantern` and `LanternCoupled`."""

    on_device = True

    def __init__(
        self, rule: Walk, kernels: Kernels, borrowing: tuple[LanternSettings, Tensor] | None
    ):
        """Take over a rule.

        Args:
            rule: what walks on the host.
            kernels: with `judge` and `substitute` of `models.cuda.judging`.
            borrowing: settings, and the codes (codes, n) nearest to every code.
        """
        self.name, self.lossless = rule.name, rule.lossless
        self.reads_distributions = rule.reads_distributions
        self.kernels, self.borrowing = kernels, borrowing
        self.coupled = isinstance(rule, LanternCoupled)

    def __call__(self, tree: DraftTree, log_p: Tensor, noise: NodeNoise) -> Verdict:
        greedy, borrowing = noise.noise.shape.greedy, self.borrowing
        columns = tree.tokens, tree.parents, tree.depths, tree.scores
        if greedy and borrowing is None:
            return follow(tree, choose(log_p, None))
        if self.coupled:
            chosen = choose(log_p, noise.target())
            right, choices = self.kernels["substitute"](log_p, chosen, columns, borrowing)
            return right_path(tree, right, choices)
        numbers = noise.noise.keys, noise.decided
        judged = self.kernels["judge"](log_p, tree.log_q, columns, numbers, borrowing, greedy)
        return longest_path(tree, *judged) if greedy else right_path(tree, *judged)


def longest_path(tree: DraftTree, right: Tensor, choices: Tensor) -> Verdict:
    """Return the verdict of the longest right path.

    Of several, that with the first last node in static trees, and that to the first leaf in all
    others, as in `Lantern.judge_greedily`.

    right: (images, 1 + nodes) which nodes are accepted if their parents are.
    choices: (images, 1 + nodes) bonus tokens.
    """
    # (images, 1 + nodes) how many nodes on the path to each are accepted, the root among them
    counts = (tree.visible & reached(tree, right)[:, None]).sum(2)
    if not tree.by_rank:  # only leaves: nothing else present is below them
        below = tree.visible & tree.present[:, :, None]
        counts = counts * (below.sum(1) == 1)
    most, end = counts.max(1)  # of several the first
    verdict = path_verdict(tree, most - 1, end[:, None], choices)
    drafts = tree.tokens.gather(1, verdict.path.roll(-1, 1))
    order = arange(1 + tree.nodes, choices.device)
    emitted = torch.where(order < verdict.accepted[:, None], drafts, verdict.emitted)
    return replace(verdict, emitted=emitted)
