"""Training of the tiny model's networks: updates, checkpoints, the time budget."""

import time
from abc import ABC, abstractmethod
from pathlib import Path

import torch
from torch import Tensor, nn

from drafters.training.muon import step_all
from drafters.training.schedule import cosine_lr
from support.crew import Crew
from support.log import JsonLog
from support.training_state import load_state, save_state

SAVE_SECONDS = 120.0


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
        self.module, self.batch_size, self.optimizers, self.clip = (
            module,
            batch_size,
            optimizers,
            clip,
        )
        self.device = next(module.parameters()).device
        self.crew = Crew(self.device)
        if batch_size % self.crew.count:
            raise ValueError(
                f"--batch_size: found {batch_size}; allowed: multiples of {self.crew.count}, "
                "the number of processes"
            )
        self.share = slice(
            self.crew.rank, None, self.crew.count
        )  # of every batch: this process's images
        self.step, self.seconds = 0, 0.0
        self.progress = 0.0  # share of the budget that is spent

    @abstractmethod
    def loss(self) -> Tensor:
        """Return the loss of this process's part of batch `step`."""

    @abstractmethod
    def validate(self, batches: int = 8) -> dict[str, float]:
        """Return figures on held-out batches."""

    @abstractmethod
    def start_from(self, folder: Path) -> None:
        """Begin with the weights that `export` wrote; the optimisers start from zero."""

    @abstractmethod
    def export(self, folder: Path) -> None:
        """Write the weights in their public layout, in fp16."""

    def update(self, rate: float) -> float:
        """Do one optimiser step at this learning rate; returns the loss over all processes."""
        started = time.perf_counter()
        loss = self.loss()
        self.module.zero_grad(set_to_none=True)
        loss.backward()
        loss = loss.detach()
        gradients = [p.grad for p in self.module.parameters() if p.grad is not None]
        self.crew.average([*gradients, loss])
        nn.utils.clip_grad_norm_(self.module.parameters(), self.clip)
        step_all(self.optimizers, rate)
        self.step += 1
        seconds = torch.tensor(time.perf_counter() - started, dtype=torch.float64)
        self.crew.average([seconds])
        self.seconds += seconds.item()
        return loss.item()

    def state(self) -> dict[str, object]:
        """Return everything that the next update depends on."""
        states = [optimizer.state_dict() for optimizer in self.optimizers]
        return {
            "module": self.module.state_dict(),
            "optimizers": states,
            "step": self.step,
            "seconds": self.seconds,
        }

    def load(self, state: dict[str, object]) -> None:
        """Continue from a `state`."""
        if "module" not in state:
            raise ValueError("the checkpoint is of an earlier version; delete it to start again")
        self.module.load_state_dict(state["module"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds = state["step"], state["seconds"]


def train_for(
    minutes: float, run: TrainingRun, checkpoint: Path, start: str | None, lr: float
) -> None:
    """Train for a wall-clock budget, earlier calls included; logs every 25 steps next to the
    checkpoint.

    Args:
        minutes: budget.
        run: what is trained; it is validated every 200 steps and saved every two minutes.
        checkpoint: file that an interrupted run continues from.
        start: folder of exported weights to begin with if there is no checkpoint; the run's own
            weights if None.
        lr: highest learning rate, after a warm-up; then it falls as a cosine.
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
        if run.crew.rank > 0:
            continue
        if run.step % 25 == 0:
            rate = run.step * run.batch_size / run.seconds
            log.write(
                step=run.step,
                loss=sum(losses) / len(losses),
                images_per_second=rate,
                seconds=run.seconds,
            )
            losses = []
        if run.step % 200 == 0:
            log.write(step=run.step, **run.validate())
        # by time, not by steps: with a slow model 200 steps are half an hour to lose
        if run.seconds - saved > SAVE_SECONDS:
            save_state(checkpoint, run.state())
            saved = run.seconds
    if run.crew.rank == 0:
        log.write(
            step=run.step, seconds=run.seconds, images=run.step * run.batch_size, **run.validate(16)
        )
        save_state(checkpoint, run.state())


def torch_device() -> torch.device:
    """Return a GPU if there is one, else the CPU."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
