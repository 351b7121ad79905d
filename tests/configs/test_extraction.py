"""Flags of `extract_tokens`: where codes come from, what goes together, what is refused."""

import json
import shutil
from pathlib import Path

import pytest
from program import extraction_settings, read_words, run_settings
from stand_ins import empty_checkpoint, empty_llamagen

from configs.extraction import JUDGED_FILES
from configs.fields import SettingsError
from configs.schema import ROOT, RunSettings, SamplingSettings
from models.files.identity import checkpoint_id

OWN = ("--output_dir=out", "--from_prompts", "--num_images=3")


@pytest.fixture
def read(tmp_path):
    """The settings that words stand for, with a checkpoint whose files are empty."""
    folder = empty_checkpoint(tmp_path / "model")

    def build(*words: str, data: bool = False):
        given = [*words, f"--model_path={folder}", *([f"--data_dir={tmp_path}"] if data else [])]
        return extraction_settings(read_words("extract_tokens", given))

    return build


def test_own_samples_are_drawn_without_a_drafter_by_default(read):
    found = read(*OWN)
    assert (found.run.engine.method.method, found.run.engine.drafter_path) == ("jacobi", None)
    assert found.num_images == 3
    assert read(*OWN, "--method=eagle_recall", "--depth=4").run.engine.method.depth == 4
    lossless = ("--method=eagle2", "--proposal=topk", "--verifier=rejection")
    assert read(*OWN, *lossless).run.engine.method.lossless


def test_recipes_serve_both(tmp_path, read):
    recipe = tmp_path / "r.yaml"
    recipe.write_text("cfg: 5\ntop_k: 7\ndtype: bf16\nmethod: eagle2\ndepth: 3\n")
    own = read(*OWN, f"--config={recipe}")
    assert (
        own.run.engine.sampling.cfg,
        own.run.engine.sampling.top_k,
        own.run.engine.method.depth,
    ) == (5.0, 7, 3)
    plain = read(*OWN, f"--config={recipe}", "--method=ar")
    assert plain.run.engine.method.depth is None
    of_model = ROOT / "configs" / "anole.yaml"  # whose drafter is not there
    pictures = read("--output_dir=out", f"--config={of_model},{recipe}", data=True).run.engine
    assert (pictures.model, pictures.drafter_path) == ("anole", None)


@pytest.mark.parametrize("file", JUDGED_FILES, ids=lambda path: path.stem)
def test_test_and_validation_prompts_are_not_for_training(read, tmp_path, monkeypatch, file):
    monkeypatch.chdir(tmp_path)  # where the checkout's files are found as well
    link = tmp_path / "mine.txt"
    link.symlink_to(file)
    for path in (file, link, file.relative_to(ROOT)):
        with pytest.raises(SettingsError, match="--prompt: .* models are judged by"):
            read(*OWN, f"--prompt={path}")


def test_a_prompt_may_begin_as_a_home_that_nobody_has(read):
    assert read(*OWN, "--prompt=~ 5 cats").prompt == "~ 5 cats"


@pytest.fixture
def folder(tmp_path) -> Path:
    return empty_llamagen(tmp_path)


def test_parts_lie_next_to_the_folder_unless_flags_say_where(folder, monkeypatch) -> None:
    monkeypatch.chdir(folder.parent)
    for path in (str(folder), folder.name):
        run = RunSettings.of(prompt="a cat", model="llamagen", model_path=path)
        settings = run.engine
        assert settings.text_encoder_path == str(folder.parent / "t5" / "flan-t5-xl")
        assert settings.vq_path == str(folder.parent / "vq_ds16_t2i.pt")
    assert set(run.identity()) >= {"text_encoder_path", "vq_path"}
    hub = RunSettings.of(prompt="a cat", model="llamagen2", model_path="jadohu/LlamaGen-T2I-2")
    assert hub.engine.vq_path == str(ROOT / "ckpts/llamagen/vq_ds16_t2i.pt")
    paths = {"text_encoder_path": "google/flan-t5-xl", "vq_path": str(Path.home() / "vq.pt")}
    given = RunSettings.of(prompt="a cat", model="llamagen", **paths | {"vq_path": "~/vq.pt"})
    assert paths.items() <= vars(given.engine).items()


