"""Train a network of the tiny model: `python -m scripts.tiny.train --network vqgan`."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from scripts.tiny.train_attributes import AttributesRun
from scripts.tiny.train_model import open_run
from scripts.tiny.train_vqgan import DecoderRun, VqganRun
from scripts.tiny.training import TrainingRun, train_for
from support.devices import pick_device
from support.script import run_script


@dataclass(frozen=True)
class Training:
    """How a network is trained if no flag says otherwise."""

    open: Callable[[Path, Path, int, torch.device], TrainingRun]  # work folder, model, batch size
    minutes: float
    batch_size: int
    lr: float


TRAININGS = {
    "vqgan": Training(VqganRun, 27.0, 8, 8e-4),
    "decoder": Training(DecoderRun, 25.0, 8, 5e-4),
    "model": Training(open_run, 270.0, 32, 1.7e-3),
    "attributes": Training(AttributesRun, 5.0, 32, 2e-3),  # 2,400 steps on one CPU core
}


def train(
    *,
    network: str,
    work_dir: str = "work/tiny",
    model_dir: str = "ckpts/tiny",
    start_from: str | None = None,
    minutes: float | None = None,
    batch_size: int | None = None,
    lr: float | None = None,
) -> None:
    """Train for `minutes` of wall clock in all, earlier calls included; then export the weights.

    An interrupted training continues from its checkpoint in work_dir.

    Args:
        network: vqgan, decoder (of the VQGAN), model or attributes; each needs those before it.
        work_dir: folder of images, captions and codes; receives checkpoint and log.
        model_dir: folder of the model, which receives the weights.
        start_from: folder of a model whose vqgan or model to begin with; random weights if None.
        minutes: budget.
        batch_size: images per step, shared between a launcher's processes.
        lr: highest learning rate.
    """
    if network not in TRAININGS:
        raise ValueError(f"--network: expected {', '.join(TRAININGS)}, got {network!r}")
    usual, work, model = TRAININGS[network], Path(work_dir), Path(model_dir)
    run = usual.open(work, model, batch_size or usual.batch_size, pick_device("auto"))
    budget = usual.minutes if minutes is None else minutes
    train_for(budget, run, work / f"{network}.pt", start_from, lr or usual.lr)
    if run.crew.rank == 0:
        run.export(model)


if __name__ == "__main__":
    run_script(train)
