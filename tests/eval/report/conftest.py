"""Runs of the tiny domain, made without a model."""

from pathlib import Path

import pytest
from made_runs import scenes, write_pair

COUNT = 24


@pytest.fixture(scope="module")
def drawn():
    return scenes(COUNT)


@pytest.fixture
def folders(tmp_path, drawn) -> tuple[Path, Path]:
    return write_pair(tmp_path, *drawn, "relaxed")
