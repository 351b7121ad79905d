"""The GPU's attention kernels, run by Triton's interpreter, equal torch's attention."""

import os

import pytest
import torch
import torch.nn.functional as F

kernels = pytest.importorskip("models.cuda_attention", reason="needs Triton, torch's on Linux")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="with a GPU, scripts/gpu/check.sh runs them"
)
# The interpreter multiplies bf16 as if it were integers.
HALF = torch.float16


def test_ends_with_the_tokens_that_an_image_has() -> None:
    """Slots behind them are not read, whatever the mask says of them."""
    random = torch.Generator().manual_seed(0)
    q, keys, values = (torch.randn(2, 2, 80, 64, generator=random).to(HALF) for _ in range(3))
    mask = torch.zeros(2, 1, 1, 80, dtype=HALF)
    found = kernels.attend(q[:, :, :3], keys, values, mask, torch.tensor([50, 70]))
    keys[0, :, 50:] = values[0, :, 50:] = torch.nan
    assert torch.equal(
        kernels.attend(q[:, :, :3], keys, values, mask, torch.tensor([50, 70])), found
    )
    wanted = F.scaled_dot_product_attention(q[:1, :, :3], keys[:1, :, :50], values[:1, :, :50])
    assert (found[:1] - wanted).abs().max() < 4e-3


def test_a_query_that_sees_nothing_reads_zeros() -> None:
    q = torch.ones(1, 1, 2, 64, dtype=HALF)
    mask = torch.tensor([[[[0.0] * 5, [-torch.inf] * 5]]], dtype=HALF)
    keys = torch.ones(1, 1, 5, 64, dtype=HALF)
    read = kernels.attend(q, keys, keys, mask, torch.tensor([5]))
    assert read[0, 0].tolist() == [[1.0] * 64, [0.0] * 64]
