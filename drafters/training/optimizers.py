"""What an update does with gradients: learning rate, AdamW or Muon, moving average of weights."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from support.processes import Processes

WEIGHT_DECAY = 0.05
_FLOOR = 0.02  # the last learning rate, as a share of the highest
NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # quintic with the steepest slope at zero (Jordan et al.)


def cosine_lr(progress: float, peak: float, warmup: float = 0.02) -> float:
    """Return the learning rate after a share of a training: linear warm-up, then cosine decay.

    Args:
        progress: share of the training that is done; clipped to [0, 1].
        peak: highest rate, reached at `warmup`.
        warmup: share of the training used by the linear rise.
    """
    progress = min(max(progress, 0.0), 1.0)
    if warmup and progress <= warmup:  # to the end if that is 1
        # not 0, with which the first update would change nothing
        return peak * max(progress / warmup, 0.01)
    angle = math.pi * (progress - warmup) / (1.0 - warmup)
    return peak * (_FLOOR + (1.0 - _FLOOR) * 0.5 * (1.0 + math.cos(angle)))


def orthogonalise(matrix: Tensor) -> Tensor:
    """Return roughly the nearest semi-orthogonal matrix to matrix (m, n).

    Most of its singular values are between 0.7 and 1.2.
    """
    a, b, c = NEWTON_SCHULZ
    # the Gram matrix of the shorter side is the cheaper one
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    # the iteration needs singular values of at most 1; the Frobenius norm bounds them
    x = wide / wide.norm().clamp_min(1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide is matrix else x.T


class Muon(torch.optim.Optimizer):
    """Orthogonalised Nesterov momentum (Jordan et al. 2024, kellerjordan.github.io/posts/muon).

    It takes AdamW's learning rate and weight decay (update size of arXiv 2502.16982).
    torch.optim.Muon always iterates in bf16, which CPUs without AVX-512 emulate at a tenth of the
    speed of fp32.

    matrices: two-dimensional parameters. precision: dtype of the orthogonalisation.
    """

    def __init__(self, matrices: Iterable[Tensor], precision: torch.dtype):
        # momentum: decay of the averaged gradient
        super().__init__(matrices, {"lr": 0.0, "momentum": 0.95, "weight_decay": WEIGHT_DECAY})
        self.precision = precision

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]  # losses are not computed again here
        """Update every parameter that has a gradient."""
        for group in self.param_groups:
            rate, momentum = group["lr"], group["momentum"]
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                if "average" not in self.state[matrix]:
                    self.state[matrix]["average"] = torch.zeros_like(matrix)
                average = self.state[matrix]["average"]
                average.lerp_(matrix.grad, 1 - momentum)
                direction = orthogonalise(matrix.grad.lerp(average, momentum).to(self.precision))
                matrix.mul_(1 - rate * group["weight_decay"])
                # 0.2 sqrt(side) gives updates the root mean square of AdamW's (arXiv 2502.16982)
                matrix.add_(
                    direction.to(matrix.dtype), alpha=-0.2 * rate * max(matrix.shape) ** 0.5
                )


def make_optimizers(model: nn.Module, muon: torch.dtype | None) -> list[torch.optim.Optimizer]:
    """Return AdamW for all trained weights, or Muon for matrices with AdamW for the rest.

    Norms and biases have no weight decay. muon: the dtype that Muon orthogonalises in; None: AdamW
    alone.
    """
    # rows of a table are independent of each other, so they are not orthogonalised
    embeddings = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    matrices: list[nn.Parameter] = []
    tables: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, weight in model.named_parameters():
        # also by name: norms of queries and keys are matrices, with weights for every head
        if weight.requires_grad and (weight.ndim == 1 or "norm" in name):
            plain.append(weight)
        elif weight.requires_grad:
            table = id(weight) in embeddings or name.endswith("head.weight")
            (tables if table else matrices).append(weight)
    decayed = tables if muon else matrices + tables
    groups = [
        {"params": decayed, "weight_decay": WEIGHT_DECAY},
        {"params": plain, "weight_decay": 0.0},
    ]
    # lr=0: `apply_gradients` sets it at every update
    adamw = torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=True)
    return [adamw] if muon is None else [Muon(matrices, muon), adamw]


def apply_gradients(
    weights: Sequence[Tensor],
    optimizers: Sequence[torch.optim.Optimizer],
    processes: Processes,
    rate: float,
    clip: float,
    figure: Tensor,
) -> None:
    """Update weights by the gradients that all processes have computed, a step of each optimiser.

    rate: learning rate. clip: largest norm of the gradients. figure: such as the loss; replaced by
    its mean over the processes.
    """
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    # before clipping, so that every process clips by the same norm
    processes.average([*gradients, figure])
    nn.utils.clip_grad_norm_(weights, clip)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()


class AveragedWeights:
    """The exponential moving average of trained weights.

    values: by name; empty if `decay` is 0.
    """

    def __init__(self, trained: Mapping[str, Tensor], decay: float):
        self.decay, self.trained = decay, trained if decay else {}
        self.restart()

    def restart(self) -> None:
        """Begin with the weights as they are."""
        self.values = {name: weight.detach().clone() for name, weight in self.trained.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Add the weights after update number `step`, counted from 0."""
        # smaller at first, so that the first weights are soon forgotten
        decay = min(self.decay, (step + 1) / (step + 10))
        for name, value in self.values.items():
            value.lerp_(self.trained[name], 1 - decay)

    def load(self, values: dict[str, Tensor]) -> None:
        """Continue with the averages of a checkpoint."""
        for name, value in self.values.items():
            value.copy_(values[name])

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the module its averaged weights for a while."""
        current = {name: self.trained[name].detach().clone() for name in self.values}
        try:
            self._put(self.values)
            yield
        finally:
            self._put(current)

    @torch.no_grad()
    def _put(self, weights: dict[str, Tensor]) -> None:
        for name, value in weights.items():
            self.trained[name].copy_(value)
