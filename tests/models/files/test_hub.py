"""Folders and hub ids: what is neither is named, and nothing is fetched offline."""

from __future__ import annotations

import huggingface_hub
import pytest
import torch
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError
from said import without_progress

import main
from models.base import TargetOptions
from models.files.folders import checkpoint_folder
from models.registry import load_target


@pytest.mark.parametrize("path", ["./nowhere", "/nowhere/at/all", "nowhere", "a/b/c"])
def test_a_path_that_is_no_folder_names_the_flag(path) -> None:
    with pytest.raises(ValueError, match="--model_path.*nowhere|--model_path.*a/b/c"):
        checkpoint_folder(path, "--model_path")


@pytest.mark.parametrize("offline", [True, False])
def test_a_hub_id_without_network_names_the_flag(offline, monkeypatch, tmp_path) -> None:
    asked = []

    def snapshot(path: str, local_files_only: bool, ignore_patterns: tuple[str, ...]) -> str:
        asked.append(local_files_only)
        raise LocalEntryNotFoundError("no route")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    why = (
        "HF_HUB_OFFLINE is set: `hf download nobody/nothing`"
        if offline
        else "the hub did not deliver it: no route. Download it .* `hf download nobody/nothing "
    )
    with pytest.raises(
        ValueError, match=f"--model_path: 'nobody/nothing' is no folder.*{tmp_path}; {why}"
    ):
        checkpoint_folder("nobody/nothing", "--model_path")
    assert asked == [offline]


def test_an_empty_cache_offline_is_one_line_of_the_command(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    words = "generate_images --model=anole --model_path=nobody/nothing --method=ar --prompt=cat"
    assert main.main([*words.split(), f"--output_dir={tmp_path / 'out'}"]) == 2
    told = without_progress(capsys.readouterr().err)
    assert told.count("\n") == 1 and "HF_HUB_OFFLINE is set" in told
    assert "--model_path: 'nobody/nothing'" in told


def test_a_snapshot_in_the_cache_is_read_offline(monkeypatch, checkpoint, tmp_path) -> None:
    def snapshot(path: str, local_files_only: bool, ignore_patterns: tuple[str, ...]) -> str:
        assert (path, local_files_only) == ("owner/name", True)
        return str(checkpoint)

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert checkpoint_folder("owner/name", "--model_path") == checkpoint
    assert (
        load_target(
            "anole", "owner/name", TargetOptions(torch.float32, torch.device("cpu"))
        ).vocab.size
        == 24
    )


def test_a_path_that_is_no_hub_id_either_names_the_flag() -> None:
    with pytest.raises(ValueError, match="--drafter_path.*my model/x"):
        checkpoint_folder("my model/x", "--drafter_path")
