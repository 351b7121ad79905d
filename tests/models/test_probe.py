"""Kernels are used where this machine's timings say that they are faster."""

import pytest
import torch
from compilers import needs_compiler

from models import probe
from models.base import TransformerSpec
from models.native import kernels
from models.probe import faster, gains
from models.transformer import Blocks

pytestmark = needs_compiler


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch) -> None:
    """Nothing was measured yet; the library is there."""
    kernels()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    gains.cache_clear()
    yield
    gains.cache_clear()


def test_a_machine_is_measured_once_for_every_type(monkeypatch) -> None:
    fp32 = torch.float32
    measured = gains(fp32, fp32)
    assert measured.keys() == {256, 1024} and min(measured.values()) > 0
    gains.cache_clear()
    monkeypatch.setattr(probe, "_gain", None)  # must not be called again
    assert gains(fp32, fp32) == measured


def test_a_damaged_file_is_measured_again(monkeypatch) -> None:
    monkeypatch.setattr(probe, "_gain", lambda *_: 2.0)
    probe._path().parent.mkdir()
    probe._path().write_text("{")
    assert gains(torch.float64, torch.float64) == {256: 4.0, 1024: 4.0}
    assert '"fp64"' in probe._path().read_text()


def test_a_folder_that_cannot_be_written_is_a_remark(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(probe, "_gain", lambda *_: 2.0)
    (tmp_path / "adt-tree").touch()  # a file where the folder would be
    assert gains(torch.float64, torch.float64) == {256: 4.0, 1024: 4.0}
    assert f"since {probe._path()} cannot be written: File exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("width", "measured", "stored", "chosen"),
    [
        (320, {256: 2.0, 1024: 0.5}, torch.float32, True),
        (1600, {256: 2.0, 1024: 0.5}, torch.bfloat16, False),
        (1600, {256: 0.5, 1024: 1.1}, torch.float16, True),
    ],
)
def test_the_nearest_width_decides(width, measured, stored, chosen, monkeypatch) -> None:
    asked = []
    monkeypatch.setattr(probe, "gains", lambda *types: asked.append(types) or measured)
    spec = TransformerSpec(1, width, 4, layers=1, heads=1, kv_heads=1, max_positions=1)
    assert faster(Blocks(spec).requires_grad_(False).to(stored).float()) == chosen
    assert asked == [(torch.float32, stored)]
