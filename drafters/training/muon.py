"""Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) for matrices, in any precision.

torch.optim.Muon always iterates in bf16, which CPUs without AVX-512 emulate at a tenth of the speed
of fp32.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from drafters.training.schedule import set_lr

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)  # quintic with the steepest slope at zero (Jordan et al.)


def orthogonalise(matrix: Tensor, steps: int = 5) -> Tensor:
    """Return roughly the nearest semi-orthogonal matrix to matrix (m, n).

    Most of its singular values lie in [0.7, 1.2].
    """
    a, b, c = NEWTON_SCHULZ
    # the Gram matrix of the shorter side is the cheaper one
    wide = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T
    # the iteration needs singular values of at most 1; the Frobenius norm bounds them
    x = wide / wide.norm().clamp_min(1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x if wide is matrix else x.T


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised, at AdamW's learning rate and weight decay (update size of
    arXiv 2502.16982).

    Args:
        matrices: two-dimensional parameters.
        lr: learning rate.
        momentum: decay of the averaged gradient.
        weight_decay: decoupled weight decay.
        precision: dtype of the orthogonalisation.
    """

    def __init__(
        self,
        matrices: Iterable[Tensor],
        *,
        lr: float,
        momentum: float,
        weight_decay: float,
        precision: torch.dtype,
    ):
        super().__init__(matrices, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})
        self.precision = precision

    @torch.no_grad()
    def step(self) -> None:
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


def muon_and_adamw(
    model: nn.Module, precision: torch.dtype, weight_decay: float = 0.05
) -> list[torch.optim.Optimizer]:
    """Return Muon for the trained matrices, and AdamW for embedding, head, norms and biases.

    Norms and biases have no weight decay.
    """
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    tables = [p for name, p in trained if name.endswith(("embedding.weight", "head.weight"))]
    plain = [p for name, p in trained if p.ndim == 1 or "qk_norm" in name]
    taken = {id(p) for p in tables + plain}
    matrices = [p for _, p in trained if id(p) not in taken]
    groups = [
        {"params": tables, "weight_decay": weight_decay},
        {"params": plain, "weight_decay": 0.0},
    ]
    return [
        Muon(matrices, lr=0.0, momentum=0.95, weight_decay=weight_decay, precision=precision),
        torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), fused=True),
    ]


def step_all(optimizers: list[torch.optim.Optimizer], rate: float) -> None:
    """Make one step of each optimiser at this learning rate."""
    for optimizer in optimizers:
        set_lr(optimizer, rate)
        optimizer.step()
