"""From what a visitor asks for to the values of the stage, round by round.

Both images are generated in turns on one machine, so that both methods get the same time.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from urllib.parse import urlencode

from adt_tree.output import StreamStep
from adt_tree.page.stage import Panel, Value, stage_value, verdict
from adt_tree.pipeline import Pipeline
from configs.fields import mismatch
from configs.method_table import METHODS

SLOW = 0.25  # seconds


@dataclass(frozen=True)
class Wish:
    """What a visitor asks for.

    tokens: draft tokens per round, at most; 0 leaves that to the method. slow: every round is shown
    for a while.
    """

    prompt: str
    method: str
    seed: int
    temperature: float
    guidance_scale: float
    top_k: int
    tokens: int
    slow: bool

    @property
    def link(self) -> str:
        """The query of an address that opens the page with this wish."""
        values = {name: int(v) if isinstance(v, bool) else v for name, v in asdict(self).items()}
        return urlencode(values)


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


class Painter:
    """Draws for the page, on one model."""

    def __init__(self, pipe: Pipeline, pause: float = SLOW):
        """pause: seconds after every round of a wish to see them."""
        self.pipe, self._pause = pipe, pause

    def draw(self, wish: Wish) -> Iterator[Value]:
        """Yield the stage's values until both images are finished."""
        options = {name: getattr(wish, name) for name in ("temperature", "guidance_scale", "top_k")}
        seed = {"seed": wish.seed}
        plain = Pipeline.from_pipe(self.pipe, method="ar").stream(wish.prompt, **seed, **options)
        grid, pipe = self.pipe.weights.target.grid, self._fast(wish)
        panels = [Panel(name, grid.columns, grid.first) for name in ("ar", wish.method)]
        fast = pipe.stream(wish.prompt, **seed, **options)
        pace = Pace(self._pause if wish.slow else 0.0)
        asked = {"prompt": wish.prompt, "link": wish.link}
        for number, step in race([plain, fast]):
            row = panels[number].take(step)
            if pace.shows(step.finished) or (row and wish.slow):
                yield stage_value("drawing", self.pipe.grid, panels) | asked
        # slowly shown rounds pause in between, so times say nothing of the methods
        equal = pipe.settings.method.same_tokens(wish.temperature)
        ended = verdict(panels[0].step, panels[1].step, equal, not wish.slow)
        yield stage_value("done", self.pipe.grid, panels) | asked | {"verdict": ended}

    def _fast(self, wish: Wish) -> Pipeline:
        settings: dict[str, Any] = {"method": wish.method}
        if wish.tokens:
            limits = [n for n in ("nodes", "window") if n in METHODS[wish.method].defaults]
            if not limits:
                expected = f"0 with {wish.method}, which has a fixed tree"
                raise mismatch("draft tokens", str(wish.tokens), expected)
            settings[limits[0]] = wish.tokens
        return Pipeline.from_pipe(self.pipe, **settings)
