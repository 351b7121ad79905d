"""Times the parts of rounds, on CPUs by the clock and on GPUs by events."""

import time
from collections import Counter, defaultdict

import torch

Mark = float | torch.cuda.Event


class Stopwatch:
    """Adds up seconds and calls by name; laps count after `settle`.

    On a GPU a lap's end is known only when the device has reached it, so `settle` is called after
    the round's wait. Rounds that are replayed are timed as a whole: their laps would be part of the
    replay.
    """

    def __init__(self, device: torch.device):
        self.cuda = device.type == "cuda"
        self.seconds: dict[str, float] = defaultdict(float)
        self.calls: Counter[str] = Counter()
        self.open_laps: list[tuple[str, Mark, Mark]] = []
        self.paused = False

    def pause(self, paused: bool) -> None:
        """Stop timing while a round is captured, or go on."""
        self.paused = paused

    def restart(self) -> None:
        """Forget everything."""
        for counted in (self.seconds, self.calls, self.open_laps):
            counted.clear()

    def mark(self) -> Mark:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def lap(self, name: str) -> "Lap":
        """Time a block of code."""
        return Lap(self, name)

    def count(self, name: str, times: int) -> None:
        """Add calls that no lap times."""
        if not self.paused:
            self.calls[name] += times

    def settle(self) -> dict[str, float]:
        """Count the laps since the last call; returns their seconds by name."""
        laps: dict[str, float] = defaultdict(float)
        for name, start, stop in self.open_laps:
            seconds = _between(start, stop)
            laps[name] += seconds
            self.seconds[name] += seconds
            self.calls[name] += 1
        self.open_laps.clear()
        return laps


def _between(start: Mark, stop: Mark) -> float:
    """Return the seconds between two marks of one kind."""
    if isinstance(start, float) and isinstance(stop, float):
        return stop - start
    assert isinstance(start, torch.cuda.Event) and isinstance(stop, torch.cuda.Event)
    return start.elapsed_time(stop) / 1000


class Lap:
    """A block of code whose time counts on a stopwatch (a generator would take longer)."""

    def __init__(self, watch: Stopwatch, name: str):
        self.watch, self.name = watch, name

    def __enter__(self) -> None:
        self.started = None if self.watch.paused else self.watch.mark()

    def __exit__(self, *raised: object) -> None:
        if self.started is not None and raised[0] is None:
            self.watch.open_laps.append((self.name, self.started, self.watch.mark()))
