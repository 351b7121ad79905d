"""`train_drafter --cache_features`: the same losses, and no folder of other features."""

from types import SimpleNamespace

import pytest
from families import SMALL
from safetensors.torch import load_file
from trainings import CAPTIONS, LAYOUTS, open_training, run, write_tokens

from configs.fields import SettingsError
from drafters.training.features import cached
from support.processes import Processes


def test_cached_features_give_the_same_losses(folders, tmp_path) -> None:
    cache = tmp_path / "features"
    fresh = run(folders, tmp_path / "fresh", steps=3)
    kept = run(folders, tmp_path / "kept", steps=3, cache_features=cache)
    for a, b in zip(fresh, kept, strict=True):
        expected = a["regression"] + a["cross_entropy"]
        assert b["regression"] + b["cross_entropy"] == pytest.approx(expected, rel=2e-3)
    times = {path: path.stat().st_mtime_ns for path in cache.glob("[!.]*")}
    assert run(folders, tmp_path / "again", steps=3, cache_features=cache) == kept
    assert len(times) == 3, "about.json and two shards"
    again = {path: path.stat().st_mtime_ns for path in cache.glob("[!.]*")}
    assert again == times, "nothing is computed again"


def test_a_cache_holds_the_images_that_are_used(folders, tmp_path, capsys) -> None:
    """Others are added later, to the same files, and none is computed again."""
    cache = {"cache_features": tmp_path / "cache"}
    few = run(folders, tmp_path / "few", train_images=4, **cache)
    said = capsys.readouterr().err
    assert "training a drafter on 4 images of " in said and "features of 6 images into " in said
    run(folders, tmp_path / "all", **cache)
    assert "features of 18 images into " in capsys.readouterr().err
    assert run(folders, tmp_path / "again", train_images=4, **cache) == few
    assert "features of" not in capsys.readouterr().err
    held = [name for path in cache["cache_features"].glob("rows-*") for name in load_file(path)]
    assert {f"{image}.features" for image in range(24)} <= {*held} and len(held) == 24 * 4


def test_a_cache_without_room_or_of_other_tokens_is_refused(
    folders, tmp_path, monkeypatch, capsys
) -> None:
    usage = "drafters.training.features.shutil.disk_usage"
    monkeypatch.setattr(usage, lambda _: SimpleNamespace(free=1000))
    with pytest.raises(SettingsError, match="--cache_features.*bytes free"):
        open_training(folders, tmp_path / "out", cache_features=tmp_path / "cache")
    prompts = [len(f"{CAPTIONS[n % 4]} {n // 4}") + 3 for n in range(24)]
    assert f"{2 * 2 * 32 * sum(n + 15 for n in prompts):,} bytes" in capsys.readouterr().err
    monkeypatch.undo()
    other = write_tokens(tmp_path / "tokens", "tiny", folders / "model", (4, 4), 12)
    open_training(folders, tmp_path / "out", cache_features=tmp_path / "cache")
    cases = [
        ({"tokens": other}, "of tokens"),
        ({"precision": "bf16"}, "of precision 'fp32', not 'bf16'"),
        ({"target_layers": "1"}, r"of layers None, not \[1\]"),
    ]
    for changed, message in cases:
        with pytest.raises(SettingsError, match=f"--cache_features.*{message}"):
            open_training(folders, tmp_path / "out", cache_features=tmp_path / "cache", **changed)


def test_a_cache_of_another_negative_prompt_is_refused(tmp_path) -> None:
    """Emu3's unconditional row holds it, so features differ."""
    folder = SMALL["emu3"].write(tmp_path)
    write_tokens(tmp_path / "tokens", "emu3", folder, (4, 4), 8)
    more = {"model": "emu3", "model_path": folder, "cache_features": tmp_path / "cache"}
    more |= {"holdout": 2, "batch_size": 2} | LAYOUTS["emu3"]
    open_training(tmp_path, tmp_path / "out", **more, negative_prompt="blurry")
    with pytest.raises(SettingsError, match="negative_prompt 'blurry', not 'dark'"):
        open_training(tmp_path, tmp_path / "out", **more, negative_prompt="dark")


def test_processes_that_do_not_share_a_folder_are_refused(folders, tmp_path) -> None:
    """As those on several machines, each with a disk of its own; so are those of other tokens."""

    def beside(seen: object, rank: int = 1) -> Processes:
        return Processes(rank, 2, gather=lambda own: [
            own, seen if type(own) is type(seen) else own])  # fmt: skip

    cache = tmp_path / "cache"
    with pytest.raises(SettingsError, match="--tokens: expected the same tokens in all processes"):
        open_training(folders, tmp_path / "out", beside("other"), cache_features=cache)
    assert not cache.exists(), "features of other tokens would stay in it"
    training = open_training(folders, tmp_path / "out", beside((2, False)))
    with pytest.raises(SettingsError, match="--output_dir: expected a folder that all processes"):
        training.run()

    def fill(processes: Processes, **source: str) -> None:
        cached(training.trainer.lessons.rows, [0], cache, source, processes, training.progress)

    for processes in (beside(True), beside([0, 1], 0)):
        with pytest.raises(SettingsError, match="--cache_features: expected a folder that all pr"):
            fill(processes)
    with pytest.raises(SettingsError, match="--cache_features: .*this one is of tokens None"):
        fill(beside(None), tokens="other")
