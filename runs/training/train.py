"""`train_drafter`: an EAGLE drafter for any target, from the tokens of extract_tokens.

<output_dir>/log.jsonl         a line per --log_every steps, and one per evaluation
<output_dir>/checkpoint/       what the same command continues from, with the same losses
<output_dir>/drafter/          the drafter in the public layout, as
                               --drafter_path reads it
<output_dir>/evaluation.json   its figures
"""

import hashlib
import shlex
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from configs.fields import mismatch, refuse, refusing, settings_dict
from configs.training import FREE_FLAGS, TrainSettings
from drafters.training.features import CAPTION_FLAGS, Computed, cached, fingerprint
from drafters.training.heads import embedding_scale, export, head_config, open_head
from drafters.training.lesson import Lessons
from drafters.training.losses import PARTS
from drafters.training.rounds import DrawnRounds
from drafters.training.shards import Tokens, read_about
from models.files.folders import checkpoint_folder
from models.target import TargetModel
from runs.made_of import made_of
from runs.methods import sampling_distribution
from runs.session import open_target
from runs.training.evaluation import Evaluation, trained_settings
from support.devices import pick_device
from support.durable import lock, make_writable
from support.json_files import JsonLog
from support.processes import Processes, launched
from support.progress import Progress, plural
from support.provenance import checkpoint_id
from support.training_state import damaged_state, load_state, save_state


@refusing()
def train(settings: TrainSettings) -> None:
    """Train a drafter, evaluate and export it; the same command continues."""
    device = pick_device(settings.device)
    tokens = read_tokens(settings)
    crew = launched(device)
    if settings.batch_size % (settings.accumulate * crew.count):
        allowed = f"a multiple of --accumulate {settings.accumulate} x {crew.count} processes"
        advice = "A training may go on with another --accumulate."
        refuse("batch_size", settings.batch_size, allowed, advice)
    try:
        with ExitStack() as stack:
            if crew.rank == 0:
                make_writable("output_dir", settings.folder)
                if settings.cache_features is not None:
                    make_writable("cache_features", Path(settings.cache_features))
                stack.enter_context(lock(settings.folder / ".lock"))
            images = plural(settings.train_images or len(tokens) - settings.holdout, "image")
            what = f"training a drafter on {images} of {settings.tokens} "
            what += f"into {settings.folder}; its log is there"
            with Progress(what, settings.steps, shown=crew.rank == 0, unit="step") as progress:
                for note in _sampled_otherwise(settings):
                    progress.note(note)
                Training(settings, open_target(settings.plain), tokens, crew, progress).run()
    except BlockingIOError:
        refuse("output_dir", settings.output_dir, "a folder that no other process is working in")


def _sampled_otherwise(settings: TrainSettings) -> Iterator[str]:
    """Yield a note per folder whose samples were drawn by other settings than it trains for."""
    here = settings_dict(settings.sampling)
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
    """Return the tokens of --tokens; a SettingsError if they are of another model or checkpoint."""
    with refusing("--tokens: "):
        tokens = Tokens.joined(settings.token_folders)
        folder = checkpoint_folder(settings.model_path, "--model_path")
    model = {"model": settings.model, "checkpoint": checkpoint_id(folder)}
    _check_tokens(settings, tokens, model)
    return tokens


def _check_tokens(settings: TrainSettings, tokens: Tokens, target: dict[str, Any]) -> None:
    """Raise a SettingsError unless about.json has these entries."""
    for name, value in target.items():
        if (got := tokens.about.get(name)) != value:
            allowed = f"tokens with the {name} {value!r}; these have {got!r}"
            refuse("tokens", settings.tokens, allowed)


