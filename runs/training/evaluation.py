"""How good a drafter in training is: its drafts of held-out images by level, and its speed-up."""

import shlex
import shutil
from copy import copy, deepcopy
from dataclasses import dataclass, fields, replace
from itertools import chain
from pathlib import Path
from typing import Any

import torch

from configs.fields import mismatch, settings_dict
from configs.methods import MethodSettings
from configs.training import OF_TARGET, TrainSettings
from decoding.sampling import SamplingDistribution
from decoding.seeds import image_seed
from drafters.block import BlockHead
from drafters.eagle import EagleHead
from drafters.loading import load_drafter
from drafters.training.agreement import LEVELS, LevelFigures
from drafters.training.features import Rower
from drafters.training.order import generator
from drafters.training.rounds import RecordedRounds
from drafters.training.shards import Tokens
from drafters.training.windows import pick, scored, windows_of
from models.backends import kernels_for
from models.target import TargetModel
from runs.drawing import image_jobs
from runs.measure import BASELINE, Measurement, exceeds_tau, measure, waited, warm_up
from runs.methods import sampling_distribution
from runs.prompts import numbered
from runs.session import Session
from support.durable import encode_json, replace_file
from support.json_files import read_object
from support.output import printed_unless_saved
from support.progress import plural

FILES = ("config.json", "model.safetensors")  # of a drafter
YARDSTICK = MethodSettings("jacobi")  # what a drafter has to beat


def distance(figures: dict[str, Any]) -> float:
    """Return the total variation between drafter and target at the first level."""
    return figures["levels"][0]["total_variation"]


def in_words(figures: dict[str, Any]) -> str:
    """Return an evaluation in a line: loss, how far the first level is from the target, tau."""
    decoding, hit = figures["decoding"], figures["levels"][0]["topk"]["hit_1"]
    words = f"step {figures['step']}: held-out loss {figures['held_out_loss']:.4f}, "
    words += f"TV {distance(figures):.3f}, hit {hit:.2f}"
    if decoding:
        mark = " (!)" if decoding["doubts"] else ""
        words += f", tau {decoding['tau']:.2f} (jacobi {decoding['tau_jacobi']:.2f}), "
        words += f"speed-up {decoding['speedup']:.2f}{mark}"
    return words


