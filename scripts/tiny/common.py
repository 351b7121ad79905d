"""Precision of the pipeline: bf16 where it is fast."""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel


def fast_precision(device: torch.device) -> torch.dtype:
    """Return bf16 on GPUs and on CPUs that have it, else fp32.

    Other CPUs emulate bf16 at a tenth of the speed.
    """
    native = device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def fast_autocast(device: torch.device) -> torch.autocast:
    """Return autocast to `fast_precision`; it does nothing where that is fp32."""
    precision = fast_precision(device)
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == torch.bfloat16)


def fast_attention(device: torch.device) -> AbstractContextManager:
    """Return a context that computes attention by plain matrix products on CPUs.

    There torch's own kernel takes twice as long in training. Elsewhere nothing changes.
    """
    if device.type != "cpu":
        return nullcontext()
    # read on CPUs too: products stay in bf16
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    return sdpa_kernel(SDPBackend.MATH)


class FloatGroupNorm(nn.GroupNorm):
    """Group norm in fp32 inside bf16 autocast; its bf16 backward is several times slower on
    CPUs.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (n, c, h, w) and return the input's dtype."""
        hidden = F.group_norm(input.float(), self.num_groups, self.weight, self.bias, self.eps)
        return hidden.to(input.dtype)


def with_float_norms(model: nn.Module) -> nn.Module:
    """Change the group norms of a network to FloatGroupNorm, in place; returns the network."""
    for module in model.modules():
        if isinstance(module, nn.GroupNorm):
            module.__class__ = FloatGroupNorm
    return model
