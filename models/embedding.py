"""Embedding tables that start quickly."""

from torch import nn


class Embedding(nn.Embedding):
    """nn.Embedding, without values to begin with on the meta device.

    There are none to draw, but torch would load its whole compiler to draw them: seconds of every
    command, since networks are built on the meta device before files are read.
    """

    def reset_parameters(self) -> None:
        if not self.weight.is_meta:
            super().reset_parameters()
