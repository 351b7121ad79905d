"""What the page's stage shows: two images so far, their drafts and figures, and the verdict."""

import base64
import io
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


def stage_value(state: str, grid: tuple[int, int], panels: list[Panel]) -> Value:
    """Return the stage's value.

    state: idle, waiting, preparing, drawing, done, stopped or
    refused.
    """
    values = [panel.value() for panel in panels]
    return {"state": state, "rows": grid[0], "columns": grid[1], "panels": values}


def verdict(plain: StreamStep, fast: StreamStep, method: str, equal: bool) -> Value:
    """Compare two finished images by their tokens; returns whether they are the same, in words.

    equal: whether the method's tokens have to be those of plain decoding.
    """
    differ = (plain.tokens != fast.tokens).nonzero().flatten().tolist()
    ratio = plain.seconds / fast.seconds
    speed = (
        f"{method} took {fast.forwards} forward passes instead of {plain.forwards} and was "
        f"{ratio:.2f} times as fast."
        if ratio >= 1
        else f"{method} took {fast.forwards} forward passes instead of {plain.forwards}, but was "
        f"{1 / ratio:.2f} times slower: its passes cost more here than they save."
    )
    if not differ:
        return {"same": True, "text": f"All {plain.total} tokens are equal. {speed}"}
    reason = (
        "Rounding decided between two nearly equal candidates there."
        if equal
        else "Its acceptance rule does not keep the tokens of plain decoding."
    )
    why = f"{len(differ)} of {plain.total} tokens differ, the first is number {differ[0]}. {reason}"
    return {"same": False, "text": f"{why} {speed}"}
