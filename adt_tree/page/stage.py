"""What the page's stage shows: two images so far, their drafts and figures, and the verdict."""

import base64
import io
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any

from PIL import Image

from adt_tree.output import StreamStep

Value = dict[str, Any]


class Panel:
    """One image of the stage, while it is drawn."""

    def __init__(self, method: str, total: int, columns: int):
        """method: its name; total: tokens of the image; columns: tokens per row."""
        self.method, self.total, self.columns = method, total, columns
        self.step: StreamStep | None = None
        self.heat: list[int] = []  # by position: accepted length of the round that decided it
        self._image, self._painted = "", 0

    def take(self, step: StreamStep) -> bool:
        """Take over a round; returns whether it finished a row of the image."""
        before = 0 if self.step is None else self.step.decided
        self.heat += [step.accepted] * (step.decided - before)
        self.step = step
        return step.decided // self.columns > before // self.columns

    def value(self) -> Value:
        """Return what the page draws, as JSON takes it."""
        step = self.step
        if step is None:
            return {"method": self.method, "decided": 0}
        if step.decided // self.columns > self._painted // self.columns:
            self._image, self._painted = data_uri(step.image, step.finished), step.decided
        return {
            "method": self.method,
            "decided": step.decided,
            "painted": self._painted,
            "image": self._image,
            "done": step.finished,
            "rounds": step.round + 1,
            "forwards": step.forwards,
            "seconds": step.seconds,
            "rate": step.decided / step.seconds,
            "length": step.accepted_length,
            "heat": self.heat,
            "draft": None
            if step.finished
            else {
                "root": step.draft.root,
                "parents": step.draft.parents,
                "depths": step.draft.depths,
                "accepted": step.draft.accepted,
            },
        }


def data_uri(image: Image.Image, last: bool) -> str:
    """Return an image as a data URI: without loss at the end, small before."""
    buffer = io.BytesIO()
    kind = "PNG" if last else "JPEG"
    image.save(buffer, kind, **({} if last else {"quality": 85}))
    return f"data:image/{kind.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"


def stage_html() -> str:
    """Return the page's stage before anything is drawn."""
    here = Path(__file__).parent
    panel = Template((here / "panel.html").read_text("utf-8"))
    plain = panel.substitute(
        kind="plain",
        title="Plain decoding",
        remark="one token per forward pass",
        label="Image by plain decoding",
    )
    fast = panel.substitute(
        kind="fast",
        title="Fast method",
        remark="drafts several, verifies them in one forward pass",
        label="Image by the fast method",
    )
    return Template((here / "stage.html").read_text("utf-8")).substitute(plain=plain, fast=fast)


def stage_value(state: str, grid: tuple[int, int], panels: list[Panel]) -> Value:
    """Return the stage's value.

    state: idle, waiting, drawing, done, stopped or refused.
    """
    values = [panel.value() for panel in panels]
    return {"state": state, "rows": grid[0], "columns": grid[1], "panels": values}


@dataclass(frozen=True)
class Finish:
    """Two finished images, by plain decoding and by a method, and what their comparison may say.

    equal: whether the method's tokens have to be those of plain decoding. timed: whether the
    seconds are a fair comparison; with pauses between rounds they are not.
    """

    plain: StreamStep
    fast: StreamStep
    method: str
    equal: bool
    timed: bool


def verdict(found: Finish) -> Value:
    """Compare the images by their tokens; returns whether they are the same, and words."""
    plain, fast = found.plain, found.fast
    differ = (plain.tokens != fast.tokens).nonzero().flatten().tolist()
    if not differ:
        return {"same": True, "text": f"All {plain.total} tokens are equal. {_speed(found)}"}
    reason = (
        "Two candidates were nearly equal there, and rounding decided."
        if found.equal
        else "Its acceptance rule may accept other tokens than plain decoding."
    )
    why = f"{len(differ)} of {plain.total} tokens differ, the first is number {differ[0]}. {reason}"
    return {"same": False, "text": f"{why} {_speed(found)}"}


def _speed(found: Finish) -> str:
    """Say what the method saved."""
    plain, fast = found.plain, found.fast
    passes = f"{found.method} took {fast.forwards} forward passes instead of {plain.forwards}"
    ratio = plain.seconds / fast.seconds
    if not found.timed:
        return f"{passes}."
    if ratio >= 1:
        return f"{passes} and was {ratio:.2f} times faster."
    return (
        f"{passes}, but was {1 / ratio:.2f} times slower: here each pass costs more than it saves."
    )
