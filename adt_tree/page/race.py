"""Two images drawn in turns on one machine, so that both have the same time."""

import time
from collections.abc import Iterator, Sequence

from adt_tree.output import StreamStep


def race(streams: Sequence[Iterator[StreamStep]]) -> Iterator[tuple[int, StreamStep]]:
    """Yield the rounds of several streams with the stream's number.

    The stream that has decoded for the shortest time goes next, so after each round all have
    decoded for about as long: what is drawn so far shows who is faster, though no two rounds run at
    the same time.
    """
    spent = dict.fromkeys(range(len(streams)), 0.0)
    while spent:
        number = min(spent, key=spent.__getitem__)
        if (step := next(streams[number], None)) is None:
            del spent[number]
        else:
            spent[number] = step.seconds
            yield number, step


class Pace:
    """Decides which rounds are shown: all of them, with a pause after each, or a few per second."""

    def __init__(self, pause: float, interval: float = 0.1):
        """pause: seconds after every round; interval: least seconds between two rounds shown."""
        self.pause, self.interval, self._shown = pause, interval, 0.0

    def shows(self, important: bool) -> bool:
        """Return whether to show a round; an important one is shown in any case."""
        if self.pause:
            time.sleep(self.pause)
            return True
        now = time.perf_counter()
        if important or now - self._shown >= self.interval:
            self._shown = now
            return True
        return False
