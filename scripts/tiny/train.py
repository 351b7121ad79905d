"""Train a network of the tiny model: `python -m scripts.tiny.train --network vqgan`."""

from pathlib import Path

from scripts.tiny.train_attributes import AttributesRun
from scripts.tiny.train_model import ModelRun
from scripts.tiny.train_vqgan import DecoderRun, VqganRun
from scripts.tiny.training import train_for
from support.devices import pick_device
from support.script import run_script

# By network: its training, minutes, images per step and highest learning rate, unless flags differ.
TRAININGS = {
    "vqgan": (VqganRun, 27.0, 8, 8e-4),
    "decoder": (DecoderRun, 25.0, 8, 5e-4),
    "model": (ModelRun, 270.0, 32, 1.7e-3),
    "attributes": (AttributesRun, 5.0, 32, 2e-3),  # 2,400 steps on one CPU core
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
    opened, budget, images, rate = TRAININGS[network]
    work, model, budget = Path(work_dir), Path(model_dir), budget if minutes is None else minutes
    run = opened(work, model, batch_size or images, pick_device("auto"))
    train_for(budget, run, work / f"{network}.pt", start_from, lr or rate)
    if run.crew.rank == 0:
        run.export(model)


if __name__ == "__main__":
    run_script(train)
