"""Which way of drafting pays: by the tokens that each has decided per millisecond of late.

Where trees seldom pay none should be grown, and where the drafter costs more than it brings,
foreseen tokens alone should be verified. Every way is tried, and again from time to time, since
images change on the way. Rounds count with the time that they took, or with their price where trees
must not depend on a clock.
"""

from dataclasses import dataclass, replace

from decoding.policies.base import Outcome, Shape

MEMORY = 0.97  # what a round counts for beside the next one of its way
TRIAL = 8  # images' rounds of a trial; the first is not counted, since it follows another way
HOPELESS = 0.7  # of the best rate: a trial below it ends at once
SHARE = 0.01  # of all time that trials may lose, those of all ways
WAIT, LONGEST_WAIT = 32, 2048  # rounds until a way is tried again
INTERRUPTED = 3.0  # times the mean of its way: a round counts as no longer than that


@dataclass(frozen=True)
class Prices:
    """Milliseconds of a round: verify[n] of all but the draft, n nodes; draft[n] of n levels.

    alone: whether foreseen tokens without any level cost draft[0]; a drafter of one pass has them
    from the same pass as its levels. timed: whether ways are compared by the time that rounds took,
    and by all images, not by these prices; then trees depend on the machine and on the batch.
    """

    verify: tuple[float, ...]
    draft: tuple[float, ...]
    alone: bool = True
    timed: bool = False


@dataclass
class Way:
    """A largest shape, and what its rounds brought, older ones counting less.

    tokens: decided. spent: milliseconds. rounds: how many these are. trial: images' rounds left of
    a trial. tried: rounds that it took so far. idle: rounds of other ways since its last one. wait:
    as many begin a trial.
    """

    shape: Shape
    tokens: float = 0.0
    spent: float = 0.0
    rounds: float = 0.0
    trial: int = 0
    tried: int = 0
    idle: int = WAIT
    wait: int = WAIT

    @property
    def rate(self) -> float:
        """Tokens per millisecond."""
        return self.tokens / self.spent if self.rounds else 0.0

    @property
    def mean(self) -> float:
        """Milliseconds per round."""
        return self.spent / self.rounds

    def count(self, tokens: int, spent: float) -> None:
        """Add a round. A much longer one than others was interrupted, which says nothing of it."""
        if self.rounds:
            spent = min(spent, INTERRUPTED * self.mean)
        self.tokens = MEMORY * self.tokens + tokens
        self.spent = MEMORY * self.spent + spent
        self.rounds = MEMORY * self.rounds + 1


def chain(largest: Shape, length: int) -> Shape:
    """Return the shape of so many foreseen tokens alone."""
    return replace(largest, depth=0, nodes=min(length, largest.nodes), window=length)


class Ways:
    """Chooses every round's way: a tree, all foreseen tokens alone or half of them, or nothing.

    It is the controller of what needs no other, and images may share it.
    """

    def __init__(self, largest: Shape, prices: Prices):
        self.prices = prices
        none = Way(chain(largest, 0))
        none.count(1, prices.verify[0])
        self.ways = [none, Way(largest)] if largest.depth else [none]
        if largest.window and prices.alone:
            lengths = sorted({largest.window, (largest.window + 1) // 2}, reverse=True)
            self.ways += [Way(chain(largest, length)) for length in lengths]
        self.chosen = self._due() or none
        self.images = 0  # that were observed in this round

    def shape(self, position: int, remaining: int) -> Shape:
        """Return the largest shape of the next tree; the way is the same until a round is over."""
        if self.images:
            self._end_round(self.chosen)
        return self.chosen.shape.within(remaining)

    def observe(self, outcome: Outcome) -> None:
        """Count one image's round of the chosen way."""
        if self.chosen.trial != TRIAL:
            self.chosen.count(outcome.accepted + 1, self._spent(outcome))
        self.images += 1

    def _spent(self, outcome: Outcome) -> float:
        if self.prices.timed:
            return outcome.milliseconds
        return self.prices.verify[outcome.nodes] + self.prices.draft[outcome.drafted]

    def _end_round(self, way: Way) -> None:
        """Go on with a trial, or begin one, or choose the best."""
        for each in self.ways:
            each.idle = 0 if each is way else each.idle + 1
        if way.trial:
            self._go_on(way)
        if not way.trial:
            self.chosen = self._due() or self._best()
        self.images = 0

    def _go_on(self, way: Way) -> None:
        first, best = way.trial == TRIAL, self._best()
        way.trial = max(way.trial - (1 if first else self.images), 0)
        way.tried += 1
        if not first and way.rate < HOPELESS * best.rate:
            way.trial = 0
        if not way.trial:
            way.wait = self._wait(way, best)

    def _wait(self, way: Way, best: Way) -> int:
        """Return after how many rounds of the best way a trial like this one lost its share."""
        lost = way.tried * way.mean * (1 - way.rate / best.rate)  # milliseconds
        share = SHARE / (len(self.ways) - 1)
        return min(max(int(lost / (share * best.mean)), WAIT), LONGEST_WAIT)

    def _best(self) -> Way:
        return max(self.ways, key=lambda way: way.rate)

    def _due(self) -> Way | None:
        """Begin the trial of a way that has waited long enough; None if there is none."""
        for way in self.ways[1:]:  # a round without drafts needs no trial: its price is known
            if way.idle >= way.wait:
                way.trial, way.tried = TRIAL, 0
                return way
        return None