@dataclass(frozen=True)
class Evaluation:
    """Measures the drafter in a folder, as a user would load it."""

    settings: TrainSettings
    target: TargetModel
    tokens: Tokens
    rows: Rower
    held: list[int]  # the numbers of the images that are kept from training

    def __call__(self, folder: Path, step: int, loss: float) -> dict[str, Any]:
        """Return what `keep` writes. loss: of the held-out images."""
        # in fp16 from its file, as users have it, not the weights in training
        head = load_drafter(str(folder), self.target)
        levels = self.levels(head)
        figures = {"step": step, "settings": trained_settings(self.settings)}
        figures |= {"held_out_loss": loss, "levels": levels}
        with printed_unless_saved(figures):
            figures["decoding"] = self.decoding(folder, head)
        return figures

    def keep(self, folder: Path, figures: dict[str, Any]) -> None:
        """Copy the drafter in the folder if it is the best, and write evaluation.json.

        The last step of an evaluation: what ends before it is made again.
        """
        self._keep_best(folder, figures)
        replace_file(self.path, encode_json(figures))

    def _keep_best(self, folder: Path, figures: dict[str, Any]) -> None:
        """Copy a drafter whose first level is nearer to the target than that of any before."""
        path = self.best / "evaluation.json"
        if path.exists() and distance(read_object(path)) <= distance(figures):
            return
        path.unlink(missing_ok=True)  # a kill leaves no figures of other weights
        shutil.copytree(folder, self.best / "drafter", dirs_exist_ok=True)
        replace_file(path, encode_json(figures))

    def done(self, step: int) -> bool:
        """Return whether a drafter of this step or later is there, measured with these flags."""
        if not self.path.exists():
            return False
        figures = read_object(self.path)
        for name, kind in (("step", int), ("settings", dict)):
            if not isinstance(figures.get(name), kind):
                advice = "Delete it, and the drafter is evaluated again."
                raise mismatch(str(self.path), f"no {name}", "a file of this training", advice)
        flags = {name: getattr(self.settings, name) for name in ("eval_images", "eval_method")}
        folder = self.settings.folder / "drafter"
        written = all((folder / name).is_file() for name in FILES)
        same = figures["step"] >= step and flags.items() <= figures["settings"].items()
        return same and written

    def verdict(self) -> str:
        """Return the last evaluation in words; a doubtful speed-up is marked, and why comes first.

        The last line says where the drafter is, what it reaches, and how to use it.
        """
        figures = read_object(self.path).get("decoding") or {}
        drafter = self.settings.folder / "drafter"
        reached = ""
        if figures:  # --eval_images 0 decodes nothing
            mark = " (!)" if figures.get("doubts") else ""
            reached = f": tau {figures['tau']:.2f}, speed-up {figures['speedup']:.2f}{mark} "
            reached += f"with {figures['method']} on {plural(figures['images'], 'image')} "
            reached += f"(jacobi, which needs no drafter: tau {figures['tau_jacobi']:.2f})"
        flag = f"--drafter_path {shlex.quote(str(drafter))}"
        last = f"the drafter is in {drafter}{reached}; use it with {flag}"
        lines = [f"(!) {text}" for text in figures.get("doubts", ())]
        best = self.best / "evaluation.json"
        step = read_object(best)["step"] if best.exists() else None
        if step not in (None, read_object(self.path)["step"]):
            lines.append(f"nearer to the target was the drafter of step {step}, in {self.best}")
        return "\n".join([*lines, last])

    @property
    def path(self) -> Path:
        return self.settings.folder / "evaluation.json"

    @property
    def best(self) -> Path:
        """The folder of the best drafter so far, and of its figures."""
        return self.settings.folder / "best"

    def forget(self) -> None:
        """Remove the figures and the best drafter of a training whose checkpoint was deleted."""
        self.path.unlink(missing_ok=True)
        figures = self.best / "evaluation.json"
        if figures.is_file():  # else the folder is not ours
            for path in (figures, *(self.best / "drafter" / name for name in FILES)):
                path.unlink(missing_ok=True)

    @torch.inference_mode()
    def levels(self, head: EagleHead) -> list[dict[str, Any]]:
        """Return `LevelFigures.table` of the held-out images.

        The target chooses with new noise, by its distributions after the images' tokens. A block
        head is evaluated in rounds of its own.
        """
        distribution = sampling_distribution(self.settings.engine.sampling)
        if isinstance(head, BlockHead):
            return self._windows(head, distribution)
        count = min(LEVELS, self.target.grid.tokens - 1)
        figures = LevelFigures()
        for image in self.held:
            rows = self.rows([image]).to(self.target.device, self.target.dtype)
            # images may share a caption, so the image's number tells them apart
            seed = image_seed(self.settings.seed, self.tokens.captions[image], sample=image)
            figures.add_image(self.target, head, rows, distribution, count, seed)
        return figures.table()

    def _windows(self, head: BlockHead, distribution: SamplingDistribution) -> list[dict[str, Any]]:
        """Return the same of a block head; a level is a step of its windows."""
        figures = LevelFigures()
        source = RecordedRounds(self.target, head, self.tokens, distribution)
        for image in self.held:
            recorded = source([image])[0]
            random = generator(self.settings.seed, "cpu", "rounds of", image)
            # short images have fewer rounds than are picked, and none counts twice
            picked = pick(recorded.last_passes, random)[: len(recorded.last_passes)]
            rounds = windows_of(self.target, [recorded], [picked], distribution.greedy)
            scores = scored(head, self.target, rounds, distribution.cfg)
            for step in range(min(LEVELS, rounds.inside.shape[1])):
                inside = rounds.inside[:, step]  # a window may reach beyond the image
                if bool(inside.any()):
                    columns = scores.log_q, scores.log_p, rounds.noise
                    figures.add(step + 1, *(column[:, step][inside] for column in columns))
        return figures.table()

    def decoding(self, folder: Path, head: EagleHead) -> dict[str, Any]:
        """Return tau and the speed-up over plain decoding, for captions of held-out images."""
        held = self.held[: self.settings.eval_images]
        captions = [self.tokens.captions[image] for image in held]  # equal ones: other images
        jobs = image_jobs(numbered(captions), self.settings.seed)
        if not jobs:
            return {}
        method = self.settings.evaluated
        run = replace(self.settings.engine, method=method, drafter_path=str(folder))
        target = _with_own_layers(self.target)  # so that training's keep torch's kernels
        kernels_for(run)(target.transformer, head)
        session = Session(run, target, head)

        def measured(settings: MethodSettings) -> Measurement:
            engine = session.open_engine(settings)
            warm_up(engine, jobs)
            return measure(engine, jobs)

        plain, window, drafted = map(measured, (BASELINE, YARDSTICK, method))
        speedup = plain.seconds_per_image / drafted.seconds_per_image
        on_cpu = self.target.device.type == "cpu"
        doubts = exceeds_tau(speedup, drafted.tau), on_cpu and waited([drafted], [plain])
        pairs = zip(plain.images, drafted.images, strict=True)
        return {
            "images": len(jobs),
            "method": self.settings.eval_method,
            "tau": drafted.tau,
            "tau_jacobi": window.tau,
            "speedup": speedup,
            "doubts": list(filter(None, doubts)),
            "identical": sum(torch.equal(a.codes, b.codes) for a, b in pairs),
        }


def _with_own_layers(target: TargetModel) -> TargetModel:
    """Return a target of the same weights, whose layers may run other kernels."""
    other, layers = copy(target), target.transformer
    shared = {id(weight): weight for weight in chain(layers.parameters(), layers.buffers())}
    other.transformer = deepcopy(layers, shared)
    return other


def trained_settings(settings: TrainSettings) -> dict[str, Any]:
    """Return the settings by flag, with those of the sampling distribution."""
    own = {f.name: getattr(settings, f.name) for f in fields(settings) if "help" in f.metadata}
    own |= {name: getattr(settings.engine, name) for name in OF_TARGET}
    return own | settings_dict(settings.engine.sampling)
