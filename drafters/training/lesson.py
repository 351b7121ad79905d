"""One update of a drafter: share of the batch, loss, gradients, optimiser, averaged weights."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from configs.training import TrainSettings
from drafters.eagle import EagleHead
from drafters.training.block_loss import BlockLoss
from drafters.training.features import Rower
from drafters.training.losses import ALIKE, EagleLoss, Levels
from drafters.training.muon import muon_and_adamw, step_all
from drafters.training.order import batch, captionless, feature_noise, generator
from drafters.training.schedule import cosine_lr
from models.base import TargetModel
from support.crew import Crew


class Lessons:
    """A head in training next to its frozen target; `state` holds what the next update needs."""

    def __init__(
        self,
        settings: TrainSettings,
        target: TargetModel,
        head: EagleHead,
        source: tuple[Rower, list[int]],
        crew: Crew,
    ):
        """source: where rows come from, and the numbers of the images to train on."""
        self.settings, self.head, self.crew = settings, head, crew
        self.rows, self.images = source
        self.device = target.device
        self.trained = {name: p for name, p in head.named_parameters() if p.requires_grad}
        self.average = (
            {name: p.detach().clone() for name, p in self.trained.items()} if settings.ema else {}
        )
        self.optimizers = optimizers_of(settings, head)
        self.loss = loss_of(settings, target)
        self.step = 0

    @property
    def rate(self) -> float:
        """Learning rate of the next update."""
        done = (self.step + 1) / self.settings.steps
        return cosine_lr(done, self.settings.lr, self.settings.warmup)

    def update(self) -> Tensor:
        """Make the next update; returns the loss's parts (levels, 3), means over the batch."""
        parts = []
        for parameter in self.trained.values():
            parameter.grad = None
        for indices in self._shares():
            loss, loss_parts = self._loss(indices)
            (loss / self.settings.accumulate).backward()
            parts.append(loss_parts)
        mean = torch.stack(parts).mean(0)
        gradients = [parameter.grad for parameter in self.trained.values()]
        # before clipping, so that every process clips by the same norm
        self.crew.average([*gradients, mean])
        nn.utils.clip_grad_norm_(self.trained.values(), self.settings.clip)
        step_all(self.optimizers, self.rate)
        for name, value in self.average.items():
            # smaller at first, so that the first weights are soon forgotten
            decay = min(self.settings.ema, (self.step + 1) / (self.step + 10))
            value.lerp_(self.trained[name].detach(), 1 - decay)
        self.step += 1
        return mean

    def _shares(self) -> Iterable[list[int]]:
        """Yield this process's places in the batch, one accumulation step at a time."""
        size = self.settings.batch_size // (self.settings.accumulate * self.crew.count)
        for step in range(self.settings.accumulate):
            first = (step * self.crew.count + self.crew.rank) * size
            yield list(range(first, first + size))

    def _loss(self, indices: list[int]) -> tuple[Tensor, Tensor]:
        s = self.settings
        # the whole batch, the same in every process; `indices` picks this one's images
        chosen = batch(s.seed, self.step, s.batch_size, len(self.images))
        picks = None
        if not s.guidance_aware:
            dropped = captionless(s.seed, self.step, s.batch_size)
            # row 0 has the caption, the last one does not
            picks = [int(dropped[index]) * (s.guidance - 1) for index in indices]
        rows = self.rows([self.images[chosen[index]] for index in indices], picks)
        if s.drafter == "block":
            picked = generator(s.seed, "cpu", "rounds", self.step, *indices)
            with torch.autocast(self.device.type, torch.bfloat16, enabled=s.precision == "bf16"):
                return self.loss(self.head, rows, picked)
        rows = rows.to(self.device, self.head.fc.weight.dtype)
        noise = None
        if s.feature_noise:
            shape = torch.Size((len(rows.ids), rows.drafted, self.head.spec.hidden))
            noise = s.feature_noise * feature_noise(s.seed, self.step, indices, shape, self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=s.precision == "bf16"):
            return self.loss(self.head, rows, noise)

    @contextmanager
    def averaged(self) -> Iterator[EagleHead]:
        """Give the head its averaged weights for a while."""
        # copies, since `_put` overwrites the trained weights in place
        current = {name: self.trained[name].detach().clone() for name in self.average}
        try:
            self._put(self.average)
            yield self.head
        finally:
            self._put(current)

    @torch.no_grad()
    def _put(self, weights: dict[str, Tensor]) -> None:
        """Overwrite trained weights by name."""
        for name, value in weights.items():
            self.trained[name].copy_(value)

    def state(self) -> dict[str, object]:
        """Return everything that the next update depends on."""
        return {
            "step": self.step,
            "weights": {name: parameter.detach() for name, parameter in self.trained.items()},
            "average": self.average,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }

    def load(self, state: dict[str, object]) -> None:
        """Continue from a `state`; a ValueError if its weights are those of another drafter."""
        shapes, wanted = (
            {name: tuple(weight.shape) for name, weight in weights.items()}
            for weights in (state["weights"], self.trained)
        )
        if shapes != wanted:
            raise ValueError("weights of other names or shapes")
        self.step = state["step"]
        self._put(state["weights"])
        for name, value in self.average.items():
            value.copy_(state["average"][name])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def loss_of(settings: TrainSettings, target: TargetModel) -> EagleLoss | BlockLoss:
    """Return the loss of the drafter's kind."""
    cfg = settings.sampling.cfg if settings.guidance_aware else 1.0
    weights = 1.0, settings.ce_weight, settings.agreement_weight
    if settings.drafter == "block":
        return BlockLoss(target, cfg, weights, settings.sampling.temperature == 0)
    levels = Levels.of(target.grid, settings.depths, target.device)
    shift, measure = int(settings.alignment == "inference"), ALIKE[settings.agreement]
    return EagleLoss(target, levels, cfg, weights, shift, measure)


def optimizers_of(settings: TrainSettings, head: EagleHead) -> list[torch.optim.Optimizer]:
    """Return AdamW, which does not decay norms and biases; or Muon for matrices with AdamW."""
    if settings.optimizer == "muon":
        precision = torch.bfloat16 if settings.precision == "bf16" else torch.float32
        return muon_and_adamw(head, precision)
    trained = [(name, p) for name, p in head.named_parameters() if p.requires_grad]
    plain = [p for name, p in trained if p.ndim == 1 or "norm" in name]
    taken = {id(p) for p in plain}
    groups = [
        {"params": [p for _, p in trained if id(p) not in taken], "weight_decay": 0.05},
        {"params": plain, "weight_decay": 0.0},
    ]
    # lr=0: `step_all` sets it at every update
    return [torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=True)]
