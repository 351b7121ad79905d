"""Progress of a run: a bar on a terminal, a line now and then in a log."""

import sys
import time
from typing import Any, Self, TextIO

from tqdm import tqdm


class _Shown:
    """Images done, out of a total if it is known, and words of a subclass; a context manager."""

    def __init__(self, images: int | None, stream: TextIO | None = None, every: float = 30.0):
        """Begin to show.

        Args:
            images: how many will be made; None if that is not known.
            stream: where to show it; stderr by default.
            every: seconds between two lines in a log.
        """
        self.images, self.every = images, every
        self.stream = sys.stderr if stream is None else stream
        self.done = 0
        self.started = self.told = time.perf_counter()
        self.bar = (
            tqdm(total=images, unit="image", file=self.stream) if self.stream.isatty() else None
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def _tell(self, done: int) -> None:
        self.done += done
        if self.bar is not None:
            self.bar.set_postfix_str(self._words(), refresh=False)
            self.bar.update(done)
        elif time.perf_counter() - self.told >= self.every:
            self.told = time.perf_counter()
            total = "" if self.images is None else f"/{self.images}"
            print(f"{self.done}{total} images, {self._words()}", file=self.stream, flush=True)

    @property
    def _seconds(self) -> float:
        return max(time.perf_counter() - self.started, 1e-9)  # a clock may not have moved yet

    def _words(self) -> str:
        raise NotImplementedError


class Progress(_Shown):
    """Shows the images done, tokens per second and tau of a run, from the engine's steps."""

    rounds = tokens = 0

    def show(self, step: Any) -> None:
        """Count a step (StepStats) of the engine, and show the new state."""
        self.rounds += len(step.rounds)
        self.tokens += sum(stats.accepted + 1 for stats in step.rounds)
        self._tell(len(step.finished))

    def _words(self) -> str:
        tau = self.tokens / max(self.rounds, 1)
        return f"{self.tokens / self._seconds:.1f} tokens/s, tau {tau:.2f}"


class ImageCount(_Shown):
    """Shows the images done and left out, and images per second."""

    skipped = 0

    def show(self, done: int = 0, skipped: int = 0) -> None:
        """Count images, and show the new state."""
        self.skipped += skipped
        self._tell(done)

    def _words(self) -> str:
        return f"{self.done / self._seconds:.2f} images/s, {self.skipped} skipped"
