"""Checkpoints that a test may damage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the small checkpoint."""
    return Path(shutil.copytree(checkpoint, tmp_path / "model"))


@pytest.fixture
def llamagen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of 4 x 4 codes, which `llamagen` stands for here."""
    from small_llamagen import write_llamagen

    from models.registry import FAMILIES
    from models.targets.llamagen import LlamaGen

    monkeypatch.setitem(FAMILIES, "llamagen", LlamaGen(4))
    return write_llamagen(tmp_path / "LlamaGen-T2I")
