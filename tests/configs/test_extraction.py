"""Flags of `extract_tokens`: where codes come from, what goes together, what is refused."""

from pathlib import Path

import pytest
from stand_ins import empty_checkpoint, empty_llamagen

from configs.command_line import read_words
from configs.extraction import JUDGED_FILES
from configs.fields import SettingsError
from configs.schema import ROOT
from runs.commands import extraction_settings

OWN = ("--from_prompts", "--num_images=3")


@pytest.fixture
def read(tmp_path):
    """The settings that words stand for, with a checkpoint whose files are empty."""
    folder = empty_checkpoint(tmp_path / "model")

    def build(*words: str, data: bool = False):
        given = [*words, f"--data_dir={tmp_path}"] if data else list(words)
        given += [f"--model_path={folder}"] if "--model=llamagen" not in given else []
        return extraction_settings(read_words("extract_tokens", given))

    return build


def test_images_need_no_method(read, tmp_path):
    found = read("--output_dir=out", data=True)
    assert (found.data_dir, found.output_dir, found.from_prompts) == (str(tmp_path), "out", False)
    assert not found.run.method.drafted and found.run.drafter_path is None


def test_own_samples_are_drawn_without_a_drafter_by_default(read):
    found = read("--output_dir=out", *OWN)
    assert (found.run.method.method, found.run.drafter_path) == ("jacobi", None)
    assert found.num_images == 3
    own = ("--output_dir=out", *OWN)
    assert read(*own, "--method=eagle_recall", "--window=4").run.method.window == 4
    lossless = ("--method=eagle2", "--proposal=topk", "--verifier=rejection")
    assert read(*own, *lossless).run.method.lossless


def test_recipes_serve_both(tmp_path, read):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("cfg: 5\ntop_k: 7\ndtype: bf16\nmethod: eagle2\ndepth: 3\n")
    own = read("--output_dir=out", *OWN, f"--config={recipe}")
    assert (own.run.sampling.cfg, own.run.sampling.top_k, own.run.method.depth) == (5.0, 7, 3)
    assert (
        read("--output_dir=out", *OWN, f"--config={recipe}", "--method=ar").run.method.depth is None
    )
    assert read("--output_dir=out", f"--config={recipe}", data=True).run.drafter_path is None


@pytest.mark.parametrize("recipe", ["tiny", "llamagen"])
def test_the_models_recipes_are_accepted(tmp_path, monkeypatch, recipe):
    llamagen = recipe == "llamagen"
    folder = empty_llamagen(tmp_path) if llamagen else empty_checkpoint(tmp_path / "model")
    words = [f"--config={ROOT / 'configs' / recipe}.yaml", f"--model_path={folder}"]
    words += ["--output_dir=out", f"--data_dir={tmp_path}"]
    assert extraction_settings(read_words("extract_tokens", words)).run.model == recipe


@pytest.mark.parametrize("file", JUDGED_FILES, ids=lambda path: path.stem)
def test_test_and_validation_prompts_are_not_for_training(read, tmp_path, file):
    link = tmp_path / "mine.txt"
    link.symlink_to(file)
    for path in (file, link):
        with pytest.raises(SettingsError, match="--prompt: .* models are judged by"):
            read("--output_dir=out", *OWN, f"--prompt={path}")


def test_images_and_shards_lie_in_two_folders(read, tmp_path):
    with pytest.raises(SettingsError, match="--output_dir: .* another folder than --data_dir"):
        read(f"--output_dir={tmp_path}/", data=True)
    assert not Path("out").exists()
