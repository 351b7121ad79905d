"""A checkpoint and tokens, shared by the tests of `train_drafter`."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from trainings import write_tokens

from models.registry import load_target
from scripts.checkpoints.chameleon import write_checkpoint


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("train")
    write_checkpoint(root / "model")
    write_tokens(root / "tokens", "tiny", root / "model", (4, 4))
    return root


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """All trainings of a file share a target, which none of them changes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runs.session.load_target", cache(load_target))
        yield
