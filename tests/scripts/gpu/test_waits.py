"""How waits for the device are refused, on a machine without one: CUDA's switch is replaced."""

import sys

import pytest
import torch

import decoding.figures
from decoding import transfer
from scripts.gpu.tokens import refusing_waits


@pytest.fixture
def modes(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The modes that CUDA was asked for, in turn."""
    found: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", found.append)
    return found


def test_the_announced_transfer_may_wait_and_nothing_else(modes: list[str]) -> None:
    with refusing_waits():
        assert modes == ["error"]
        assert decoding.figures.to_host(torch.tensor([1, 2])) == [1, 2]
        assert modes == ["error", "default", "error"]
    assert modes[-1] == "default"


def test_all_is_as_before_after_a_fault(modes: list[str]) -> None:
    with pytest.raises(RuntimeError, match="waited"), refusing_waits():
        raise RuntimeError("waited")
    assert modes[-1] == "default"
    own = [module for name, module in sys.modules.items() if name.startswith("decoding.")]
    users = [module for module in own if hasattr(module, "to_host")]
    assert len(users) > 2
    assert all(module.to_host is transfer.to_host for module in users)
