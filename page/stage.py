"""What the page's stage shows: two images so far, their drafts and figures, and the verdict.

Both images are generated in turns on one machine, so that both methods get the same time.
"""

import base64
import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from pathlib import Path
from string import Template
from typing import Any
from urllib.parse import urlencode

from PIL import Image

from adt_tree.pipeline import Pipeline
from adt_tree.stream import StreamStep
from configs.fields import SettingsError
from configs.methods import METHODS
from runs.measure import BUSY

Value = dict[str, Any]
HERE = Path(__file__).parent
SLOW, INTERVAL = 0.25, 0.1  # seconds after a round that is shown slowly, and between others shown
_SAME = 0.97  # ratio of two times that count as different
_COSTS = (
    "Drafts and larger passes cost more time here than the saved passes. Try fewer draft tokens in "
    "Settings, or a GPU. "
)
# Methods as visitors read them; short, since a phone shows them in one line.
WORDS = {
    "ar": "Plain decoding",
    "adt": "Adaptive draft tree",
    "eagle_recall": "Drafter and recall",
    "block": "Three-pass draft tree",
    "eagle2": "Draft tree of fixed size",
    "static": "Draft tree of fixed shape",
    "recall": "Recall tree, no drafter",
    "jacobi": "Jacobi window, no drafter",
}


class Panel:
    """One image of the stage, while it is drawn."""

    def __init__(self, method: str, columns: int, first: int, timed: bool):
        """method: its name; columns: tokens per row; first: tokens of a small grid before these.

        timed: whether its seconds are shown.
        """
        self.method, self.columns, self.first, self.timed = method, columns, first, timed
        self.step: StreamStep | None = None
        # by position: accepted draft tokens of its round; None: the prompt's pass gave the token
        self.heat: list[int | None] = [None]
        self._image, self._painted = "", 0

    def take(self, step: StreamStep) -> None:
        self.heat += [step.accepted] * (step.decided - len(self.heat))
        self.step = step

    def value(self) -> Value:
        """Return what the page draws, as JSON takes it."""
        named, step = {"method": self.method, "words": words(self.method)}, self.step
        if step is None:
            return named | {"decided": 0}
        decided = max(step.decided - self.first, 0)  # in the grid that is shown
        # Only after a finished row: every picture runs the image decoder.
        if decided // self.columns > self._painted // self.columns:
            # without loss at the end, small before
            kind, options = ("png", {}) if step.finished else ("jpeg", {"quality": 85})
            picture = encoded(step.image, kind, **options)
            self._image, self._painted = f"data:image/{kind};base64,{picture}", decided
        root = step.draft.root - self.first
        return named | {
            "decided": decided,
            "painted": self._painted,
            "image": self._image,
            "done": step.finished,
            "rounds": step.round + 1,
            "forwards": step.forwards,
            "seconds": step.seconds if self.timed else None,
            "per_pass": step.decided / step.forwards,
            "heat": self.heat[self.first :],
            "draft": None if step.finished or root < 0 else asdict(step.draft) | {"root": root},
        }


def encoded(image: Image.Image, kind: str, **options: Any) -> str:
    """Return an image's file in base64. kind, options: as of PIL's `save`."""
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return base64.b64encode(buffer.getvalue()).decode()


def words(method: str) -> str:
    """Return a method's name in words; one from outside the checkout has only its own."""
    return WORDS.get(method, method)


def stage_html() -> str:
    """Return the page's stage before anything is drawn."""
    panel = Template((HERE / "panel.html").read_text("utf-8"))
    plain = panel.substitute(kind="plain", title=WORDS["ar"], remark="one token per forward pass")
    fast = panel.substitute(
        kind="fast", title="Fast method", remark="several tokens per forward pass"
    )
    return Template((HERE / "stage.html").read_text("utf-8")).substitute(plain=plain, fast=fast)


def example() -> Value:
    """Return the stage of a finished image, as `python -m scripts.tools.page_example` made it.

    It has no seconds, since they would be those of another machine.
    """
    value = json.loads((HERE / "example.json").read_text("utf-8"))
    picture = base64.b64encode((HERE / "example.png").read_bytes()).decode()
    for panel in value["panels"]:
        panel |= {"image": f"data:image/png;base64,{picture}", "words": words(panel["method"])}
    return value