class Training:
    """One training, from its checkpoint to its last step."""

    def __init__(
        self,
        settings: TrainSettings,
        target: TargetModel,
        tokens: Tokens,
        crew: Processes,
        progress: Progress,
    ):
        small = target.grid.preview
        grid = {"rows": target.grid.rows, "columns": target.grid.columns}
        grid["preview"] = None if small is None else list(small)
        _check_tokens(settings, tokens, grid | {"vocab": target.vocab.size})
        target.transformer.requires_grad_(False)  # or autograd would keep the target's activations
        with refusing("--train_images: " if settings.train_images else "--holdout: "):
            images, held = tokens.split(settings.holdout, settings.train_images)
        self.settings, self.crew, self.target = settings, crew, target
        self.progress = progress
        self.config = head_config(settings)  # --start_from may change after the start
        head, self.embedding = open_head(settings, target)
        layers = head.spec.target_layers
        self.fingerprint = fingerprint(tokens)
        # before the first process fills the cache that all read
        crew.agree("tokens", settings.tokens, self.fingerprint, "the same tokens in all processes")
        self.files = made_of(self._identity()) | {"tokens": self.fingerprint}
        if self.embedding is not target.embedding():
            table = self.embedding.cpu().numpy()
            self.files["embedding"] = hashlib.sha256(table.tobytes()).hexdigest()[:16]
        rows = Computed(target, tokens, settings.sampling.guidance, settings.precision, layers)
        if settings.cache_features is not None:
            source = {"tokens": self.fingerprint, "checkpoint": tokens.about["checkpoint"]}
            named = {name: getattr(settings, name) for name in CAPTION_FLAGS}
            source |= named | made_of(named)
            folder, used = Path(settings.cache_features), sorted(images + held)
            rows = cached(rows, used, folder, source, crew, progress)
        self.checkpoint = settings.folder / "checkpoint" / "state.pt"
        distribution = sampling_distribution(settings.sampling)
        # a block head learns from trees that it drafted itself, others from the images' tokens
        draws = settings.drafter == "block"
        source = DrawnRounds(target, head, tokens, distribution) if draws else rows
        self.lessons = Lessons(settings, target, head, (source, images), crew)
        self.evaluation = Evaluation(settings, target, tokens, rows, held)
        self.log = JsonLog(settings.folder / "log.jsonl")
        # since the last line of the log: parts of the losses; seconds of this command's updates
        self.recent: list[Tensor] = []
        self.seconds: list[float] = []

    def run(self) -> None:
        """Do the missing steps and evaluations."""
        settings, lessons = self.settings, self.lessons
        evaluated = self._resume()
        self.progress.done = lessons.step
        self.progress.begin()
        if self._due() and not evaluated:  # by a command that ended before it was
            self._evaluate()
        while lessons.step < settings.steps:
            rate, started = lessons.rate, time.perf_counter()
            self.recent.append(lessons.update().cpu())
            self.seconds.append(time.perf_counter() - started)
            self.progress.update()
            last = lessons.step == settings.steps
            if lessons.step % settings.log_every == 0 or last:
                self._log(rate)
            if lessons.step % settings.save_every == 0 or last:
                self._save()
            if self._due():
                self._evaluate()
        if self.crew.rank == 0:
            print(self.evaluation.verdict())

    def _due(self) -> bool:
        """Return whether an evaluation belongs after the last step made."""
        step = self.lessons.step
        return step == self.settings.steps or (step > 0 and step % self.settings.eval_every == 0)

    def _log(self, rate: float) -> None:
        """Write a line of the log."""
        lessons, parts = self.lessons, torch.stack(self.recent).mean(0)
        seconds = fmean(self.seconds)
        self.recent, self.seconds = [], []
        if self.crew.rank == 0:
            weighed = zip(PARTS, lessons.loss.weights, parts.T.tolist(), strict=True)
            self.log.write(
                step=lessons.step,
                loss=lessons.loss.total(parts).item(),
                **{name: [round(x, 6) for x in values] for name, w, values in weighed if w},
                lr=rate,
                images_per_second=round(self.settings.batch_size / seconds, 3),
                seconds_left=round(seconds * (self.settings.steps - lessons.step)),
            )

    def _identity(self) -> dict[str, object]:
        """Return the flags that a checkpoint must have been made with."""
        flags = trained_settings(self.settings)
        return {name: value for name, value in flags.items() if name not in FREE_FLAGS}

    def _save(self) -> None:
        if self.crew.rank == 0:
            # With `recent`, the first line of the log after a resume is a mean over all its steps.
            made = {"settings": self._identity(), "files": self.files}
            save_state(self.checkpoint, self.lessons.state() | made | {"recent": self.recent})
        self.crew.wait()

    def _resume(self) -> bool:
        """Continue from the checkpoint; returns whether its step has been evaluated."""
        state = load_state(self.checkpoint)
        if state is not None:
            self._check_flags(state)
            try:
                self.lessons.load(state)
                self.recent = list(state["recent"])
            except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
                raise damaged_state(self.checkpoint, f"{type(error).__name__}: {error}") from error
        evaluated = self.evaluation.done(self.lessons.step)  # a foreign file ends it here
        # all must have looked before the first process writes the file
        seen = self.lessons.step, evaluated
        self.crew.agree("output_dir", self.settings.output_dir, seen)
        if self.crew.rank == 0:
            if state is None:  # the figures are of a training whose checkpoint was deleted
                self.evaluation.path.unlink(missing_ok=True)
            self.log.keep(self.lessons.step)
        return evaluated

    def _check_flags(self, state: dict[str, Any]) -> None:
        """Raise a SettingsError unless the checkpoint was made with these flags."""
        made, files = state.get("settings"), state.get("files")
        if not (isinstance(made, dict) and isinstance(files, dict)):
            raise damaged_state(self.checkpoint, "no settings in it")
        if made.get("start_from") == self.settings.start_from:  # its files may have changed since
            files = files | {"start_from": self.files.get("start_from")}
        there, now = f"the checkpoint in {self.settings.output_dir}", self._identity()
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
                refuse(name, now[name], allowed, self._advice(name))
            if not same:
                raise mismatch(name, "others", allowed, self._advice(name))

    def _advice(self, name: str) -> str:
        """Return what to do instead of another value of a flag."""
        if name in ("steps", "tokens"):
            drafter = shlex.quote(str(self.settings.folder / "drafter"))
            return f"To train on, use --start_from {drafter} and another --output_dir."
        less = "For less memory, --accumulate may differ. " if name == "batch_size" else ""
        return f"{less}Or use another --output_dir."

    def _evaluate(self) -> None:
        self.progress.say("evaluating the drafter")
        if self.crew.rank == 0:
            folder = self.settings.folder / "drafter"
            scale = embedding_scale(self.settings, self.target, self.embedding)
            with self.lessons.average.applied():
                export(self.lessons.head, self.config, folder, self.embedding, scale)
            figures = self.evaluation(folder, self.lessons.step)
            shown = {name: figures[name] for name in ("levels", "decoding")}
            self.log.write(step=self.lessons.step, **shown)
        self.crew.wait()
        self.progress.say("")
