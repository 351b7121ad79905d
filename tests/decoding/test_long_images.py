"""Noise and stale predictions are kept in windows, from which rounds are those of whole tables."""

import pytest
import torch
from families import images_of
from small import open_lumina

from configs.methods import MethodSettings
from decoding.noise import NoiseShape
from decoding.noise_table import NoiseTable
from runs.session import Session

CPU = torch.device("cpu")
REMEMBERING = [
    MethodSettings("jacobi", window=5),
    MethodSettings("jacobi", window=9, guess="left"),
    MethodSettings("recall", depth=4, width=3, nodes=12),
]


@pytest.fixture(scope="module")
def session(lumina_folder) -> Session:
    """Images of 6 x 8 tokens with row ends."""
    return open_lumina(lumina_folder, "128x96")


@pytest.mark.parametrize("method", REMEMBERING, ids=lambda m: f"{m.method} {m.guess}")
def test_windows_of_predictions_give_the_same_rounds(method, session, monkeypatch) -> None:
    """Against a drafter that keeps the predictions of all positions; also the drafts are equal."""
    window = [image.target_forwards for image in images_of(session, method)]
    monkeypatch.setattr("drafters.jacobi.kept_rows", lambda grid, reach: grid.tokens)
    assert window == [image.target_forwards for image in images_of(session, method)]
    assert max(window) < 48  # drafts are accepted


def shape(positions: int, width: int = 32768, reach: int = 59) -> NoiseShape:
    return NoiseShape(positions, width, False, torch.float32, CPU, reach)


def test_large_tables_are_windows_and_small_ones_whole() -> None:
    """64 MiB: whole for Anole and Janus-Pro; for Emu3 512 of 8,100 positions."""
    assert shape(1024, 8192).rows == 1024 and shape(576, 16384).rows == 576
    assert shape(8100).rows == 512 and shape(8100, reach=1000).rows == 1064
    greedy = NoiseShape(8100, 32768, True, torch.float32, CPU, 59)
    assert NoiseTable(greedy, 2).table.shape == (2, 8100, 1)
