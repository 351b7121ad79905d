"""`generate_images --learn`: the drafter is trained between rounds, while that pays.

<output_dir>/learned/drafter/    the head, as --drafter_path reads it; of process n drafter.n
<output_dir>/learned/log.jsonl   a line per 32 images: tau, updates, seconds; of process n log.n
"""

import sys
import time
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from configs.learning import NEW
from configs.methods import MethodSettings
from configs.schema import RunSettings
from drafters.calibrations import FILE, UNCALIBRATED, Calibrations
from drafters.learn import (
    LearningDrafter,
    Notes,
    OnlineLessons,
    average_heads,
    pass_on,
    precision_on,
    publish,
)
from drafters.training.heads import embedding_scale, export, head_config, open_head
from models.base import TargetModel
from models.files.folders import checkpoint_folder
from runs.beside import updates_on
from runs.fusing import kernels_for
from runs.lessons import IMAGES, lesson_settings
from runs.session import Session
from runs.spans import Span, pays, saved
from support.durable import append_lines, encode_json, replace_file

if TYPE_CHECKING:
    from runs.drawing import DrawnStep

WINDOW = 32  # images between two lines of the log, and before the first update
_FIRST_PASSES, _LATER_PASSES = 4, 1  # over an image, at most, of a new and of a trained head