def verdict(
    plain: StreamStep, fast: StreamStep, equal: bool, timed: bool, doubt: str | None = None
) -> Value:
    """Compare two finished images by their tokens: whether they are the same, a title and a text.

    equal: whether the method's tokens have to be those of plain decoding. timed: whether the
    seconds are a fair comparison; with pauses between rounds they are not. doubt: why they mislead.
    """
    differ = (plain.tokens != fast.tokens).nonzero().flatten().tolist()
    passes = f"{fast.forwards} forward passes instead of {plain.forwards}"
    if timed:
        ratio = plain.seconds / fast.seconds
        speed = f", {_speed(ratio)}{' (!)' if doubt else ''}"
        took = f"{passes}, {fast.seconds:.2f} s instead of {plain.seconds:.2f} s. "
        took += f"(!) {doubt} " if doubt else _COSTS if ratio < _SAME else ""
    else:
        speed, took = f" in {passes}", ""
    if not differ:
        text = f"{took}All {plain.total} tokens are equal."
        return {"same": True, "title": f"Identical image{speed}", "text": text}
    reason = (
        "Two candidates were nearly equal there, and rounding decided."
        if equal
        else "Its acceptance rule may accept other tokens than plain decoding."
    )
    why = f"{len(differ)} of {plain.total} tokens differ, the first is number {differ[0]}. {reason}"
    return {"same": False, "title": f"A different image{speed}", "text": f"{why} {took}".strip()}


def _speed(ratio: float) -> str:
    """Return in words how much faster a method was. ratio: plain decoding's seconds by its own."""
    if abs(ratio - 1) < 1 - _SAME:
        return "at the same speed"
    more, change = max(ratio, 1 / ratio), "faster" if ratio > 1 else "slower on this machine"
    return f"{more:.1f} times {change}" if more >= 1.5 else f"{100 * (more - 1):.0f} % {change}"


@dataclass(frozen=True)
class Wish:
    """What a visitor asks for."""

    prompt: str
    method: str
    seed: int
    temperature: float
    guidance_scale: float
    top_k: int
    tokens: int  # draft tokens per round, at most; 0 leaves that to the method
    slow: bool  # every round is shown for a while, both methods at the same number of passes

    @property
    def link(self) -> str:
        """The query of an address that opens the page with this wish."""
        values = {name: int(v) if isinstance(v, bool) else v for name, v in asdict(self).items()}
        return urlencode(values)


def race(
    streams: Sequence[Iterator[StreamStep]], spent: Callable[[StreamStep], float]
) -> Iterator[tuple[int, StreamStep]]:
    """Yield the rounds of several streams with the stream's number.

    The stream that has spent least goes next, so after each round all have spent about as much:
    what is drawn so far shows who is ahead, though no two rounds run at the same time.
    """
    so_far = dict.fromkeys(range(len(streams)), 0.0)
    while so_far:
        number = min(so_far, key=so_far.__getitem__)
        if (step := next(streams[number], None)) is None:
            del so_far[number]
        else:
            so_far[number] = spent(step)
            yield number, step


def stages(pipe: Pipeline, wish: Wish, pause: float = SLOW) -> Iterator[Value]:
    """Draw what a visitor asks for; yields the stage until both images are finished.

    pause: seconds after every round of a wish to see them.
    """
    names = ("seed", "temperature", "guidance_scale", "top_k")
    options = {name: getattr(wish, name) for name in names}
    plain = Pipeline.from_pipe(pipe, method="ar").stream(wish.prompt, **options)
    grid, own = pipe.weights.target.grid, _fast(pipe, wish)
    panels = [Panel(name, grid.columns, grid.first, not wish.slow) for name in ("ar", wish.method)]
    fast = own.stream(wish.prompt, **options)
    latest, began = 0.0, time.process_time()  # when a round was shown; CPU seconds
    # Slowly shown, both are at the same number of passes: what a GPU's weights cost.
    spent = attrgetter("forwards" if wish.slow else "seconds")
    for number, step in race([plain, fast], spent):
        panels[number].take(step)
        if wish.slow:
            time.sleep(pause)
        now = time.perf_counter()
        if wish.slow or step.finished or now - latest >= INTERVAL:
            latest = now
            value = {
                "state": "drawing",
                "rows": grid.rows,
                "columns": grid.columns,
                "panels": [panel.value() for panel in panels],
                "prompt": wish.prompt,
                "link": wish.link,
            }
            yield value
    # slowly shown rounds pause in between, so times say nothing of the methods
    equal = own.settings.method.same_tokens(wish.temperature)
    ours, theirs = (panel.step for panel in panels)
    assert ours is not None and theirs is not None, "both images are finished"
    share = (time.process_time() - began) / (ours.seconds + theirs.seconds)
    busy = pipe.device.type == "cpu" and share < BUSY
    doubt = f"Other programs had the processor; these images had it for {share:.0%} of the time."
    ended = verdict(ours, theirs, equal, not wish.slow, doubt if busy else None)
    yield value | {"state": "done", "verdict": ended}


def _fast(pipe: Pipeline, wish: Wish) -> Pipeline:
    settings: dict[str, Any] = {"method": wish.method}
    if wish.tokens:
        limits = [n for n in ("nodes", "window") if n in METHODS[wish.method].defaults]
        if not limits:
            name = words(wish.method).lower()
            raise SettingsError(f"A {name} cannot have another size. Set draft tokens to 0.")
        settings[limits[0]] = wish.tokens
    return Pipeline.from_pipe(pipe, **settings)
