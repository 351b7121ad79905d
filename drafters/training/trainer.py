"""One update of a drafter: share of the batch, loss, gradients, optimiser, averaged weights."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from configs.training import TrainSettings
from drafters.eagle import EagleHead
from drafters.training.features import Rower
from drafters.training.losses import ALIKE, DraftLevels, EagleLoss
from drafters.training.optimizers import (
    AveragedWeights,
    apply_gradients,
    cosine_lr,
    make_optimizers,
)
from drafters.training.order import batch, captionless, feature_noise, generator
from drafters.training.rounds import RecordedImage, RecordedPass, RecordedRounds
from drafters.training.windows import EPOCHS, RECORDED, BlockLoss, pick
from models.target import TargetModel
from support.processes import Processes


class Loss(Protocol):
    """A loss of parts (levels, 3), as `drafters.training.losses.PARTS` names them."""

    @property
    def weights(self) -> tuple[float, float, float]:
        """Of the parts."""

    def total(self, parts: Tensor) -> Tensor:
        """Return the loss of parts (levels, 3)."""


class Lessons(Protocol):
    """What a head learns from the images of an update."""

    epochs: ClassVar[int]  # of an update over its images

    @property
    def loss(self) -> Loss:
        """What is made smaller."""

    def __call__(
        self, step: int, epoch: int, images: list[int], indices: list[int]
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of images, and its parts (levels, 3) detached.

        step, epoch: number of the update, and of the epoch in it. images: their numbers. indices:
        where they stand in the update's batch, which has random numbers for each.
        """


@dataclass(frozen=True)
class RowLessons:
    """A head learns from the rows of images, in which all tokens are known."""

    settings: TrainSettings
    head: EagleHead
    rows: Rower
    loss: EagleLoss
    epochs: ClassVar[int] = 1

    def __call__(
        self, step: int, epoch: int, images: list[int], indices: list[int]
    ) -> tuple[Tensor, Tensor]:
        s, device = self.settings, self.loss.target.device
        rows = self.rows(images, self._picks(step, indices))
        rows, noise = rows.to(device, self.head.fc.weight.dtype), None
        if s.feature_noise:
            shape = torch.Size((len(rows.ids), rows.drafted, self.head.spec.hidden))
            noise = s.feature_noise * feature_noise(s.seed, step, indices, shape, device)
        with autocast(s, device):
            return self.loss(self.head, rows, noise)

    def _picks(self, step: int, indices: list[int]) -> list[int] | None:
        """Return the one guidance row that each image is trained on; None: all rows are."""
        s = self.settings
        if s.guidance_aware:
            return None
        dropped = captionless(s.seed, step, s.batch_size)
        # row 0 has the caption, the last one does not
        return [int(dropped[index]) * (s.engine.sampling.guidance - 1) for index in indices]


@dataclass(frozen=True)
class RoundLessons:
    """A block head learns from rounds that it drafted itself.

    All epochs of an update read the same images, each other passes of their rounds.
    """

    settings: TrainSettings
    rounds: RecordedRounds
    loss: BlockLoss
    epochs: ClassVar[int] = EPOCHS
    # images of this update, by the place of the first one in the batch
    recorded: dict[int, list[RecordedImage]] = field(default_factory=dict)

    def __call__(
        self, step: int, epoch: int, images: list[int], indices: list[int]
    ) -> tuple[Tensor, Tensor]:
        def keep(number: int, passes: Sequence[RecordedPass]) -> list[RecordedPass]:
            random = generator(self.settings.seed, "cpu", "rounds", step, indices[number])
            return pick(passes, random, EPOCHS * RECORDED)

        recorded = self.recorded.pop(indices[0], None) or self.rounds(images, keep)
        if epoch < EPOCHS - 1:
            self.recorded[indices[0]] = recorded
        chosen = slice(epoch * RECORDED, (epoch + 1) * RECORDED)
        with autocast(self.settings, self.loss.target.device):
            return self.loss(
                self.rounds.head, recorded, [image.passes[chosen] for image in recorded]
            )


def autocast(settings: TrainSettings, device: torch.device) -> torch.autocast:
    """Return what computes a loss in the precision of --precision."""
    return torch.autocast(device.type, torch.bfloat16, enabled=settings.precision == "bf16")


