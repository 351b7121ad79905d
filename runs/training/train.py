"""`train_drafter`: an EAGLE drafter for any target, from the tokens of extract_tokens.

<output_dir>/log.jsonl         a line per --log_every steps, and one per evaluation
<output_dir>/curves.png, .pdf  its curves
<output_dir>/checkpoint/       what the same command continues from, with the same losses
<output_dir>/drafter/          the drafter in the public layout, as
                               --drafter_path reads it
<output_dir>/evaluation.json   its figures
<output_dir>/best/             the best drafter so far, and its figures
"""

import hashlib
import os
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean
from threading import Event
from typing import Any

import torch
from torch import Tensor

from configs.fields import Flag, mismatch, refuse, refusing, settings_dict
from configs.training import FREE_FLAGS, TrainSettings
from drafters.block import BlockHead
from drafters.training.features import CAPTION_FLAGS, Computed, Rower, cached, fingerprint
from drafters.training.heads import embedding_scale, export, head_config, open_head
from drafters.training.losses import PARTS
from drafters.training.rounds import RecordedRounds
from drafters.training.shards import Tokens, read_about
from drafters.training.trainer import Lessons, RoundLessons, RowLessons, Trainer, loss_of
from drafters.training.windows import BlockLoss
from models.files.folders import checkpoint_folder
from models.files.identity import checkpoint_id
from models.target import TargetModel
from runs.made_of import codec_of, files_now, made_of, refuse_changed
from runs.methods import sampling_distribution
from runs.plan import Plan
from runs.session import open_target
from runs.training import curves
from runs.training.evaluation import Evaluation, in_words, trained_settings
from support.border import Failure
from support.devices import pick_device
from support.durable import make_writable
from support.extras import install
from support.locks import lock
from support.output import printed_unless_saved
from support.processes import Processes, launched
from support.progress import Progress, plural
from support.training_state import JsonLog, damaged_state, load_state, save_state
from support.wording import differences, first_of

CHECKPOINT, _LOCK = "checkpoint/state.pt", ".lock"  # in the folder of a training
_ENDING = (
    b"\nending after this step or evaluation, with a checkpoint; "
    b"Ctrl-C again ends at once, without one\n"
)


@refusing()
def train(settings: TrainSettings) -> None:
    """Train a drafter, evaluate and export it; the same command continues."""
    device = pick_device(settings.engine.device)
    _refuse_foreign(settings)
    before = files_now(identity(settings))
    tokens = read_tokens(settings)
    _read_checkpoint(settings)  # before the target is loaded
    processes = launched(device)
    if settings.batch_size % (settings.accumulate * processes.count):
        allowed = f"a multiple of --accumulate {settings.accumulate} x {processes.count} processes"
        advice = "A training may go on with another --accumulate."
        refuse("batch_size", settings.batch_size, allowed, advice)
    try:
        with ExitStack() as stack:
            if processes.rank == 0:
                make_writable("output_dir", settings.folder)
                for name in ("cache_features", "tensorboard"):
                    if (place := getattr(settings, name)) is not None:
                        make_writable(name, Path(place))
                stack.enter_context(lock(settings.folder / _LOCK))
            what = f"{_what(settings, tokens)}; its log is there"
            with Progress(what, settings.steps, shown=processes.rank == 0, unit="step") as progress:
                for note in _notes(settings, tokens):
                    progress.note(note)
                target = open_target(settings.engine)
                refuse_changed(identity(settings), before)  # before its features are kept
                training = Training(settings, target, tokens, processes, progress)
                refuse_changed(identity(settings), before)  # --start_from is read now
                training.run()
    except BlockingIOError:
        refuse("output_dir", settings.output_dir, "a folder that no other process is working in")


def _refuse_foreign(settings: TrainSettings) -> None:
    """Refuse a folder with a drafter of its own, which the first evaluation would replace."""
    begun = any((settings.folder / name).exists() for name in (_LOCK, "log.jsonl", CHECKPOINT))
    if (settings.folder / "drafter").exists() and not begun:
        expected = "a folder without another drafter; give yours to --start_from"
        refuse("output_dir", settings.output_dir, expected)


