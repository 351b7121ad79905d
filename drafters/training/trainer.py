"""One update of a drafter: share of the batch, loss, gradients, optimiser, averaged weights."""

from collections.abc import Iterable, Sequence
from typing import Any

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
from drafters.training.rounds import RecordedImage, RecordedPass
from drafters.training.windows import EPOCHS, RECORDED, BlockLoss, pick
from models.target import TargetModel
from support.processes import Processes


class Trainer:
    """A head in training next to its frozen target; `state` holds what the next update needs."""

    def __init__(
        self,
        settings: TrainSettings,
        target: TargetModel,
        head: EagleHead,
        source: tuple[Rower, list[int]],
        processes: Processes,
    ):
        """source: where rows come from, and the numbers of the images to train on."""
        self.settings, self.head, self.processes = settings, head, processes
        self.rows, self.images = source
        self.device = target.device
        self.trained = {name: p for name, p in head.named_parameters() if p.requires_grad}
        self.average = AveragedWeights(self.trained, settings.ema)
        precision = torch.bfloat16 if settings.precision == "bf16" else torch.float32
        self.optimizers = make_optimizers(head, precision if settings.optimizer == "muon" else None)
        self.loss = loss_of(settings, target)
        self.step = 0
        # images of this update, which all its epochs read; by the number of the first in the batch
        self._recorded: dict[int, list[RecordedImage]] = {}

    @property
    def rate(self) -> float:
        """Learning rate of the next update."""
        done = (self.step + 1) / self.settings.steps
        return cosine_lr(done, self.settings.lr, self.settings.warmup)

    def update(self) -> Tensor:
        """Make the next update; returns the loss's parts (levels, 3), means over the batch."""
        epochs = EPOCHS if self.settings.drafter == "block" else 1
        parts = [self._epoch(number) for number in range(epochs)]
        self._recorded.clear()
        self.average.update(self.step)
        self.step += 1
        return torch.stack(parts).mean(0)

    def _epoch(self, number: int) -> Tensor:
        """Move the weights once; returns the loss's parts (levels, 3), means over the batch."""
        parts = []
        weights = list(self.trained.values())
        for weight in weights:
            weight.grad = None
        for indices in self._shares():
            loss, loss_parts = self._loss(indices, number)
            (loss / self.settings.accumulate).backward()  # gradients add up to those of the mean
            parts.append(loss_parts)
        mean, clip = torch.stack(parts).mean(0), self.settings.clip
        apply_gradients(weights, self.optimizers, self.processes, self.rate, clip, mean)
        return mean

    def _shares(self) -> Iterable[list[int]]:
        """Yield this process's indices in the batch, one accumulation step at a time."""
        size = self.settings.batch_size // (self.settings.accumulate * self.processes.count)
        for step in range(self.settings.accumulate):
            first = (step * self.processes.count + self.processes.rank) * size
            yield list(range(first, first + size))

    def _loss(self, indices: list[int], number: int) -> tuple[Tensor, Tensor]:
        s = self.settings
        # the whole batch, the same in every process; `indices` picks this one's images
        chosen = batch(s.seed, self.step, s.batch_size, len(self.images))
        images = [self.images[chosen[index]] for index in indices]
        if s.drafter == "block":
            if indices[0] not in self._recorded:
                self._recorded[indices[0]] = self._record(images, indices)
            rows = self._recorded[indices[0]]
            first = number * RECORDED
            varied = [image.passes[first : first + RECORDED] for image in rows]
        else:
            rows = self.rows(images, self._picks(indices))
            rows = rows.to(self.device, self.head.fc.weight.dtype)
            varied = None
            if s.feature_noise:
                shape = torch.Size((len(rows.ids), rows.drafted, self.head.spec.hidden))
                varied = feature_noise(s.seed, self.step, indices, shape, self.device)
                varied = s.feature_noise * varied
        with torch.autocast(self.device.type, torch.bfloat16, enabled=s.precision == "bf16"):
            return self.loss(self.head, rows, varied)

    def _record(self, images: list[int], indices: list[int]) -> list[RecordedImage]:
        """Return images, with the passes that all epochs of the update read."""

        def keep(number: int, passes: Sequence[RecordedPass]) -> list[RecordedPass]:
            random = generator(self.settings.seed, "cpu", "rounds", self.step, indices[number])
            return pick(passes, random, EPOCHS * RECORDED)

        return self.rows(images, keep)

    def _picks(self, indices: list[int]) -> list[int] | None:
        """Return the one guidance row that each image is trained on; None: all rows are."""
        s = self.settings
        if s.guidance_aware:
            return None
        dropped = captionless(s.seed, self.step, s.batch_size)
        # row 0 has the caption, the last one does not
        return [int(dropped[index]) * (s.engine.sampling.guidance - 1) for index in indices]

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


def loss_of(settings: TrainSettings, target: TargetModel) -> EagleLoss | BlockLoss:
    """Return the loss of the drafter's kind."""
    cfg = settings.engine.sampling.cfg if settings.guidance_aware else 1.0
    weights = 1.0, settings.ce_weight, settings.agreement_weight
    levels = DraftLevels.of(target.grid, settings.depths, target.device)
    shift, measure = int(settings.alignment == "inference"), ALIKE[settings.agreement]
    eagle = EagleLoss(target, levels, cfg, weights, shift, measure)
    if settings.drafter == "block":
        return BlockLoss(target, eagle, settings.engine.sampling.temperature == 0)
    return eagle
