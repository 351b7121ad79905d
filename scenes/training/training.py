"""Training of the tiny model's networks: precision, updates, checkpoints, the time budget."""

import time
from abc import ABC, abstractmethod
from math import isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from drafters.training.optimizers import apply_gradients, cosine_lr
from support.border import Failure
from support.processes import launched
from support.training_state import JsonLog, load_state, save_state

SAVE_SECONDS = 120.0


def fast_precision(device: torch.device) -> torch.dtype:
    """Return bf16 on GPUs and on CPUs that have it, else fp32, since emulated bf16 is slow."""
    native = device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def fast_autocast(device: torch.device) -> torch.autocast:
    """Return autocast to `fast_precision`; it does nothing where that is fp32."""
    enabled = fast_precision(device) == torch.bfloat16
    return torch.autocast(device.type, torch.bfloat16, enabled=enabled)


class TrainingRun(ABC):
    """A module in training. A checkpoint continues it exactly; processes share every batch."""

    def __init__(
        self,
        module: nn.Module,
        batch_size: int,
        optimizers: list[torch.optim.Optimizer],
        clip: float,
    ):
        """batch_size: images per step, of all processes together; clip: largest gradient norm."""
        self.module, self.batch_size = module, batch_size
        self.optimizers, self.clip = optimizers, clip
        self.device = next(module.parameters()).device
        self.crew = launched(self.device)
        if batch_size % self.crew.count:
            raise ValueError(
                f"PROCESSES (of torchrun): expected a divisor of the {batch_size} images of a "
                f"step, got {self.crew.count}"
            )
        self.share = slice(self.crew.rank, None, self.crew.count)  # of a batch: this process's
        self.step, self.seconds = 0, 0.0
        self.progress = 0.0  # share of the budget that is spent

    @abstractmethod
    def loss(self) -> Tensor:
        """Return the loss of this process's images of batch `step`."""

    @abstractmethod
    def validate(self, batches: int = 8) -> dict[str, float]:
        """Return figures on held-out batches."""

    @abstractmethod
    def export(self, model_dir: Path) -> None:
        """Write the weights in their public layout, in fp16, into the model's folder."""

    def start_from(self, model_dir: Path) -> None:
        """Begin with the weights of another model; the optimisers start from zero."""
        raise ValueError(f"--start_from: not with this network, got {model_dir}")

    def update(self, rate: float) -> float:
        """Do one optimiser step at this learning rate; returns the loss over all processes."""
        started = time.perf_counter()
        self.module.zero_grad(set_to_none=True)
        loss = self.loss()
        loss.backward()
        loss, weights = loss.detach(), list(self.module.parameters())
        apply_gradients(weights, self.optimizers, self.crew, rate, self.clip, loss)
        self.step += 1
        # all processes must see the same end of the budget, or one waits for the others for ever
        seconds = torch.tensor(time.perf_counter() - started, dtype=torch.float64)
        self.crew.average([seconds])
        self.seconds += seconds.item()
        return loss.item()

    def state(self) -> dict[str, object]:
        """Return everything that the next update depends on."""
        return {
            "module": self.module.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "step": self.step,
            "seconds": self.seconds,
        }

    def load(self, state: dict[str, Any]) -> None:
        """Continue from a `state`."""
        self.module.load_state_dict(state["module"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds = state["step"], state["seconds"]


def train_for(
    minutes: float, run: TrainingRun, checkpoint: Path, start: str | None, lr: float
) -> None:
    """Train for a wall-clock budget, earlier calls included.

    The run logs every 25 steps next to the checkpoint, is validated every 200 steps and saved every
    two minutes. The learning rate rises to `lr` and falls as a cosine.

    start: folder of a model to begin with if there is no checkpoint.
    """
    log, losses = JsonLog(checkpoint.with_name(f"train_{checkpoint.stem}.jsonl")), []
    if (state := load_state(checkpoint)) is not None:
        run.load(state)
    elif start is not None:
        run.start_from(Path(start))
    saved = run.seconds
    while run.seconds < 60 * minutes:
        run.progress = run.seconds / (60 * minutes)
        losses.append(run.update(cosine_lr(run.progress, lr)))
        if not isfinite(losses[-1]):
            last = f"{checkpoint} is of an earlier step" if saved else "no checkpoint was written"
            raise Failure(f"the loss is {losses[-1]} at step {run.step}; {last}")
        if run.crew.rank > 0:
            continue
        if run.step % 25 == 0:
            rate = run.step * run.batch_size / run.seconds
            loss, losses = sum(losses) / len(losses), []
            log.write(step=run.step, loss=loss, images_per_second=rate, seconds=run.seconds)
        if run.step % 200 == 0:
            log.write(step=run.step, **run.validate())
        # by time, not by steps: with a slow model 200 steps are half an hour to lose
        if run.seconds - saved > SAVE_SECONDS:
            save_state(checkpoint, run.state())
            saved = run.seconds
    if run.crew.rank == 0:
        images, figures = run.step * run.batch_size, run.validate(16)
        log.write(step=run.step, seconds=run.seconds, images=images, **figures)
        save_state(checkpoint, run.state())
