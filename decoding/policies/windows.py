"""Chains of foreseen tokens, as long as pays."""

from decoding.policies.base import Controller, Shape
from decoding.policies.dynamic import DynamicTree
from decoding.policies.ways import Prices, Ways


class PayingChain(DynamicTree):
    """A chain of all foreseen tokens or of half of them, in rounds where it pays."""

    name = "window"

    def __init__(self, longest: Shape, prices: Prices):
        """prices: of rounds of up to as many nodes."""
        super().__init__(longest)
        assert len(prices.verify) > longest.window
        self.prices = prices
        self.shared = Ways(longest, prices) if prices.timed else None

    def controller(self, seed: int) -> Controller:
        return self.shared or Ways(self.largest, self.prices)
