"""A small LlamaGen that a test may damage."""

from pathlib import Path

import pytest


@pytest.fixture
def llamagen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of 4 x 4 codes, which `llamagen` stands for here."""
    from small_llamagen import write_llamagen

    from models.registry import FAMILIES
    from models.targets.llamagen import LlamaGen

    monkeypatch.setitem(FAMILIES, "llamagen", LlamaGen(4))
    return write_llamagen(tmp_path / "LlamaGen-T2I")
