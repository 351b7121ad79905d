"""Precision of the tiny-model pipeline."""

import torch


def fast_precision(device: torch.device) -> torch.dtype:
    """bf16 on GPUs and on CPUs with AVX-512, else fp32: CPUs with less emulate bf16 at a tenth of the speed."""
    native = device.type != "cpu" or torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return torch.bfloat16 if native else torch.float32


def fast_autocast(device: torch.device) -> torch.autocast:
    """Autocast to `fast_precision`; does nothing where that is fp32."""
    precision = fast_precision(device)
    return torch.autocast(device.type, torch.bfloat16, enabled=precision == torch.bfloat16)
