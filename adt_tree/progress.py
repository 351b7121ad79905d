"""How far a call is: its tokens on a progress bar."""

from collections.abc import Mapping
from typing import Any, Self

from tqdm import tqdm

from runs.drawing import DrawnStep


class TokenCount:
    """Counts the tokens that rounds decide, and shows them; a context manager."""

    def __init__(self, total: int, bar: Mapping[str, Any]):
        """Begin to show. total: tokens of all images. bar: what tqdm is called with."""
        self.tokens = 0
        self._bar = tqdm(total=total, **{"unit": "token", **bar})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.close()

    def count(self, step: DrawnStep) -> None:
        """Add a round's tokens, and that of the prefill before an image's first round."""
        new = sum(stats.accepted + 1 + (stats.round == 0) for stats in step.rounds)
        self.tokens += new
        self._bar.update(new)
