"""Progress of a command: a bar on a terminal; in a log a line at once, then one every minute."""

import sys
import time
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import chain, repeat
from threading import Event, Thread
from typing import Any, Self

from tqdm import tqdm


def announce(text: str) -> None:
    """Print on stderr what is being done; in a log with the time."""
    now = "" if sys.stderr.isatty() else f"[{datetime.now():%Y-%m-%d %H:%M:%S}] "
    # in one piece, since two threads print
    print(f"{now}{text}\n", end="", file=sys.stderr, flush=True)


def _pauses() -> Iterator[float]:
    """Yield the seconds between two lines of a log; the first ones show soon that it works."""
    return chain((10.0, 20.0, 30.0), repeat(60.0))


class Progress:
    """Shows what is being done, how much of it is done, its rate and the time left.

    A context manager. A thread writes the lines of a log, because one image can take hours.
    """

    bar_format: str | None = None  # tqdm's by default
    limit: float | None = None  # seconds that all may take, if the time decides and not a total

    def __init__(
        self,
        what: str,
        total: int | None = None,  # units; None if that is not known
        done: int = 0,  # those that an earlier command has made
        shown: bool = True,
        unit: str = "image",
    ):
        """Print what is made, how much of it and where to."""
        self.total, self.done, self.shown, self.unit = total, done, shown, unit
        self.words = "loading the model"
        self.started: float | None = None  # when the first unit was begun
        self.bar: tqdm | None = None
        self._ended = Event()
        if shown:
            self.note(what)

    def __enter__(self) -> Self:
        if self.shown and not sys.stderr.isatty():
            Thread(target=self._write_log, daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self.bar is not None:
            self.bar.close()

    def note(self, text: str) -> None:
        if self.bar is not None:
            self.bar.write(text, file=sys.stderr)
        elif self.shown:
            announce(text)

    def say(self, words: str) -> None:
        """Show other words after the figures, such as the step before the first image."""
        self.words = words
        if self.shown and sys.stderr.isatty():
            if self.bar is None:
                self.bar = tqdm(
                    total=self.total,
                    initial=self.done,
                    unit=self.unit,
                    bar_format=self.bar_format,
                )
            self.bar.set_postfix_str(words)

    def begin(self) -> None:
        """Start the clock of the rate: the model is loaded. Later calls do nothing."""
        if self.started is None:
            self.started, self.first = time.perf_counter(), self.done
            self.say("")

    def update(self, done: int = 1, words: str | None = None) -> None:
        """Count units. words: shown after the figures from now on; None: those of before."""
        self.begin()
        self.done += done
        self.words = self.words if words is None else words
        if self.bar is not None:
            self.bar.set_postfix_str(self.words, refresh=False)
            self.bar.update(done)

    def _write_log(self) -> None:
        for pause in _pauses():
            if self._ended.wait(pause):
                return
            self.note(self._state())

    def _state(self) -> str:
        of = "" if self.total is None else f"{self.done}/"
        parts = [of + plural(self.done if self.total is None else self.total, self.unit)]
        if self.started is not None:
            new, seconds = self.done - self.first, self.seconds
            if new:
                rate = 3600 * new / seconds
                parts.append(f"{rate:{',.0f' if rate >= 10 else '.1f'}} {self.unit}s/h")
            if (left := self._left()) is not None:
                parts.append(f"{duration(left)} left" if left >= 1 else "finishing")
                if left >= 3600:
                    parts.append(f"until {datetime.now() + timedelta(seconds=left):%a %H:%M}")
        return ", ".join([*parts, *filter(None, [self.words])])

    def _left(self) -> float | None:
        """Return the seconds that are left, None while nothing is known."""
        if self.limit is not None:
            return max(self.limit - self.seconds, 0)
        new = self.done - self.first
        return self.seconds / new * (self.total - self.done) if new and self.total else None

    @property
    def seconds(self) -> float:
        """Seconds since the first unit was begun."""
        started = time.perf_counter() if self.started is None else self.started
        return max(time.perf_counter() - started, 1e-9)  # a clock may not have moved yet


class DecodingProgress(Progress):
    """Also shows tokens per second and tau, from the engine's steps.

    The time left follows from tokens, since several images may be hours away from their ends.
    """

    # the time left is in the words: tqdm's own would count finished images
    bar_format = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}{postfix}]"
    rounds = decoded = drafted = image_tokens = 0

    def begin(self, tokens: int = 0) -> None:
        """Start the clock. tokens: of an image."""
        self.image_tokens = tokens or self.image_tokens
        super().begin()

    def show(self, step: Any) -> None:
        """Count a step (StepStats) of the engine, and show the new state."""
        self.begin()
        self.rounds += len(step.rounds)
        self.drafted += sum(stats.accepted + 1 for stats in step.rounds)
        # an image's first token comes with its prefill, before its first round
        self.decoded += sum(stats.accepted + 1 + (stats.round == 0) for stats in step.rounds)
        tau = self.drafted / max(self.rounds, 1)
        words = f"{self.drafted / self.seconds:.1f} tokens/s, tau {tau:.2f}"
        left = self._left()
        if self.bar is not None and left is not None:
            words += f", {duration(left)} left"
        self.update(len(step.finished), words)

    def _left(self) -> float | None:
        if not (self.decoded and self.image_tokens and self.total):
            return super()._left()
        tokens = (self.total - self.first) * self.image_tokens
        return self.seconds / self.decoded * max(tokens - self.decoded, 0)


def duration(seconds: float) -> str:
    """Return a time in words, such as 3 h 20 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    # Rounded before the split, or 59.7 minutes would be "60 min".
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def plural(count: int, noun: str) -> str:
    """Return a number with its noun: 1 image, 2 images."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
