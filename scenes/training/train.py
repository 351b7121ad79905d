"""Train a network of the tiny model.

`python -m scenes.training.train --network vqgan --minutes 27`
"""

from pathlib import Path

from scenes.training.train_attributes import AttributesRun
from scenes.training.train_model import ModelRun
from scenes.training.train_vqgan import DecoderRun, VqganRun
from scenes.training.training import train_for
from support.devices import pick_device
from support.script import run_script

# By network: its training, images per step of all processes, and highest learning rate.
TRAININGS = {
    "vqgan": (VqganRun, 8, 8e-4),
    "decoder": (DecoderRun, 8, 5e-4),
    "model": (ModelRun, 32, 1.7e-3),
    "attributes": (AttributesRun, 32, 2e-3),
}


def train(
    *,
    network: str,
    minutes: float,
    work_dir: str = "work/tiny",
    model_dir: str = "ckpts/tiny",
    start_from: str | None = None,
) -> None:
    """Train for `minutes` of wall clock in all, earlier calls included; then export the weights.

    An interrupted training continues from its checkpoint in work_dir.

    Args:
        network: vqgan, decoder (of the VQGAN), model or attributes; each needs those before it.
        minutes: budget.
        work_dir: folder of images, captions and codes; receives checkpoint and log.
        model_dir: folder of the model, which receives the weights.
        start_from: folder of a model whose vqgan or model to begin with; random weights if None.
    """
    if network not in TRAININGS:
        raise ValueError(f"--network: expected {', '.join(TRAININGS)}, got {network!r}")
    opened, images, rate = TRAININGS[network]
    work, model = Path(work_dir), Path(model_dir)
    run = opened(work, model, images, pick_device("auto"))
    train_for(minutes, run, work / f"{network}.pt", start_from, rate)
    if run.crew.rank == 0:
        run.export(model)


if __name__ == "__main__":
    run_script(train)
