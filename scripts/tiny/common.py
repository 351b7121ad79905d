"""Precision of the tiny-model pipeline."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel


def fast_precision(device: torch.device) -> torch.dtype:
    """bf16 on GPUs and on CPUs with AVX-512, else fp32: CPUs with less emulate bf16 at a tenth of the speed."""
    native = device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def fast_autocast(device: torch.device) -> torch.autocast:
    """Autocast to `fast_precision`; does nothing where that is fp32."""
    precision = fast_precision(device)
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == torch.bfloat16)


def fast_attention(device: torch.device) -> AbstractContextManager:
    """Attention by plain products on CPUs, where torch's own kernel takes twice their time in training; the default
    elsewhere."""
    if device.type != "cpu":
        return nullcontext()
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)  # read on CPUs, too: products stay in bf16
    return sdpa_kernel(SDPBackend.MATH)
