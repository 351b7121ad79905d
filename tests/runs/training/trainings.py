"""Small checkpoints and tokens, and trainings on them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fakes import codes
from program import train_settings
from small import small_settings
from torch import Tensor

import main
from configs.methods import MethodSettings
from decoding.images import Job
from drafters.training.shards import Example, ShardWriter
from models.files.identity import checkpoint_id
from runs.session import open_session, open_target
from runs.training.train import Training, read_tokens
from support.json_lines import read_lines
from support.processes import ALONE, Processes
from support.progress import Progress

CAPTIONS = ["a cat", "two red dogs on the mat", "a dog", "three cats and a blue mat"]


BLOCK = {"drafter": "block", "ce_weight": 0.5, "agreement_weight": 1}


LAYOUTS = {"tiny": {}, "lumina_mgpt": {"target_size": "96x64"}, "llamagen": {}, "janus_pro": {},
           "emu3": {"target_size": "32x32"}, "emu3_5": {"target_size": "64"}, "liquid": {},
           "lumina_mgpt2": {"target_size": "32"}}  # fmt: skip


def write_tokens(
    folder: Path, model: str, checkpoint: Path, grid: tuple[int, int], images: int = 24
) -> Path:
    """Random codes for captions of different lengths."""
    about = {"model": model, "checkpoint": checkpoint_id(checkpoint), "rows": grid[0],
             "columns": grid[1], "vocab": 24, "width": 0, "height": 0, "origin": "own",
             "law": None, "settings": {}}  # fmt: skip
    writer = ShardWriter(folder, about, size=7)
    generator = torch.Generator().manual_seed(0)
    for number in range(images):
        codes = torch.randint(24, (grid[0] * grid[1],), generator=generator)
        caption = f"{CAPTIONS[number % 4]} {number // 4}"
        writer.add(Example(f"{number:03d}", caption, codes.int(), number))
    writer.close()
    return folder


def flags(folders: Path, out: Path, **more: object) -> dict[str, str]:
    base = {"model_path": folders / "model", "tokens": folders / "tokens", "output_dir": out,
            "device": "cpu", "steps": 6, "batch_size": 4, "holdout": 2, "eval_images": 0,
            "log_every": 1}  # fmt: skip
    return {name: str(value) for name, value in (base | more).items()}


def words(folders: Path, out: Path, **more: object) -> list[str]:
    given = flags(folders, out, **more).items()
    return ["train_drafter", *(f"--{name}={value}" for name, value in given)]


def open_training(
    folders: Path, out: Path, processes: Processes = ALONE, **more: object
) -> Training:
    settings = train_settings(flags(folders, out, **more))
    tokens, progress = read_tokens(settings), Progress("training")
    return Training(settings, open_target(settings.engine), tokens, processes, progress)


def run(folders: Path, out: Path, **more: object) -> list[dict]:
    """Train; the lines of the log without what differs between two runs."""
    assert main.main(words(folders, out, **more)) == 0
    return curve(out)


def stopped(folders: Path, out: Path, after: int = 1, **more: object) -> None:
    """Train as a command that is killed after so many steps, each of which it saved."""
    training = open_training(folders, out, **{"save_every": 1} | more)
    update = training.trainer.update

    def killed() -> Tensor:
        if training.trainer.step == after:
            raise KeyboardInterrupt
        return update()

    training.trainer.update = killed
    with pytest.raises(KeyboardInterrupt):
        training.run()


def curve(out: Path) -> list[dict]:
    """The lines of the log that losses are in, without times."""
    kept = ("step", "loss", "regression", "cross_entropy", "lr")
    lines = read_lines(out / "log.jsonl", "step")
    return [{name: line[name] for name in kept} for line in lines if "loss" in line]


def evaluation(out: Path) -> dict:
    return json.loads((out / "evaluation.json").read_text())


def assert_drafts_exactly(model: Path, drafter: Path, *methods: str) -> None:
    """A user loads the drafter, and images are those of `ar`."""
    settings = replace(small_settings(model), drafter_path=str(drafter))
    session = open_session(settings.with_method(MethodSettings(methods[0])))
    jobs = [Job(str(n), text, n + 3) for n, text in enumerate(CAPTIONS[:3])]
    plain = codes(session.open_engine(MethodSettings("ar"), images=2), jobs)
    for name in methods:
        assert codes(session.open_engine(MethodSettings(name), images=2), jobs) == plain
