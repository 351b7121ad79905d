"""A cache that counts its images' committed tokens, as a batch of images does."""

import torch
from torch import Tensor

from decoding.cache import CacheShape, CacheView, KVCache
from models.base import Context, TransformerSpec


class CountedCache(KVCache):
    """Prepares passes after the tokens that `advance` has committed."""

    def __init__(
        self, spec: TransformerSpec, shape: CacheShape, dtype: torch.dtype, device: torch.device
    ):
        super().__init__(spec, shape, dtype, device)
        self.lengths = [0] * shape.images
        self.starts = torch.zeros_like(self.origins)  # first token of each row

    def begin(self, starts: Tensor, origins: Tensor | None = None) -> "CountedCache":
        """Set where the rows begin; the first pass of a single image is its prompt."""
        self.starts.copy_(starts)
        is_padding = torch.arange(self.slots) < starts[:, None]
        self.padding.masked_fill_(is_padding, -torch.inf)
        self.origins.copy_(starts if origins is None else origins)
        return self

    def open(self, depths: Tensor, visible: Tensor) -> Context:
        """The context of new tokens, as of `CacheView.open`."""
        lengths = torch.tensor(self.lengths)
        return CacheView(self, lengths, max(self.lengths), visible.shape[2]).open(depths, visible)

    def chain(self, n: int) -> Context:
        """The context of n tokens in a row."""
        if self.lengths == [0]:
            return self.prefill(0, n, self.starts.clone(), self.origins.clone())
        images, steps = len(self.lengths), torch.arange(n)
        seen = (steps <= steps[:, None]).expand(images, -1, -1)
        return self.open(steps.expand(images, -1), seen)

    def advance(self, counts: list[int]) -> None:
        self.lengths = [a + b for a, b in zip(self.lengths, counts, strict=True)]