def _split(settings: TrainSettings, tokens: Tokens) -> tuple[list[int], list[int]]:
    """Return the images to train on, and those held out."""
    with refusing(Flag("train_images" if settings.train_images else "holdout")):
        return tokens.split(settings.holdout, settings.train_images)


def _what(settings: TrainSettings, tokens: Tokens) -> str:
    """Say what is done, from what, and where to."""
    images = plural(len(_split(settings, tokens)[0]), "image")
    return f"training a drafter on {images} of {settings.tokens} into {settings.folder}"


def _notes(settings: TrainSettings, tokens: Tokens) -> Iterator[str]:
    """Yield what may make figures other than expected, or is left out."""
    yield from _sampled_otherwise(settings)
    images, held = _split(settings, tokens)
    if count := tokens.shared(held, images):
        also = f"{plural(count, 'held-out caption')} also trained on in another spelling"
        yield f"note: {also}: held-out figures look better than they are"
    if find_spec("matplotlib") is None:
        yield f"note: no picture of the curves without matplotlib: {install('eval')}"


def _sampled_otherwise(settings: TrainSettings) -> Iterator[str]:
    """Yield a note per folder whose samples were drawn by other settings than it trains for."""
    here = settings_dict(settings.engine.sampling)
    for folder in settings.token_folders:
        law = read_about(Path(folder)).get("law") or {}
        other = [
            f"--{name} {law[name]}, not {value}"
            for name, value in here.items()
            if law.get(name, value) != value
        ]
        if other:
            yield f"note: {folder} was sampled with {', '.join(other)}"


def read_tokens(settings: TrainSettings) -> Tokens:
    """Return the tokens of --tokens; a SettingsError if model, checkpoint or codec are others."""
    with refusing(Flag("tokens")):
        tokens = Tokens.joined(settings.token_folders)
        folder = checkpoint_folder(settings.engine.model_path, "--model_path")
    model = {"model": settings.engine.model, "checkpoint": checkpoint_id(folder)}
    _check_tokens(settings, tokens, model)
    codec = codec_of(made_of(identity(settings)).files)
    for place in settings.token_folders:
        about = read_about(Path(place))
        there = codec_of(about.get("settings", {}))
        if about.get("origin") == "images" and {*there.values()} != {*codec.values()}:
            other = first_of(differences(there, codec))
            refuse("tokens", place, f"codes of the model's own image codec ({other})")
    return tokens


def _check_tokens(settings: TrainSettings, tokens: Tokens, target: dict[str, Any]) -> None:
    """Raise a SettingsError unless about.json has these entries."""
    for name, value in target.items():
        if (got := tokens.about.get(name)) != value:
            allowed = f"tokens with the {name} {value!r}; these have {got!r}"
            refuse("tokens", settings.tokens, allowed)


