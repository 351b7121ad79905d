"""Grouped speculative decoding: a draft is judged with the tokens like it (arXiv 2508.07747).

The cluster C of a draft x is x and those of its neighbours in the order of p whose probability is
close to p(x). x is accepted with probability min(1, p(C) / q(C)), where p(C) is the sum over the
cluster. After a refusal the distribution is that of the lossless rule, norm(max(p - q, 0)). The
published code also wants the neighbours' embeddings to be close, by a number that fits one
checkpoint. That condition is left out here.
"""

from torch import Tensor

from configs.acceptance import GsdSettings
from decoding.tree import DraftTree
from decoding.verifiers.base import Streams, Verdict
from decoding.verifiers.rejection import Rejection
from decoding.verifiers.sampled import Draws, Sampled
from decoding.verifiers.siblings import Siblings, at

_GREEDY = Rejection()


class Clusters(Draws):
    """Judges children drawn from q by the masses of their clusters."""

    def __init__(self, draws: Draws, settings: GsdSettings):
        super().__init__(draws.distribution, draws.noise, draws.draft)
        self.settings = settings

    def masses(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        cluster = self.cluster(tokens)
        return (self.distribution * cluster).sum(1), (self.draft * cluster).sum(1)

    def cluster(self, tokens: Tensor) -> Tensor:
        """Return (images, vocab) bool: the tokens that are judged with `tokens` (images,)."""
        p, own = self.distribution, at(self.distribution, tokens)[:, None]
        rank = p.argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        near = (rank - at(rank, tokens)[:, None]).abs() <= self.settings.reach
        close = (p - own).abs() < self.settings.gap
        return (near & close).scatter(1, tokens[:, None], True)


class Gsd(Sampled):
    """Judges the proposal `sampled`, in trees of fixed shape; with reach 0 it is `Sampled`.

    At temperature 0 a child has to be the target's choice.
    """

    name = "gsd"
    lossless = False

    def __init__(self, settings: GsdSettings, nearest: Tensor | None = None):
        self.settings = settings

    def __call__(self, tree: DraftTree, log_p: Tensor, noise: Streams) -> Verdict:
        greedy = noise("accept").shape[-1] == 1
        return _GREEDY(tree, log_p, noise) if greedy else super().__call__(tree, log_p, noise)

    def siblings(
        self, distribution: Tensor, accept: Tensor, tree: DraftTree, node: Tensor
    ) -> Siblings:
        found = super().siblings(distribution, accept, tree, node)
        return Clusters(found, self.settings) if isinstance(found, Draws) else found
