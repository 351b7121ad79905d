"""What drafting and learning came to in a while, and whether more learning pays."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """What happened in a while. images: finished. tokens: decided, also of images in flight.
    rounds: of single images. drawing, learning: seconds.
    """

    images: int = 0
    tokens: int = 0
    rounds: int = 0
    drawing: float = 0.0
    learning: float = 0.0

    def __add__(self, other: "Span") -> "Span":
        return Span(
            *(a + b for a, b in zip(vars(self).values(), vars(other).values(), strict=True))
        )

    @property
    def tau(self) -> float:
        return self.tokens / self.rounds


def saved(first: Span, later: Span) -> float:
    """Return the seconds that fewer rounds than in the first span have saved in a later one."""
    return (later.tokens / first.tau - later.rounds) * first.drawing / first.rounds


def pays(spans: list[Span], left: int) -> bool:
    """Return whether to learn on, with so many images left.

    It pays if the images left gain more from a span's learning than that takes, going by the last
    two spans: by how many rounds an image has become shorter, and the time of a round at first.
    """
    if len(spans) < 3:
        return True
    fewer = spans[-1].tokens * (1 / spans[-3].tau - 1 / spans[-1].tau) / 2  # rounds of a span
    gain = fewer * left / spans[-1].images * spans[0].drawing / spans[0].rounds
    return gain > spans[-1].learning
