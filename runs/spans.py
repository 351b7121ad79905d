"""What drafting and learning came to in a while, and whether more learning pays."""

from dataclasses import dataclass
from statistics import linear_regression, mean

_LATEST = 6  # spans that the trend is taken from
_PATIENCE = 4  # spans of learning before the trend is asked: from random weights tau rises late
_MOST = 0.5  # of the time of drawing, that learning can be hoped to save


@dataclass(frozen=True)
class Span:
    """What happened in a while. images: finished. tokens: decided, also of images in flight.
    rounds: of single images. drawing, learning: seconds; where both run side by side, learning has
    those of all rounds that an update ran beside, which is the most that it can have cost.
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

    It pays if the images left may gain more from another span of learning than that takes. What
    they may gain is `hoped`; before four spans of learning, it is half of the time of drawing.
    """
    last = spans[-1]
    if len(spans) <= _PATIENCE:
        gain = _MOST * last.drawing / last.images * left
    else:
        fewer = hoped([1 / span.tau for span in spans[-_LATEST:]]) * last.tokens / last.images
        gain = fewer * left * spans[0].drawing / spans[0].rounds
    return gain > last.learning


def hoped(rates: list[float]) -> float:
    """Return by how much rounds per token fall from span to span, with the benefit of the doubt.

    It is the slope of a line through the spans and one standard error of it: prompts differ, so the
    rates of spans scatter by more than what one span of learning changes.
    """
    places = list(range(len(rates)))
    slope, start = linear_regression(places, rates)
    errors = sum((rate - start - slope * at) ** 2 for at, rate in zip(places, rates, strict=True))
    spread = sum((at - mean(places)) ** 2 for at in places)
    return -slope + (errors / (len(rates) - 2) / spread) ** 0.5
