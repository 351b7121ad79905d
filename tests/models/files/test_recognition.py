"""A folder of one model under another one's name is refused by the name of what it holds."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from small import small_settings
from small_emu3 import write_emu3
from small_emu3_5 import write_emu3_5
from small_janus import write_janus
from small_liquid import write_liquid
from small_llamagen import write_llamagen
from small_lumina2 import write_lumina2

import main
from configs.methods import MethodSettings
from models.files.recognition import refuse_other_model
from runs.session import open_session


def change(folder: Path, **entries: object) -> Path:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))
    return folder


def with_norms(folder: Path) -> Path:
    """Add the norms of queries that Emu3.5 has and Emu3 has not."""
    path = folder / "model.safetensors"
    weights = load_file(path)
    key = next(key for key in weights if "q_proj" in key)
    save_file(weights | {key.replace("q_proj", "q_norm"): weights[key][0].clone()}, path)
    return folder


@pytest.mark.parametrize(
    ("model", "write", "message"),
    [
        ("anole", lambda p, c: write_janus(p / "a"), "holds Janus-Pro, .*use --model janus_pro"),
        ("emu3", lambda p, c: write_janus(p / "a"), "holds Janus-Pro"),
        ("emu3", lambda p, c: c, "for --model emu3, got 'chameleon'"),
        ("janus_pro", lambda p, c: c, "for --model janus_pro, got 'chameleon'"),
        ("janus_pro", lambda p, c: write_emu3(p / "a"), "holds Emu3, .*use --model emu3"),
        ("anole", lambda p, c: write_llamagen(p), "LlamaGen, .*--model llamagen or --model llam"),
        ("emu3", lambda p, c: with_norms(write_emu3(p / "a")), "holds Emu3.5, .*--model emu3_5"),
        ("emu3", lambda p, c: write_emu3_5(p / "a"), "holds Emu3.5, .*use --model emu3_5"),
        ("emu3_5", lambda p, c: write_emu3(p / "a"), "holds Emu3, .*use --model emu3"),
        ("emu3_5", lambda p, c: c, "for --model emu3_5, got 'chameleon'"),
        (
            "emu3",
            lambda p, c: change(write_emu3(p / "a"), text_config={"vocab_size": 282926}),
            "holds Emu3.5",
        ),
        ("emu3", lambda p, c: write_emu3(p / "Emu3-Chat-hf"), "holds Emu3-Chat"),
        (
            "emu3",
            lambda p, c: change(write_emu3(p / "a"), model_type="Emu3", vocab_size=282926),
            "holds Emu3.5",
        ),
        ("anole", lambda p, c: write_liquid(p / "a"), "holds Liquid, .*use --model liquid"),
        ("janus_pro", lambda p, c: write_liquid(p / "a"), "holds Liquid, .*use --model liquid"),
        ("liquid", lambda p, c: write_janus(p / "a"), "holds Janus-Pro, .*use --model janus_pro"),
        ("liquid", lambda p, c: c, "for --model liquid, got 'chameleon'"),
        ("liquid", lambda p, c: c.rename(p / "Anole-7b-v0.1-hf"), "use --model anole"),
        (
            "liquid",
            lambda p, c: change(write_liquid(p / "a"), vocab_size=256_000),
            "vocab_size is 256000, the weights hold 287",
        ),
        (
            "anole",
            lambda p, c: change(c, model_type="glm_image"),
            "GLM-Image, .*--model glm_image",
        ),
        ("anole", lambda p, c: c.rename(p / "SimpleAR-1.5B-RL"), "holds SimpleAR, .*no --model"),
        (
            "lumina_mgpt",
            lambda p, c: change(write_lumina2(p / "a"), vocab_size=171_385),
            "use --model lumina_mgpt2",
        ),
        ("anole", lambda p, c: write_lumina2(p / "Lumina-mGPT2-mine"), "use --model lumina_mgpt2"),
        ("lumina_mgpt2", lambda p, c: c, "expected more than 155000, the id of --m.*got 288"),
        ("lumina_mgpt2", lambda p, c: c.rename(p / "Lumina-mGPT-7B-768"), "--model lumina_mgpt"),
        ("lumina_mgpt2", lambda p, c: write_janus(p / "a"), "use --model janus_pro"),
        ("anole", lambda p, c: change(c, _name_or_path="x/lumina_768/"), "--model lumina_mgpt"),
        ("anole", lambda p, c: c.rename(p / "Lumina-mGPT-7B-768"), "use --model lumina_mgpt"),
        ("lumina_mgpt", lambda p, c: c.rename(p / "Lumina-mGPT-2.0"), "holds Lumina-mGPT 2.0"),
        ("lumina_mgpt", lambda p, c: c.rename(p / "Anole-7b-v0.1-hf"), "--model anole or --mod"),
    ],
)
def test_a_folder_under_another_name_is_refused(tmp_path, checkpoint, model, write, message):
    folder = write(tmp_path, Path(shutil.copytree(checkpoint, tmp_path / "copy")))
    settings = small_settings(folder).with_method(MethodSettings("ar"))
    with pytest.raises(ValueError, match=message):
        open_session(replace(settings, model=model))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("anole", "Anole-7b-v0.1-hf"),
        ("tiny", "anole"),
        ("anole", "anole-from-lumina"),
        ("anole", "x"),
        ("lumina_mgpt", "Lumina-mGPT-7B-768"),
        ("lumina_mgpt", "models--Alpha-VLLM--Lumina-mGPT-7B-768/snapshots/1"),
        ("anole", "x/snapshots/lumina"),
    ],
)
def test_folders_that_may_be_the_models(tmp_path, model, name):
    (tmp_path / name).mkdir(parents=True)
    (tmp_path / name / "config.json").write_text('{"model_type": "chameleon"}')
    refuse_other_model(model, str(tmp_path / name), tmp_path / name)


@pytest.mark.parametrize("model", ["emu3", "tiny"])
def test_a_run_of_another_model_leaves_no_folder(tmp_path, checkpoint, capsys, model):
    folder = checkpoint if model == "emu3" else write_emu3(tmp_path / "a")
    words = [f"--model={model}", f"--model_path={folder}", "--prompt=a red fox", "--method=ar"]
    assert main.main(["generate_images", *words, f"--output_dir={tmp_path / 'out'}"]) != 0
    said = capsys.readouterr()
    assert re.search("for --model emu3, got 'chameleon'|use --model emu3$", said.err.strip())
    assert said.err.count("\n") == 1 and not (tmp_path / "out").exists()


def test_the_folder_around_it_makes_a_remark(tmp_path, checkpoint, capsys):
    folder = shutil.copytree(checkpoint, tmp_path / "lumina" / "checkpoint")
    words = ["--model_path", str(folder), "--prompt", "a", "--method", "ar", "--device", "cpu"]
    assert main.main(["generate_images", *words, "--output_dir", str(tmp_path / "out")]) == 0
    assert "lumina/checkpoint holds Lumina-mGPT" in capsys.readouterr().err


def test_inspect_has_a_row_for_it(tmp_path, checkpoint, capsys):
    folder = shutil.copytree(checkpoint, tmp_path / "Lumina-mGPT")
    main.main(["inspect", "--model", "anole", "--model_path", str(folder), "--json"])
    assert "use --model lumina_mgpt" in capsys.readouterr().out
