"""The network of the block drafter: an EAGLE head that also reads stale features."""

import torch
from torch import Tensor, nn

from drafters.eagle_head import EagleHead
from drafters.similarity import trust_in
from models.base import Context, TransformerSpec
from models.linear import Linear

STEPS = 32  # positions of a window that are told apart; those further on count as the last one
# What an untrained head begins with: shares of the stale features in the mixture, the logistic
# function of a + b m for similarity m; and trust in it, exp(a + b m^3). As fitted in `similar`.
SHARE = -3.9, 6.0
TRUST = 0.0, 1.66


class BlockHead(EagleHead):
    """An EAGLE head that also reads stale features, and mixes its predictions with them.

    It begins as the EAGLE head with the same weights: what it adds is 0 then.
    """

    def __init__(self, spec: TransformerSpec, bias: bool = True):
        super().__init__(spec, bias)
        self.recalled = Linear(spec.hidden, spec.hidden, bias=False)
        self.steps = nn.Embedding(STEPS, spec.hidden)
        self.gate = Linear(spec.hidden, 1, bias=False)
        self.share = nn.Parameter(torch.tensor(SHARE))
        self.trust = nn.Parameter(torch.tensor(TRUST))
        for module in (self.recalled, self.steps, self.gate):
            nn.init.zeros_(module.weight)

    @staticmethod
    def of(head: EagleHead) -> "BlockHead":
        """Return the block head that an EAGLE head is without training; a block head as it is."""
        if isinstance(head, BlockHead):
            return head
        weight = head.fc.weight
        with torch.device("meta"):
            block = BlockHead(head.spec, head.fc.bias is not None)
        for name, module in head.named_children():
            setattr(block, name, module)
        like = {"dtype": weight.dtype, "device": weight.device}
        for module in (block.recalled, block.steps, block.gate):
            module.weight = nn.Parameter(torch.zeros(module.weight.shape, **like))
        block.share = nn.Parameter(torch.tensor(SHARE, **like))
        block.trust = nn.Parameter(torch.tensor(TRUST, **like))
        return block.requires_grad_(False).eval()

    def read(
        self, ids: Tensor, features: Tensor, stale: Tensor, steps: Tensor, context: Context
    ) -> Tensor:
        """Return predicted features (rows, n, hidden) of slots, the last m of them of a window.

        Args:
            ids: (rows, n) tokens.
            features: (rows, n, hidden) those before them.
            stale: (rows, m, hidden) stale ones after them.
            steps: (m,) distance from the root.
            context: of all n slots.
        """
        mixed = self.fc(torch.cat([self.embedding(ids), features], -1))
        more = self.recalled(stale) + self.steps(steps.clamp(max=STEPS - 1))
        decided = mixed.shape[1] - more.shape[1]
        mixed = torch.cat([mixed[:, :decided], mixed[:, decided:] + more], 1)
        return self.blocks(mixed.to(features.dtype), context)

    def mix(self, predicted: Tensor, stale: Tensor, similarity: Tensor) -> Tensor:
        """Return features (images, guidance, n, hidden): predicted ones mixed with stale ones.

        similarity: (images, n) the similarity of the tokens that the stale ones were made after.
        """
        gate = self.gate(predicted).mean(1)[..., 0]  # (images, n), one for all guidance rows
        share = (gate + self.share[0] + self.share[1] * similarity).sigmoid()[:, None, :, None]
        return predicted + share.to(predicted.dtype) * (stale - predicted)

    def confidence(self, similarity: Tensor) -> Tensor:
        """Return factors (images, n) on the calibration of such mixtures."""
        return trust_in(similarity, self.trust[0], self.trust[1])
