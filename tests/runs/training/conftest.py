"""A checkpoint and tokens, shared by the tests of `train_drafter`."""

from pathlib import Path

import pytest
from trainings import write_tokens

from scripts.checkpoints.chameleon import write_checkpoint


@pytest.fixture(scope="module", autouse=True)
def folders(tmp_path_factory, read_once) -> Path:
    root = tmp_path_factory.mktemp("train")
    write_checkpoint(root / "model")
    write_tokens(root / "tokens", "tiny", root / "model", (4, 4))
    return root