def test_checkpoints_and_codecs_are_told_by_their_contents(folder) -> None:
    """Wherever they lie, and without what readers get with a checkpoint."""
    codec = folder.parent / "vq_ds16_t2i.pt"
    before = checkpoint_id(folder), checkpoint_id(codec)
    others = ["README.md", "LICENSE", ".DS_Store", ".gitattributes", "notes.txt", "config.json.old"]
    others += ["config.backup.json", "model.backup.safetensors", "model-00001-of-00002.safetensors"]
    for name in (*others, "pytorch_model.bin", "tokenizer/config copy.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("A model.")
        assert (checkpoint_id(folder), checkpoint_id(codec)) == before
    for file in (folder / "config.json", codec):
        file.write_text("{ }")
    assert checkpoint_id(folder) != before[0] and checkpoint_id(codec) != before[1]


def test_shards_count_as_their_index_lists_them(tmp_path) -> None:
    shards = [tmp_path / f"model-{number}.safetensors" for number in (1, 2, 3)]
    for shard in shards:
        shard.write_text("old")
    listed = {"weight_map": {"one": shards[0].name, "two": shards[1].name}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(listed))
    known = checkpoint_id(tmp_path)
    for shard, counts in zip(shards, (True, True, False), strict=True):
        shard.write_text("new")
        assert (checkpoint_id(tmp_path) != known) == counts
        known = checkpoint_id(tmp_path)
    (tmp_path / "model.safetensors").write_text("whole, so the index is left from an earlier save")
    known = checkpoint_id(tmp_path)
    shards[0].unlink()
    assert checkpoint_id(tmp_path) == known


def test_one_changed_weight_is_another_checkpoint(tmp_path) -> None:
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(bytes(3 << 20))
    before = checkpoint_id(tmp_path)
    for place in (0, 1_700_000, (3 << 20) - 1):
        content = bytearray(3 << 20)
        content[place] = 1
        weights.write_bytes(content)
        assert checkpoint_id(tmp_path) != before, place


@pytest.mark.parametrize("stage", ["llamagen", "llamagen2"])
def test_recipes_are_those_of_the_public_sample_script(stage, folder) -> None:
    paths = {"model_path": str(folder), "drafter_path": str(folder / "drafter")}
    given = paths | {"config": f"{ROOT}/configs/{stage}.yaml", "prompt": "a cat"}
    settings = run_settings(given).engine
    assert (settings.model, settings.dtype) == (stage, "bf16")
    assert settings.sampling == SamplingSettings(temperature=1.0, top_k=1000, top_p=1.0, cfg=7.5)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("vq_ds16_t2i.pt", "--vq_path .*does not exist"),
        ("t5", "--text_encoder_path .*expected a folder such as .*t5/flan-t5-xl, or"),
        ("t5/flan-t5-xl/tokenizer.json", "--text_encoder_path .*tokenizer.json or spiece.model"),
        ("t5/flan-t5-xl/model.safetensors", "--text_encoder_path .*without model.safetensors"),
        ("LlamaGen-T2I/model.safetensors", "--model_path .*without model.safetensors"),
        ("LlamaGen-T2I/drafter/pytorch_model.bin", "--drafter_path .*without"),
    ],
)
def test_missing_files_are_named_before_anything_is_loaded(place, message, folder) -> None:
    path = folder.parent / place
    path.unlink() if path.is_file() else shutil.rmtree(path)
    with pytest.raises(SettingsError, match=message):
        run_settings({"prompt": "a cat", "model": "llamagen", "model_path": str(folder)})