class Learner:
    """Trains the head of a session's drafter, for a share of the time.

    On a CPU updates are made between rounds. On a GPU they run beside them, and the drafter takes
    over what is learned after a round that finds it finished.
    """

    def __init__(self, settings: RunSettings, target: TargetModel, images: int, rank: int = 0):
        """Begin with the folder's head, --drafter_path's, or random weights.

        images: to draw. rank: this process's number.
        """
        self.settings, self.target, self.rank, self.left = settings, target, rank, images
        self.folder = Path(settings.output_dir) / "learned"
        start = self._start()
        self.training = lesson_settings(settings, start, precision_on(target.device))
        self.config = head_config(self.training)
        self.scale = embedding_scale(self.training, target)
        target.transformer.requires_grad_(False)
        self.notes = Notes(target.grid, target.vocab.first_id)
        head = open_head(self.training, target).float()
        self.passes = _FIRST_PASSES if start is None else _LATER_PASSES
        if start is None:
            pass_on(head)
        self.lessons = OnlineLessons(self.training, target, head, self.notes)
        self.updates = updates_on(target.device)
        self.published = 0  # the update whose weights draft
        self.beside = False  # whether an update ran beside the rounds since `mark`
        self.network = deepcopy(head).requires_grad_(False).to(target.dtype)
        self.network.embedding = nn.Embedding.from_pretrained(target.embedding())
        publish(self.lessons, self.network, self.scale)
        self.calibrations = UNCALIBRATED if start is None else Calibrations.read(start)
        self.spans: list[Span] = []
        self.now = Span()
        self.going, self.mark = True, time.perf_counter()
        self.began, self.merged = time.time(), {}

    def _start(self) -> Path | None:
        """Return the folder of the head to begin with; None for random weights."""
        own = [self._drafter(self.rank), self._drafter(0)]
        if not self.settings.overwrite:
            for folder in own:
                if (folder / "config.json").is_file():
                    return folder
        if self.settings.drafter_path == NEW:
            return None
        return checkpoint_folder(self.settings.drafter_path, "--drafter_path")

    def _drafter(self, rank: int) -> Path:
        return self.folder / ("drafter" if rank == 0 else f"drafter.{rank}")

    @property
    def drafter(self) -> LearningDrafter:
        """The drafter for engines, whose weights change between rounds."""
        return LearningDrafter(self.network, self.calibrations, notes=self.notes)

    def after(self, step: "DrawnStep") -> None:
        """Count a round, and learn for as long as the share of the time allows."""
        passed = time.perf_counter() - self.mark
        tokens = sum(stats.accepted + 1 for stats in step.rounds)
        learning = passed if self.beside else 0.0
        span = Span(len(step.finished), tokens, len(step.rounds), passed, learning)
        self.now, self.left = self.now + span, self.left - span.images
        self._learn()
        if self.now.images >= WINDOW:
            self._close()
        self.beside, self.mark = self.updates.busy, time.perf_counter()

    def _learn(self) -> None:
        """Make or begin updates, and let the drafter go on with those that are finished."""
        if not self.updates.busy:
            self._renew()
        while not self.updates.busy and self._may_learn():
            self._timed(self._update)
        if not self.updates.busy:
            self._renew()

    def _renew(self) -> None:
        if self.lessons.step > self.published:
            self._timed(self._publish)
            self.published = self.lessons.step

    def _may_learn(self) -> bool:
        """Return whether another update may begin: of images not yet used up, in its share."""
        share, now = self.settings.learn_share, self.now
        fresh = (self.lessons.step + 1) * IMAGES <= self.passes * self.notes.finished
        # the time of drawing holds that of updates beside it, but not that of updates between
        most = share if self.updates.overlaps else share / (1 - share)
        return self.going and bool(self.spans) and fresh and now.learning < most * now.drawing

    def _timed(self, part: Callable[[], None]) -> None:
        """Do a part of learning, and count its time."""
        started = time.perf_counter()
        part()
        self.now += Span(learning=time.perf_counter() - started)

    def _update(self) -> None:
        self.lessons.images = list(range(len(self.notes)))
        with self.updates.run(list(self.notes.rows)):
            self.lessons.update()

    def _publish(self) -> None:
        """Let the drafter go on with what was learned."""
        publish(self.lessons, self.network, self.scale)

    def _close(self) -> None:
        """End a span: log it, keep the head, take over others' heads, and judge whether it pays."""
        self.spans.append(self.now)
        self.now = Span()
        last = self.spans[-1]
        self.save()
        line = {"images": last.images, "tau": last.tau, "updates": self.lessons.step,
                "drawing": last.drawing, "learning": last.learning,
                "saved": saved(self.spans[0], last)}  # fmt: skip
        name = "log.jsonl" if self.rank == 0 else f"log.{self.rank}.jsonl"
        append_lines(self.folder / name, [line])
        if self.going and self.left and not pays(self.spans, self.left):
            self.going = False
            print(f"note: --learn stops, since more would take longer than it saves: {self.said()}",
                  file=sys.stderr)  # fmt: skip

    def end(self) -> None:
        """Keep the head, and say on stderr what it came to."""
        self.save()
        print(f"learned: {self.said()}; kept in {self._drafter(self.rank)}", file=sys.stderr)

    def save(self) -> None:
        """Keep the head in the run folder, after others' heads were taken over."""
        self.updates.wait()
        folder = self._drafter(self.rank)
        self.folder.mkdir(parents=True, exist_ok=True)
        if self.going:
            self._merge()
        with self.lessons.averaged() as head:
            export(head, self.config, folder, self.target, self.scale)
        if self.calibrations.factors:
            replace_file(folder / FILE, encode_json(self.calibrations.factors))

    def _merge(self) -> None:
        """Average the head with those that other processes have written since the last time."""
        heads = []
        for folder in self.folder.glob("drafter*"):
            file = folder / "model.safetensors"
            if folder == self._drafter(self.rank) or not (folder / "config.json").is_file():
                continue
            written = file.stat().st_mtime
            if written > max(self.began, self.merged.get(folder, 0.0)):
                self.merged[folder] = written
                heads.append(open_head(replace(self.training, start_from=str(folder)), self.target))
        if heads:
            average_heads(self.lessons, heads)
            self._publish()

    def said(self) -> str:
        """Return what learning took and saved, in words."""
        if len(self.spans) < 2:
            return f"{self.lessons.step} updates"
        first, last = self.spans[0], self.spans[-1]
        gained = sum(saved(first, span) for span in self.spans[1:])
        spent = sum(span.learning for span in self.spans) + self.now.learning
        taus = f"tau {first.tau:.2f} -> {last.tau:.2f}"
        return f"{taus}, {spent:.0f} s of learning, {gained:.0f} s saved"


def open_learner(
    settings: RunSettings, images: int, rank: int, open_session: Callable[[RunSettings], Session]
) -> tuple[Session, Learner]:
    """Return a session whose drafter learns, and who teaches it.

    images: to draw. rank: this process's number. open_session: loads the target.

    Raises:
        ValueError: a checkpoint is missing, damaged or does not fit.
    """
    plain = MethodSettings(method="ar")
    undrafted = replace(settings, method=plain, drafter_path=None, learn=None, learn_share=None)
    session = open_session(undrafted)
    learner = Learner(settings, session.target, images, rank)
    kernels_for(settings)(learner.network)
    return replace(session, settings=settings, drafter=learner.drafter), learner