@contextmanager
def terminated() -> Iterator[Event]:
    """Let SIGTERM, as schedulers send it, and Ctrl-C set an event instead of ending the process.

    A second Ctrl-C ends it; within a second it is the same key, or what a launcher passes on.
    """
    event, first = Event(), 0.0

    def end(number: int, _frame: object) -> None:
        nonlocal first
        if event.is_set():
            if number == signal.SIGINT and time.monotonic() - first > 1:
                raise KeyboardInterrupt
            return
        event.set()
        first = time.monotonic()
        if number == signal.SIGINT:
            os.write(2, _ENDING)  # print may be at work where the signal comes

    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    before = {number: handler for number, handler in before.items() if handler != signal.SIG_IGN}
    for number in before:
        signal.signal(number, end)
    try:
        yield event
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Training:
    """One training, from its checkpoint to its last step."""

    def __init__(
        self,
        settings: TrainSettings,
        target: TargetModel,
        tokens: Tokens,
        processes: Processes,
        progress: Progress,
    ):
        small = target.grid.preview
        grid: dict[str, object] = {"rows": target.grid.rows, "columns": target.grid.columns}
        grid["preview"] = None if small is None else list(small)
        _check_tokens(settings, tokens, grid | {"vocab": target.vocab.size})
        target.transformer.requires_grad_(False)  # or autograd would keep the target's activations
        images, held = _split(settings, tokens)
        self.settings, self.processes, self.target = settings, processes, target
        self.progress = progress
        self.config = head_config(settings)  # --start_from may change after the start
        head, self.embedding = open_head(settings, target)
        layers = head.spec.target_layers
        self.fingerprint = fingerprint(tokens)
        # before the first process fills the cache that all read
        processes.agree(
            "tokens", settings.tokens, self.fingerprint, "the same tokens in all processes"
        )
        self.files = made_of(identity(settings)).files | {"tokens": self.fingerprint}
        if self.embedding is not target.embedding():
            table = self.embedding.cpu().numpy()
            self.files["embedding"] = hashlib.sha256(table.tobytes()).hexdigest()[:16]
        flags = {n: v for n, v in identity(settings).items() if n not in self.files}
        steps = settings.eval_every, settings.save_every, settings.log_every
        same = {"flags": flags, "files": self.files, "steps": steps}
        processes.agree("output_dir", settings.output_dir, same, "the same flags in all processes")
        guidance = settings.engine.sampling.guidance
        computed = Computed(target, tokens, guidance, settings.precision, layers)
        rows: Rower = computed
        if settings.cache_features is not None:
            named = {name: getattr(settings.engine, name) for name in CAPTION_FLAGS}
            of_head = "start_from", "embedding"
            source = named | {n: file for n, file in self.files.items() if n not in of_head}
            folder, used = Path(settings.cache_features), sorted(images + held)
            rows = cached(computed, used, folder, source, processes, progress)
        self.checkpoint = settings.folder / CHECKPOINT
        distribution = sampling_distribution(settings.engine.sampling)
        loss = loss_of(settings, target)
        lessons: Lessons = RowLessons(settings, head, rows, loss)
        if isinstance(head, BlockHead):
            rounds = RecordedRounds(target, head, tokens, distribution)
            lessons = RoundLessons(settings, rounds, BlockLoss(target, loss, distribution.greedy))
        self.trainer = Trainer(settings, head, lessons, images, processes)
        self.evaluation = Evaluation(settings, target, tokens, rows, held)
        self.log = JsonLog(settings.folder / "log.jsonl")
        self.board: curves.Board | None = None
        # since the last line of the log: parts of the losses; seconds of this command's updates
        self.recent: list[Tensor] = []
        self.seconds: list[float] = []
        self.saved = 0  # step of the checkpoint; 0: there is none

    def run(self) -> None:
        """Do the missing steps and evaluations."""
        settings, trainer = self.settings, self.trainer
        missing = self._resume()
        if settings.tensorboard is not None and self.processes.rank == 0:
            self.board = curves.Board(Path(settings.tensorboard), self.log.lines)
        self.progress.done = trainer.step
        self.progress.begin()
        if trainer.step:
            self.progress.note(f"continuing at step {trainer.step} of {settings.steps}")
        if missing:
            self._evaluate()
        with terminated() as ended:
            self._update(ended)
        if self.processes.rank == 0:
            print(self.evaluation.verdict())

    def _update(self, ended: Event) -> None:
        """Do the missing steps; ended: by a signal, after which the checkpoint is written first."""
        settings, trainer = self.settings, self.trainer
        while trainer.step < settings.steps:
            rate, started = trainer.rate, time.perf_counter()
            self.recent.append(trainer.update().cpu())
            self.seconds.append(time.perf_counter() - started)
            loss = trainer.lessons.loss.total(self.recent[-1])
            self._refuse_nan("the loss is", loss)
            self.progress.update()
            last = trainer.step == settings.steps
            if trainer.step % settings.log_every == 0 or last:
                self._log(rate)
            stops = any(self.processes.gather(ended.is_set()))
            if trainer.step % settings.save_every == 0 or last or stops:
                self._save()
            if stops:
                raise KeyboardInterrupt
            if self._due():
                self._evaluate()

    def _due(self) -> bool:
        """Return whether an evaluation belongs after the last step made."""
        step = self.trainer.step
        return step == self.settings.steps or (step > 0 and step % self.settings.eval_every == 0)

    def _log(self, rate: float) -> None:
        """Write a line of the log."""
        trainer, parts = self.trainer, torch.stack(self.recent).mean(0)
        seconds = fmean(self.seconds)
        self.recent, self.seconds = [], []
        if self.processes.rank == 0:
            weighed = zip(PARTS, trainer.lessons.loss.weights, parts.T.tolist(), strict=True)
            self._write(
                step=trainer.step,
                loss=trainer.lessons.loss.total(parts).item(),
                **{name: [round(x, 6) for x in values] for name, w, values in weighed if w},
                lr=rate,
                images_per_second=round(self.settings.batch_size / seconds, 3),
                seconds_left=round(seconds * (self.settings.steps - trainer.step)),
            )

    def _write(self, *words: str, **values: Any) -> None:
        line = self.log.write(*words, **values)
        if self.board is not None:
            self.board.add(line)

    def _save(self) -> None:
        self._refuse_nan("the drafter's weights are", *self.trainer.trained.values())
        self.saved = self.trainer.step
        if self.processes.rank == 0:
            # With `recent`, the first line of the log after a resume is a mean over all its steps.
            made = {"settings": identity(self.settings), "files": self.files}
            save_state(self.checkpoint, self.trainer.state() | made | {"recent": self.recent})
        self.processes.wait()

    def _refuse_nan(self, what: str, *values: Tensor) -> None:
        """Raise a Failure for NaN and infinities, which no later step and no file recovers from."""
        if all(bool(value.isfinite().all()) for value in values):
            return
        last, best = "no checkpoint was written before", self.evaluation.best
        if self.saved:
            last = f"the last good checkpoint, {self.checkpoint}, is of step {self.saved}"
        advice = "a smaller --lr or --clip, or --precision fp32, in another --output_dir"
        if (best / "evaluation.json").exists():
            advice += f" with --start_from {shlex.quote(str(best / 'drafter'))}"
        raise Failure(f"{what} NaN or infinite at step {self.trainer.step}; {last}. Try {advice}")

    def _resume(self) -> bool:
        """Continue from the checkpoint; returns whether its step is still to be evaluated."""
        state = load_state(self.checkpoint)
        if state is not None:
            self._check_flags(state)
            try:
                self.trainer.load(state)
                self.saved = self.trainer.step
                self.recent = list(state["recent"])
            except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
                raise damaged_state(self.checkpoint, f"{type(error).__name__}: {error}") from error
        evaluated = self.evaluation.done(self.trainer.step)  # a foreign file ends it here
        missing = self._due() and not evaluated  # by a command that ended before it was
        # all must have looked before the first process writes the file
        seen = self.trainer.step, evaluated
        self.processes.agree("output_dir", self.settings.output_dir, seen)
        if self.processes.rank == 0:
            if state is None:  # the figures are of a training whose checkpoint was deleted
                self.evaluation.forget()
            # each step once: later ones, and an evaluation by other flags, are made again
            step = self.trainer.step
            self.log.keep(
                lambda line: (
                    line["step"] < step
                    or (line["step"] == step and not (missing and "levels" in line))
                )
            )
        return missing

    def _check_flags(self, state: dict[str, Any]) -> None:
        """Raise a SettingsError unless the checkpoint was made with these flags."""
        made, files = state.get("settings"), state.get("files")
        if not (isinstance(made, dict) and isinstance(files, dict)):
            raise damaged_state(self.checkpoint, "no settings in it")
        if made.get("start_from") == self.settings.start_from:  # its files may have changed since
            files = files | {"start_from": self.files.get("start_from")}
        there, now = f"the checkpoint in {self.settings.output_dir}", identity(self.settings)
        for name in {**now, **files, **self.files}:
            if name in (files.keys() | self.files.keys()):
                what = "images" if name == "tokens" else "files"
                allowed = f"the {what} that {there} was made with; these are others"
                same = files.get(name) == self.files.get(name)
            else:
                allowed = f"{made.get(name)!r}, as {there} has"
                same = made.get(name) == now[name]
            if name == "embedding":
                allowed = f"a drafter with the embedding that {there} was trained with"
                name = "start_from"
            if not same and name in now:
                refuse(name, now[name], allowed, _advice(self.settings, name))
            if not same:
                raise mismatch(name, "others", allowed, _advice(self.settings, name))

    def _evaluate(self) -> None:
        self.progress.say("evaluating the drafter")
        if self.processes.rank == 0:
            folder = self.settings.folder / "drafter"
            scale = embedding_scale(self.settings, self.target, self.embedding)
            with self.trainer.average.applied():
                export(self.trainer.head, self.config, folder, self.embedding, scale)
                loss = self.trainer.held_out(self.evaluation.held)
            self._refuse_nan("the held-out loss is", torch.tensor(loss))
            figures = self.evaluation(folder, self.trainer.step, loss)
            shown = {name: figures[name] for name in ("held_out_loss", "levels", "decoding")}
            with printed_unless_saved(figures):
                self._write(in_words(figures), step=self.trainer.step, **shown)
                if find_spec("matplotlib") is not None:
                    curves.draw_curves(self.log.lines, self.settings.folder / "curves")
                self.evaluation.keep(folder, figures)
        self.processes.wait()
        self.progress.say("")


