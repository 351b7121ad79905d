"""A checkpoint and tokens, shared by the tests of `train_drafter`."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from small import write_checkpoint
from trainings import write_tokens


@pytest.fixture(autouse=True, scope="package")
def drawings() -> Iterator[list[tuple]]:
    """Lines and place of every picture, none of which is drawn: it takes longer than a training."""
    given: list[tuple] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runs.training.train.draw_curves", lambda *what: given.append(what))
        yield given


@pytest.fixture
def drawn(drawings) -> list[tuple]:
    """Those of this test."""
    drawings.clear()
    return drawings


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("train")
    write_checkpoint(root / "model")
    write_tokens(root / "tokens", "tiny", root / "model", (4, 4))
    return root