class Trainer:
    """A head in training next to its frozen target; `state` holds what the next update needs."""

    def __init__(
        self,
        settings: TrainSettings,
        head: EagleHead,
        lessons: Lessons,
        images: list[int],
        processes: Processes,
    ):
        """images: the numbers of those to train on."""
        self.settings, self.head, self.processes = settings, head, processes
        self.lessons, self.images = lessons, images
        self.trained = {name: p for name, p in head.named_parameters() if p.requires_grad}
        self.average = AveragedWeights(self.trained, settings.ema)
        precision = torch.bfloat16 if settings.precision == "bf16" else torch.float32
        self.optimizers = make_optimizers(head, precision if settings.optimizer == "muon" else None)
        self.step = 0

    @property
    def rate(self) -> float:
        """Learning rate of the next update."""
        done = (self.step + 1) / self.settings.steps
        return cosine_lr(done, self.settings.lr, self.settings.warmup)

    def update(self) -> Tensor:
        """Make the next update; returns the loss's parts (levels, 3), means over the batch."""
        parts = [self._epoch(number) for number in range(self.lessons.epochs)]
        self.average.update(self.step)
        self.step += 1
        return torch.stack(parts).mean(0)

    def _epoch(self, number: int) -> Tensor:
        """Move the weights once; returns the loss's parts (levels, 3), means over the batch."""
        parts, s, weights = [], self.settings, list(self.trained.values())
        # the whole batch, the same in every process; `indices` picks this one's images
        chosen = batch(s.seed, self.step, s.batch_size, len(self.images))
        for weight in weights:
            weight.grad = None
        for indices in self._shares():
            images = [self.images[chosen[index]] for index in indices]
            loss, loss_parts = self.lessons(self.step, number, images, indices)
            (loss / s.accumulate).backward()  # gradients add up to those of the mean
            parts.append(loss_parts)
        mean = torch.stack(parts).mean(0)
        apply_gradients(weights, self.optimizers, self.processes, self.rate, s.clip, mean)
        return mean

    def _shares(self) -> Iterable[list[int]]:
        """Yield this process's indices in the batch, one accumulation step at a time."""
        size = self.settings.batch_size // (self.settings.accumulate * self.processes.count)
        for step in range(self.settings.accumulate):
            first = (step * self.processes.count + self.processes.rank) * size
            yield list(range(first, first + size))

    @torch.no_grad()
    def held_out(self, images: list[int]) -> float:
        """Return the loss of images that are kept from training, with the weights as they are.

        It is that of an update, whose noise is the first one's, so that evaluations compare.
        """
        whole, total = self.settings.batch_size, 0.0
        size = whole // (self.settings.accumulate * self.processes.count)
        for first in range(0, len(images), size):
            some = images[first : first + size]
            indices = [(first + place) % whole for place in range(len(some))]
            _, parts = self.lessons(0, self.lessons.epochs - 1, some, indices)
            total += len(some) * self.lessons.loss.total(parts).item()
        return total / len(images)

    def state(self) -> dict[str, Any]:
        """Return everything that the next update depends on."""
        return {
            "step": self.step,
            "weights": {name: weight.detach() for name, weight in self.trained.items()},
            "average": self.average.values,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    @torch.no_grad()
    def load(self, state: dict[str, Any]) -> None:
        """Continue from a `state`; a ValueError if its weights are those of another drafter."""
        # compared first: a copy would stretch a weight of another shape, or fail halfway
        shapes, expected = (
            {name: tuple(weight.shape) for name, weight in weights.items()}
            for weights in (state["weights"], self.trained)
        )
        if shapes != expected:
            raise ValueError("weights of other names or shapes")
        self.step = state["step"]
        for name, weight in self.trained.items():
            weight.copy_(state["weights"][name])
        self.average.load(state["average"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def loss_of(settings: TrainSettings, target: TargetModel) -> EagleLoss:
    """Return the loss over an image's tokens."""
    cfg = settings.engine.sampling.cfg if settings.guidance_aware else 1.0
    weights = 1.0, settings.ce_weight, settings.agreement_weight
    levels = DraftLevels.of(target.grid, settings.depths, target.device)
    shift, measure = int(settings.alignment == "inference"), ALIKE[settings.agreement]
    return EagleLoss(target, levels, cfg, weights, shift, measure)
