"""The scripts of the published comparisons: every command that they give, run on small checkpoints of each family."""

import json
import os
import shlex
import subprocess
from functools import partial
from pathlib import Path

import pytest
from small_llamagen import LlamaGenSizes, write_llamagen

import main
from configs.schema import ROOT
from models.llamagen import LlamaGen
from models.llamagen_files import llamagen_family
from models.registry import FAMILIES, TARGETS

SCRIPTS = sorted(path.name for path in (ROOT / "scripts" / "paper").glob("*_*.sh"))
COCO = {
    "images": [{"id": 7, "file_name": "7.jpg"}, {"id": 3, "file_name": "3.jpg"}],
    "annotations": [{"id": 1, "image_id": 3, "caption": "a cat"}, {"id": 2, "image_id": 7, "caption": "two dogs"}],
}
SIDES = {"llamagen": 4, "llamagen2": 6}  # of small images, in place of 16 and 32 codes
PARTI = "Prompt\tCategory\tChallenge\tNote\na cat\tAnimals\tBasic\t\ntwo dogs\tAnimals\tBasic\t\n"


@pytest.fixture(scope="module")
def places(checkpoint, lumina_folder, tmp_path_factory) -> dict[str, Path]:
    """A small checkpoint for every recipe."""
    stages = {
        name: write_llamagen(tmp_path_factory.mktemp(name), LlamaGenSizes(side=side)) for name, side in SIDES.items()
    }
    return {"anole": checkpoint, "lumina_mgpt": lumina_folder} | stages


def test_every_recipe_has_a_script_per_prompt_set() -> None:
    recipes = {path.stem for path in (ROOT / "configs").glob("*.yaml")}
    assert sorted(f"{recipe}_{prompts}.sh" for recipe in recipes for prompts in ("coco", "parti")) == SCRIPTS


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_makes_images_and_a_table(script, places, tmp_path, capsys, monkeypatch) -> None:
    """Its commands are noted by a stand-in for the interpreter and run in this process: a start takes seconds."""
    recipe, _, prompts = script.removesuffix(".sh").rpartition("_")
    prompt_file = tmp_path / ("captions.json" if prompts == "coco" else "prompts.tsv")
    prompt_file.write_text(json.dumps(COCO) if prompts == "coco" else PARTI)
    recorder, log = tmp_path / "recorder", tmp_path / "commands"
    recorder.write_text(f'#!/usr/bin/env bash\nprintf "%q " "$@" >> {log}\necho >> {log}\n')
    recorder.chmod(0o755)
    given = {"PY": str(recorder), "OUT": str(tmp_path / "out"), "IMAGES": "2", "BENCH": "2"}
    size = "--target_size 64" if recipe == "lumina_mgpt" else ""  # the recipe's own is too large for the checkpoint
    given["FLAGS"] = f"--model_path {places[recipe]} {size} --dtype fp64 --device cpu --prompt_file {prompt_file}"
    given["DRAFTER"] = str(places[recipe] / "drafter")
    path = ROOT / "scripts" / "paper" / script
    subprocess.run(["bash", path], env=os.environ | given, check=True, capture_output=True, timeout=60)
    monkeypatch.chdir(ROOT)
    for name, side in SIDES.items():
        monkeypatch.setitem(TARGETS, name, partial(LlamaGen.load, side=side))
        monkeypatch.setitem(FAMILIES, name, llamagen_family(side))
    commands = [shlex.split(line)[1:] for line in log.read_text().splitlines()]
    assert [words[0] for words in commands] == ["benchmark"] + ["generate_images"] * 3
    for words in commands:
        assert main.main([*words, *(["--repeats", "1"] if words[0] == "benchmark" else [])]) == 0, words
    table = json.loads(next(line for line in capsys.readouterr().out.splitlines() if line.startswith("{")))
    assert [row["identical"] for row in table["rows"]] == [2] * 4
    images = [pictures(tmp_path / "out" / method) for method in ("ar", "eagle2", "adt")]
    assert len(images[0]) == 2 and images[0] == images[1] == images[2]


def pictures(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "img").iterdir()}
