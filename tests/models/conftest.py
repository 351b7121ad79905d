"""Small checkpoints of every layout, each written and opened once; tests read them only."""

from pathlib import Path

import pytest
from families import SMALL, Once

from runs.session import Session


@pytest.fixture(scope="session")
def originals(tmp_path_factory) -> dict[str, Path]:
    """Whole folders by layout, each in a folder of its own."""
    return Once(lambda name: SMALL[name].write(tmp_path_factory.mktemp("family")))


@pytest.fixture(scope="session")
def opened(originals) -> dict[str, Session]:
    """Their sessions in fp64, by layout."""
    return Once(lambda name: SMALL[name].open(SMALL[name].settings(originals[name])))
