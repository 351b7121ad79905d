"""Randomised acceptance of children drawn from q: the rule of EAGLE-1 (arXiv 2401.15077)."""

from torch import Tensor

from decoding.tree import DraftTree
from decoding.verifiers.rejection import PointMasses, Rejection
from decoding.verifiers.siblings import Siblings, at, normalised


class Draws(PointMasses):
    """Judges children drawn without replacement from q: accepts x with min(1, p(x) / q(x)).

    If x is refused, p becomes norm(max(p - q, 0)), and x leaves q.
    """

    def __init__(self, distribution: Tensor, noise: Tensor, draft: Tensor):
        """draft: (images, vocab) q, fp64; the others as for `PointMasses`."""
        super().__init__(distribution, noise)
        self.draft = draft

    def visit(self, tokens: Tensor, asked: Tensor) -> Tensor:
        own, drafted = self.masses(tokens)
        hit = asked & (self.uniform(tokens) * drafted < own)
        self.leave(asked & ~hit, (self.distribution - self.draft).clamp(min=0))
        # read again only where x was refused
        self.draft = normalised(self.draft.scatter(1, tokens[:, None], 0.0))
        return hit

    def masses(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return what p and q give to tokens (images,); their ratio decides about x."""
        return at(self.distribution, tokens), at(self.draft, tokens)


class Sampled(Rejection):
    """Judges the proposal `sampled`, in trees of fixed shape.

    It is lossless only if no child is dropped after its value was seen, as pruning would do.
    """

    name = "sampled"
    reads_distributions = True

    def siblings(
        self, distribution: Tensor, accept: Tensor, tree: DraftTree, node: Tensor
    ) -> Siblings:
        if tree.nodes == 0:
            return super().siblings(distribution, accept, tree, node)
        return Draws(distribution, accept, at(tree.distributions, node).double().softmax(-1))
