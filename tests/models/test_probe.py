"""Kernels are used where this machine's timings say that they are faster."""

from __future__ import annotations

import pytest
import torch
from compilers import needs_compiler

from models import probe
from models.base import TransformerSpec
from models.native import find_compiler, kernels, library_path
from models.probe import Timing, faster, timings
from models.transformer import Blocks

pytestmark = needs_compiler


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch) -> None:
    """Nothing was measured yet; the library is there."""
    kernels()
    path = library_path(find_compiler())
    monkeypatch.setattr(probe, "kernels", kernels)
    monkeypatch.setattr(probe, "library_path", lambda compiler: tmp_path / path.name)
    timings.cache_clear()
    yield
    timings.cache_clear()


def test_a_machine_is_measured_once_for_every_type(monkeypatch) -> None:
    fp32 = torch.float32
    rows = timings(fp32, fp32)
    assert len(rows) == 4 and all(row.kernels > 0 and row.torch > 0 for row in rows)
    timings.cache_clear()
    monkeypatch.setattr(probe, "_measure", None)  # must not be called again
    assert timings(fp32, fp32) == rows


def test_a_damaged_file_is_measured_again(monkeypatch) -> None:
    row = Timing(256, 1, kernels=1.0, torch=2.0)
    monkeypatch.setattr(probe, "_measure", lambda *_: row)
    probe._path().write_text("{")
    assert timings(torch.float64, torch.float64) == (row,) * 4
    assert '"fp64"' in probe._path().read_text()


@pytest.mark.parametrize(
    ("width", "gains", "stored", "chosen"),
    [
        (320, {256: (2.0, 1.0), 1024: (0.5, 0.5)}, torch.float32, True),
        (1600, {256: (2.0, 1.0), 1024: (0.5, 0.5)}, torch.bfloat16, False),
        (1600, {256: (0.5, 0.5), 1024: (0.9, 1.2)}, torch.float16, True),
    ],
)
def test_the_nearest_width_decides_over_few_and_many_tokens(
    width, gains, stored, chosen, monkeypatch
) -> None:
    rows = tuple(
        Timing(measured, tokens, 1.0, speedup)
        for measured, speedups in gains.items()
        for tokens, speedup in zip((1, 16), speedups, strict=True)
    )
    asked = []
    monkeypatch.setattr(probe, "timings", lambda *types: asked.append(types) or rows)
    spec = TransformerSpec(1, width, 4, layers=1, heads=1, kv_heads=1, max_positions=1)
    assert faster(Blocks(spec).requires_grad_(False).to(stored).float()) == chosen
    assert asked == [(torch.float32, stored)]
