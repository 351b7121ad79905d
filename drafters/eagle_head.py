"""The network of an EAGLE drafter (arXiv 2401.15077): it extrapolates the target's features.

It may also read the target's hidden states after some of its layers (EAGLE-3, arXiv 2503.01840).
They hold what the last layer has dropped because the next token does not need it.
"""

from dataclasses import replace

import torch
from torch import Tensor, nn

from models.base import Context, Layers, TransformerSpec
from models.linear import Linear
from models.transformer import Blocks


class EagleHead(nn.Module):
    """embed(token i + 1), feature i -> predicted feature i + 1; no final norm, as published."""

    def __init__(self, spec: TransformerSpec, bias: bool = True):
        super().__init__()
        self.embedding = nn.Embedding(spec.vocab, spec.hidden)
        self.fc = Linear(2 * spec.hidden, spec.hidden, bias=bias)
        self.blocks = Blocks(spec)
        self.states: Linear | None = None
        if spec.target_layers:
            self.read_layers(spec.target_layers)

    def read_layers(self, layers: Layers) -> None:
        """Read the target's hidden states after these layers, too: as nothing until trained."""
        hidden, weight = self.spec.hidden, self.fc.weight
        self.blocks.spec = replace(self.spec, target_layers=layers)
        like = {"device": weight.device, "dtype": weight.dtype}
        self.states = Linear(len(layers) * hidden, hidden, bias=False, **like)
        nn.init.zeros_(self.states.weight)

    @property
    def spec(self) -> TransformerSpec:
        """The sizes of its layers."""
        return self.blocks.spec

    def fuse(self, features: Tensor) -> Tensor:
        """Return the features (..., hidden) that the head reads.

        features: (..., (1 + layers) hidden) of the target, the hidden states behind the features.
        """
        if self.states is None:
            return features
        hidden = self.spec.hidden
        return features[..., :hidden] + self.states(features[..., hidden:]).to(features.dtype)

    def forward(self, ids: Tensor, features: Tensor, context: Context) -> Tensor:
        """Return predicted features (rows, n, hidden).

        ids: (rows, n) of the next tokens. features: (rows, n, hidden) of the positions before them,
        fused or predicted.
        """
        mixed = self.fc(torch.cat([self.embedding(ids), features], -1))
        # under autocast the residual stream stays wide
        return self.blocks(mixed.to(features.dtype), context)
