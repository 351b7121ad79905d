"""What a waiting user sees: a bar on a terminal, a line now and then in a log."""

import sys
import time
from typing import Any, Self, TextIO

from tqdm import tqdm


class Progress:
    """Images done, tokens per second and tau of a run, from the engine's steps; a context manager."""

    def __init__(self, images: int, stream: TextIO | None = None, every: float = 30.0):
        """images: how many will be made; stream: stderr by default; every: seconds between lines in a log."""
        self.images, self.every = images, every
        self.stream = sys.stderr if stream is None else stream
        self.done = self.rounds = self.tokens = 0
        self.started = self.told = time.perf_counter()
        self.bar = tqdm(total=images, unit="image", file=self.stream) if self.stream.isatty() else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def show(self, step: Any) -> None:
        """Count a step (StepStats) of the engine, and show the new state."""
        self.rounds += len(step.rounds)
        self.tokens += sum(stats.accepted + 1 for stats in step.rounds)
        self.done += len(step.finished)
        if self.bar is not None:
            self.bar.set_postfix_str(self._speed(), refresh=False)
            self.bar.update(len(step.finished))
        elif time.perf_counter() - self.told >= self.every:
            self.told = time.perf_counter()
            print(f"{self.done}/{self.images} images, {self._speed()}", file=self.stream, flush=True)

    def _speed(self) -> str:
        seconds = max(time.perf_counter() - self.started, 1e-9)
        return f"{self.tokens / seconds:.1f} tokens/s, tau {self.tokens / max(self.rounds, 1):.2f}"
