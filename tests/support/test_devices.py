"""Devices by their names, and tokens to pixels on the one that a flag names."""

from dataclasses import replace

import pytest
import torch
from small import small_settings

from configs.fields import SettingsError
from models.codecs.vqgan import ImageTokenizer
from runs.session import open_session
from support.devices import pick_device

CPU = torch.device("cpu")


@pytest.mark.parametrize(("place", "moves"), [("same", []), ("cpu", [CPU])])
def test_tokens_become_pixels_where_the_flag_says(
    place, moves, checkpoint, session, monkeypatch
) -> None:
    """No other device is here: what is tested is that the VQGAN is sent to the CPU,
    and that its pixels stay.
    """
    seen, to = [], ImageTokenizer.to
    monkeypatch.setattr(
        ImageTokenizer, "to", lambda images, device: seen.append(device) or to(images, device)
    )
    settings = replace(small_settings(checkpoint), vq_device=place)
    target = open_session(settings).target
    assert seen == moves
    tokens = torch.arange(16).view(1, 16)
    assert torch.equal(target.to_image(tokens), session.target.to_image(tokens))


@pytest.mark.parametrize(
    ("name", "found"), [("auto", "cuda:0"), ("cuda", "cuda:0"), ("cuda:1", "cuda:1")]
)
def test_devices_have_numbers(name, found, monkeypatch) -> None:
    """torch sets no current device without its number."""
    chosen = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert str(pick_device(name)) == found and chosen == [torch.device(found)]
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert str(pick_device(name)) == ("cuda:1" if name != "cuda:0" else found)
    with pytest.raises(
        SettingsError, match="--device: expected auto or cpu, got 'cuda:2'. PyTorch found 2 GPUs"
    ):
        pick_device("cuda:2")
