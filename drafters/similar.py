"""Stale predictions, weighed by how similar the tokens are that they were made after.

A verified tree holds the target's predictions after many tokens that it did not choose: the other
candidates for the same place. After a token much like the chosen one, the target predicts much the
same. So the distribution after a node is recalled from all nodes of the last tree that stand at its
position, each weighed by the similarity of its last tokens to the node's own (kernel regression,
Nadaraya 1964). Siblings of an accepted token are then worth verifying for what they predict.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from drafters.jacobi import JacobiDrafter, Recalled
from models.base import PromptRows, TargetModel

# The weight of a node is the softmax of its tokens' cosines times these numbers: its own token, the
# one before it, and the one before that.
SHARPNESS = 30.0, 10.0, 5.0
# With m the similarity of the most similar node, the share of what is recalled in a mixture is
# a + b m, cut to [0, 1], and distributions are trusted by factors exp(a + b m^3): those of the
# mixture, and those of what is recalled alone. Fitted to closed-loop rounds of the shipped model.
SHARE = -0.34, 1.32
TRUST_MIXED = 0.0, 1.66
TRUST_ALONE = -0.97, 2.56
_LEAST = -60.0  # log-probability of codes that top-k or top-p cuts, so that means stay finite


class SimilarDrafter(JacobiDrafter):
    """Recalls predictions by similarity where the last tree has any, and as Jacobi elsewhere.

    Two tokens are as similar as the cosine of their embeddings in the target says.
    """

    def __init__(
        self, target: TargetModel, window: int, guess: str, reach: int = 0, nodes: int = 0
    ):
        """nodes: of the largest tree, for which tables have room in rounds that are recorded."""
        super().__init__(target, window, guess, reach)
        self.nodes = nodes
        codes = target.embedding()[target.vocab.first_id :][: target.vocab.size]
        self.directions = F.normalize(codes.to(self.device, self.dtype), dim=-1)  # (codes, hidden)

    def open(self, images: int, watch: Stopwatch, fixed: bool = False) -> None:
        super().open(images, watch, fixed)
        self.fixed = fixed
        room = 1 + self.nodes * fixed
        # (images, tokens) the last decided codes, the root's first
        self.recent = self.root.new_zeros(images, len(SHARPNESS))
        # of the last tree: (images, nodes) the positions of its nodes, -1 for none; (images, nodes,
        # tokens) their last tokens; (images, nodes, vocab) the predictions after them
        self.places = self.root.new_full((images, room), -1)
        self.lineage = self.root.new_zeros(images, room, len(SHARPNESS))
        self.log_p = self.distributions.new_zeros(images, room, self.codes)

    def start(self, image: int, prompt: PromptRows, features: Tensor, code: Tensor) -> None:
        super().start(image, prompt, features, code)
        self.recent[image], self.places[image] = code, -1

    def expand(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        log_q, _, likeness = self._recall(tree, nodes)
        self.trust = _trust(likeness, *TRUST_ALONE)
        return log_q

    def recall(self, tree: DraftTree, nodes: Tensor) -> Recalled:
        log_q, share, likeness = self._recall(tree, nodes)
        least, slope = SHARE
        own = (least + slope * likeness).clamp(0, 1)
        share = torch.where(likeness.isfinite(), own, share)
        return Recalled(log_q, share, _trust(likeness, *TRUST_MIXED))

    def _recall(self, tree: DraftTree, nodes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return predictions (images, k, vocab), Jacobi's shares and similarities (images, k)."""
        older = super().recall(tree, nodes)
        places = self.root + tree.depths.gather(1, nodes)
        found, likeness = self._similar(self._lineage(tree, nodes), places)
        log_q = torch.where(likeness.isfinite()[..., None], found, older.log_q)
        return log_q, older.share, likeness

    def observe(self, tree: DraftTree, log_p: Tensor, verdict: Verdict) -> None:
        every = torch.arange(tree.nodes + 1, device=self.device).expand_as(tree.tokens)
        places = (self.root + tree.depths).masked_fill(~tree.present, -1)
        lineage = self._lineage(tree, every)
        accepted = verdict.accepted[:, None]
        last = verdict.path.gather(1, accepted)[..., None].expand(-1, -1, len(SHARPNESS))
        before = lineage.gather(1, last)[:, 0, :-1]
        self.recent.copy_(torch.cat([verdict.emitted.gather(1, accepted), before], 1))
        self._remember(places, lineage, log_p.clamp_min(_LEAST))
        super().observe(tree, log_p, verdict)

    def select(self, images: list[int]) -> None:
        super().select(images)
        self.recent, self.places = self.recent[images], self.places[images]
        self.lineage, self.log_p = self.lineage[images], self.log_p[images]

    def _remember(self, places: Tensor, lineage: Tensor, log_p: Tensor) -> None:
        """Replace the tables of the last tree; in place where rounds are recorded."""
        if not self.fixed:
            self.places, self.lineage, self.log_p = places, lineage, log_p
            return
        self.places.fill_(-1)
        tables = (self.places, places), (self.lineage, lineage), (self.log_p, log_p)
        for table, new in tables:
            table[:, : new.shape[1]] = new

    def _lineage(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        """Return the last tokens of nodes (images, k), their own first: (images, k, tokens)."""
        depth, node, tokens = tree.depths.gather(1, nodes), nodes, []
        for back in range(len(SHARPNESS)):
            decided = self.recent.gather(1, (back - depth).clamp_min(0))
            tokens.append(torch.where(depth >= back, tree.tokens.gather(1, node), decided))
            node = tree.parents.gather(1, node)
        return torch.stack(tokens, 2)

    def _similar(self, tokens: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return distributions (images, k, vocab) by similarity, and (images, k) the greatest one.

        It is 1 for the same tokens, and -inf where no node of the last tree stands.

        tokens: (images, k, tokens) the last ones. places: (images, k) the positions of the first.
        """
        here = places[..., None] == self.places[:, None]  # (images, k, nodes)
        known = here.any(2)
        merit = torch.zeros(here.shape, dtype=self.dtype, device=self.device)
        for back, sharpness in enumerate(SHARPNESS):
            one, other = (
                self.directions[tokens[..., back]],
                self.directions[self.lineage[..., back]],
            )
            merit = merit.baddbmm(one, other.transpose(1, 2), alpha=sharpness)
        weights = merit.masked_fill(~here & known[..., None], -torch.inf).softmax(2)
        likeness = merit.masked_fill(~here, -torch.inf).amax(2) / sum(SHARPNESS)
        return (weights @ self.log_p).log_softmax(-1), likeness


def _trust(likeness: Tensor, least: float, slope: float) -> Tensor:
    """Return factors exp(least + slope m^3) of similarities m (images, k); none counts as 0."""
    return (least + slope * likeness.clamp(0, 1) ** 3).exp()
