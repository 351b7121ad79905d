"""Fixtures that several folders share: a small checkpoint on disk, opened as a command opens it."""

import gc
import os
import shutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # not everyone who runs the tests has a browser
    from playwright.sync_api import Browser

# What torch asks when it is imported: small networks are faster on one thread, and without a GPU
# kernels of Triton are interpreted.
os.environ["OMP_NUM_THREADS"] = "1"
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
gc.set_threshold(50_000)  # the default looks through torch and transformers for 6 % of the time


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One worker takes a file, whose tests share fixtures, or a group that a test names itself."""
    for item in items:
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(str(item.path)))


@pytest.fixture(scope="module")
def chromium() -> "Iterator[Browser]":
    """The browser that tests drive; they import playwright only where there is one."""
    from browser import BROWSER
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(autouse=True, scope="session")
def drawings() -> Iterator[list[tuple]]:
    """Lines and place of every picture of a training; none is drawn, since that takes long."""
    given: list[tuple] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runs.training.curves.draw_curves", lambda *what: given.append(what))
        yield given


@pytest.fixture
def drawn(drawings) -> list[tuple]:
    """The `drawings` of this test."""
    drawings.clear()
    return drawings


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random checkpoint in the public format; tests read it only."""
    from scripts.checkpoints.chameleon import write_checkpoint

    return write_checkpoint(tmp_path_factory.mktemp("small") / "checkpoint")


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of the small checkpoint that a test may change."""
    return Path(shutil.copytree(checkpoint, tmp_path / "model"))


@pytest.fixture(scope="session")
def lumina_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Lumina-mGPT checkpoint; tests read it only."""
    from small import LUMINA

    from scripts.checkpoints.chameleon import write_checkpoint

    return write_checkpoint(tmp_path_factory.mktemp("lumina") / "checkpoint", LUMINA)


@pytest.fixture(scope="session")
def session(checkpoint: Path):
    """The small checkpoint in fp64: target and drafter."""
    from small import small_settings

    from runs.session import open_session

    return open_session(small_settings(checkpoint))


@pytest.fixture(scope="session")
def session32(checkpoint: Path):
    """The small checkpoint in fp32."""
    from small import small_settings

    from runs.session import open_session

    return open_session(small_settings(checkpoint, "fp32"))


@pytest.fixture(scope="module")
def read_once() -> Iterator[None]:
    """All sessions of a file share a target, which none of them changes."""
    from models.registry import load_target

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("runs.session.load_target", cache(load_target))
        yield


@pytest.fixture
def plain_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """All operations are torch's, as on a GPU, where a test follows or counts them."""
    import torch

    from models.transformer import Blocks, run_by_torch

    monkeypatch.setattr(Blocks, "forward", run_by_torch)
    monkeypatch.setattr("models.cpu.linear.Linear.forward", torch.nn.Linear.forward)


@pytest.fixture
def llamagen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A LlamaGen of 4 x 4 codes, which `llamagen` stands for here, and which a test may damage."""
    from small_llamagen import put_llamagen

    from scripts.checkpoints.llamagen import write_llamagen

    put_llamagen(monkeypatch, "llamagen", 4)
    return write_llamagen(tmp_path / "LlamaGen-T2I")