def _read_checkpoint(settings: TrainSettings) -> dict[str, Any]:
    """Return what is in the checkpoint; a SettingsError if flags but those of files are others."""
    state = load_state(settings.folder / CHECKPOINT) or {"step": 0}
    made, files = state.get("settings"), state.get("files")
    if isinstance(made, dict) and isinstance(files, dict):  # or else it is said to be damaged
        for name, value in identity(settings).items():
            if name in made and made[name] != value and name not in files:  # moved ones go on
                allowed = f"{made[name]!r}, as the checkpoint in {settings.output_dir} has"
                refuse(name, value, allowed, _advice(settings, name))
    return state


def _advice(settings: TrainSettings, name: str) -> str:
    """Return what to do instead of another value of a flag."""
    if name in ("steps", "tokens"):
        drafter = shlex.quote(str(settings.folder / "drafter"))
        return f"To train on, use --start_from {drafter} and another --output_dir."
    less = "For less memory, --accumulate may differ. " if name == "batch_size" else ""
    return f"{less}To train with another --{name}, use another --output_dir."


def identity(settings: TrainSettings) -> dict[str, object]:
    """Return the flags that a checkpoint must have been made with."""
    flags = trained_settings(settings)
    return {name: value for name, value in flags.items() if name not in FREE_FLAGS}


def plan_training(settings: TrainSettings) -> Plan:
    """Return what `train_drafter` would do; a SettingsError for a checkpoint of other flags.

    Whether the files are those of the checkpoint is seen once the target is loaded.
    """
    _refuse_foreign(settings)
    tokens = read_tokens(settings)
    state = _read_checkpoint(settings)
    what = _what(settings, tokens)
    folders = {"output_dir": settings.folder}
    for name in ("cache_features", "tensorboard"):
        if (place := getattr(settings, name)) is not None:
            folders[name] = Path(place)
    notes = [note.removeprefix("note: ") for note in _notes(settings, tokens)]
    notes += ["memory: without the drafter's, its optimizer's and the activations'"]
    run = settings.engine
    return Plan(
        what, folders, state["step"], settings.steps, "step", run, [run.method], notes=notes
    )
