"""Loaded weights that pipelines share, and the lock that lets one of them compute at a time."""

import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NoReturn

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from configs.model import EngineSettings
from decoding.device import current
from decoding.engine import StepStats, Watcher
from decoding.images import Job
from models.base import ImageGrid
from models.target import TargetModel
from runs.drawing import Drawn, draw
from runs.session import Session, open_session
from support.devices import pick_device

_UNDECIDED = 128  # grey
_FORKED = (
    "a Pipeline cannot be used in a process that was forked after one was opened; start processes "
    "with spawn (of gunicorn: without --preload), and open one in each with "
    "Pipeline.from_pretrained"
)
_opened: set[int] = set()  # processes that opened weights; a forked one knows its parent's


class Weights:
    """A target and its drafter, used from any thread.

    Every image has an engine of its own, so what threads share is read only; the lock is held for a
    round at a time, so that rounds of two threads neither slow each other down nor need memory at
    the same time.
    """

    def __init__(self, settings: EngineSettings):
        """Load what the settings ask for; a SettingsError names what cannot be used."""
        if _opened and os.getpid() not in _opened and torch.get_num_threads() > 1:
            raise RuntimeError(_FORKED)
        self._process, self._lock = os.getpid(), threading.Lock()
        _opened.add(self._process)
        with current(pick_device(settings.device)):
            self._session = open_session(settings)

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied, alone or in a pipeline: gigabytes that can be shared."""
        raise TypeError(
            "a Pipeline cannot be pickled or copied; open one in each process with "
            "Pipeline.from_pretrained, or share its weights with Pipeline.from_pipe(pipe)"
        )

    @property
    def lock(self) -> threading.Lock:
        """Held while these weights compute; a RuntimeError in another process than theirs."""
        # The threads of torch, and those of a GPU's driver, are not copied: it would wait for ever.
        if os.getpid() != self._process:
            raise RuntimeError(_FORKED)
        return self._lock

    @property
    def target(self) -> TargetModel:
        return self._session.target

    def session(self, settings: EngineSettings) -> Session:
        """Return a session of other settings; its drafter is loaded once. Call it with the lock."""
        with current(self.target.device):
            session = self._session.with_settings(settings)
        self._session = replace(self._session, drafter=session.drafter)
        return session

    def draw(
        self,
        settings: EngineSettings,
        jobs: Sequence[Job],
        watcher: Watcher | None = None,
        joining: Iterable[Job | None] = (),
    ) -> Iterator[StepStats[Drawn]]:
        """Generate images; errors come at once, rounds when the iterator is asked for them.

        joining: jobs that come later, as of `Engine.generate`.
        """
        with self.lock:
            steps = draw(self.session(settings), jobs, watcher, joining)
        return self._in_turn(steps)

    def _in_turn(self, steps: Iterator[StepStats[Drawn]]) -> Iterator[StepStats[Drawn]]:
        while True:
            with self.lock:
                step = next(steps, None)
            if step is None:
                return
            # Without the lock: the caller may take its time before it asks for the next round.
            yield step

    def paint(self, codes: Tensor) -> Image.Image:
        """Return the image of its first codes (decided,): grey where none is decided."""
        grid = self.target.grid
        with self.lock, current(self.target.device):
            pixels = self.target.to_image(completed(codes, grid)[None])[0]  # (height, width, 3)
            decided = torch.arange(grid.first, grid.tokens) < len(codes)
            decided = decided.view(grid.rows, grid.columns)
            for axis, size in enumerate(pixels.shape[:2]):
                decided = decided.repeat_interleave(size // decided.shape[axis], axis)
            shown = torch.where(decided[..., None], pixels, torch.full_like(pixels, _UNDECIDED))
        return Image.fromarray(shown.numpy())


def completed(codes: Tensor, grid: ImageGrid) -> Tensor:
    """Return a whole image's codes (tokens,) from its first ones (decided,).

    Its whole rows come over and over: decoders normalise over the whole image, so colours at the
    top would change with each row if the rest were blank.
    """
    small, image = codes[: grid.first], codes[grid.first :]
    if not len(image):  # only tokens of the small grid
        return F.pad(small, (0, grid.tokens - len(small)))
    where, rows = torch.arange(grid.tokens - grid.first), len(image) // grid.columns
    again = where % (rows * grid.columns) if rows else len(image) - 1
    return torch.cat([small, image[torch.where(where < len(image), where, again)]])
