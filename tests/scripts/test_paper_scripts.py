"""The paper's scripts: all their commands, run on small checkpoints of each family."""

import json
import os
import shlex
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest
import torch
from small_emu3 import write_emu3
from small_janus import write_janus
from small_llamagen import LlamaGenSizes, write_llamagen

import main
from configs.schema import ROOT
from models.codecs.codebook import table_path, write_table
from models.registry import FAMILIES, TARGETS
from models.targets.llamagen import LlamaGen
from models.targets.llamagen_files import llamagen_family
from scripts.tools.maps import maps
from scripts.tools.paper_hours import paper_hours
from scripts.tools.paper_needs import paper_needs

FOLDER = ROOT / "scripts" / "paper"
SCRIPTS = sorted(path.name for path in FOLDER.glob("*_*.sh"))
ABLATIONS = sorted(
    path.stem
    for path in FOLDER.glob("*.sh")
    if "ablation.sh" in path.read_text() and path.stem != "ablation"
)
COCO = {
    "images": [{"id": 7, "file_name": "7.jpg"}, {"id": 3, "file_name": "3.jpg"}],
    "annotations": [
        {"id": 1, "image_id": 3, "caption": "a cat"},
        {"id": 2, "image_id": 7, "caption": "two dogs"},
    ],
}
CODES = 24  # of the small checkpoint
SIDES = {"llamagen": 4, "llamagen2": 6}  # of small images, in place of 16 and 32 codes
# Recipes whose own size is too large for the checkpoint.
TARGET_SIZES = {"lumina_mgpt": "--target_size 64", "emu3": "--target_size 40x32"}
NEEDS, HOURS = "scripts.tools.paper_needs", "scripts.tools.paper_hours"
TOOLS = {NEEDS: paper_needs, HOURS: paper_hours}
PARTI = "Prompt\tCategory\tChallenge\tNote\na cat\tAnimals\tBasic\t\ntwo dogs\tAnimals\tBasic\t\n"


@pytest.fixture(scope="module")
def places(checkpoint, lumina_folder, tmp_path_factory) -> dict[str, Path]:
    """A small checkpoint for every recipe."""
    stages = {
        name: write_llamagen(tmp_path_factory.mktemp(name), LlamaGenSizes(side=side))
        for name, side in SIDES.items()
    }
    others = {
        "janus_pro": write_janus(tmp_path_factory.mktemp("janus") / "checkpoint"),
        "emu3": write_emu3(tmp_path_factory.mktemp("emu3") / "checkpoint"),
    }
    chameleons = {"anole": checkpoint, "tiny": checkpoint, "lumina_mgpt": lumina_folder}
    return chameleons | others | stages


def test_every_recipe_has_a_script_per_prompt_set() -> None:
    recipes = {path.stem for path in (ROOT / "configs").glob("*.yaml")} - {"tiny"}
    public = [f"{recipe}_{prompts}.sh" for recipe in recipes for prompts in ("coco", "parti")]
    assert sorted([*public, "tiny_test.sh"]) == SCRIPTS


def test_every_sweep_has_a_script() -> None:
    assert [path.stem for path in sorted((ROOT / "configs" / "sweeps").glob("*.yaml"))] == sorted(
        [*ABLATIONS, "nodes"]
    )


def commands(script: str, folder: Path, given: dict[str, str]) -> list[list[str]]:
    """Return the words of every command that a script runs.

    A stand-in for the interpreter, which takes seconds to start, writes them down.
    """
    recorder, log = folder / "recorder", folder / "commands"
    recorder.write_text(f'#!/usr/bin/env bash\nprintf "%q " "$@" >> {log}\necho >> {log}\n')
    recorder.chmod(0o755)
    given = {"PY": str(recorder), "OUT": str(folder / "out"), "IMAGES": "2"} | given
    subprocess.run(
        ["bash", FOLDER / script],
        env=os.environ | given,
        check=True,
        capture_output=True,
        timeout=60,
    )
    return [shlex.split(line)[1:] for line in log.read_text().splitlines()]


@pytest.mark.parametrize("script", SCRIPTS)
def test_a_script_makes_images_and_a_table(script, places, tmp_path, capsys, monkeypatch) -> None:
    recipe, _, prompts = script.removesuffix(".sh").rpartition("_")
    prompt_file = tmp_path / ("captions.json" if prompts == "coco" else "prompts.tsv")
    prompt_file.write_text(json.dumps(COCO) if prompts == "coco" else PARTI)
    size = TARGET_SIZES.get(recipe, "")
    flags = f"--model_path {places[recipe]} {size} --dtype fp64 --device cpu"
    flags += f" --prompt_file {prompt_file}" if recipe != "tiny" else ""
    temperatures = ("1", "0") if recipe == "tiny" else ("1",)
    given = {"BENCH": "2", "REPEATS": "1", "FLAGS": flags}
    given |= {"DRAFTER": str(places[recipe] / "drafter"), "EVALUATE": "--metrics none"}
    given |= {} if recipe == "tiny" else {"TEMPERATURES": "1"}
    given_commands = commands(script, tmp_path, given)
    monkeypatch.chdir(ROOT)
    for name, side in SIDES.items():
        monkeypatch.setitem(TARGETS, name, partial(LlamaGen.load, side=side))
        monkeypatch.setitem(FAMILIES, name, llamagen_family(side))
    each = ["benchmark", HOURS, *["generate_images"] * 3, "evaluate"]
    assert [words[0] for words in given_commands] == [NEEDS, *each * len(temperatures)]
    for words in given_commands:
        run(words)
    said = capsys.readouterr().out
    assert said.count("2 images per row, one at a time: about ") == len(temperatures)
    tables = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [table["settings"]["temperature"] for table in tables] == list(map(float, temperatures))
    for table in tables:
        assert len(table["rows"]) == 5
        assert all(row["identical"] == 2 for row in table["rows"] if row["verifier"] == "exact")
        assert [row["method"] for row in table["rows"] if row["verifier"] != "exact"] == ["static"]
    for temperature in temperatures:
        images = [
            pictures(tmp_path / "out" / f"T{temperature}" / method)
            for method in ("ar", "eagle2", "adt")
        ]
        assert len(images[0]) == 2 and images[0] == images[1] == images[2]
        speed = (tmp_path / "out" / f"T{temperature}" / "evaluation" / "speed.md").read_text()
        assert speed.count("| 2/2 |") == 3


def run(words: list[str]) -> None:
    """Run a command that a script has: of main.py, or a tool."""
    if words[0] not in TOOLS:
        assert main.main(words) == 0, words
        return
    flags = [word.removeprefix("--").partition("=") for word in words[1:]]
    TOOLS[words[0]](**{name: text for name, _, text in flags})


def test_what_was_measured_is_not_measured_again(tmp_path) -> None:
    given = {"TEMPERATURES": "1", "BENCH": "2"}
    out = tmp_path / "out" / "T1"

    def measured(**more: str) -> bool:
        (tmp_path / "commands").unlink(missing_ok=True)
        found = commands("tiny_test.sh", tmp_path, given | more)
        return any(words[0] == "benchmark" for words in found)

    assert measured() and measured(), "it was stopped before benchmark.json was there"
    (out / "benchmark.json").write_text("{}")
    assert not measured() and not measured(IMAGES="3")
    assert measured(BENCH="3") and measured(FLAGS="--dtype bf16")


def test_rows_of_methods_without_a_drafter(tmp_path) -> None:
    given = {"METHODS": "ar jacobi", "TEMPERATURES": "1", "DRAFTER": "none"}
    found = commands("emu3_parti.sh", tmp_path, given | {"FLAGS": "--prompt_file p.tsv"})
    assert [words[0] for words in found] == [
        NEEDS, "benchmark", HOURS, "generate_images", "generate_images", "evaluate"
    ]  # fmt: skip
    assert not any("--drafter_path" in word for words in found for word in words)
    assert "ar,jacobi" in found[1] and "jacobi" in found[4]


def test_a_prompt_set_that_is_not_here_stops_the_table_with_a_line(tmp_path) -> None:
    """Without network, as curl says it."""
    curl = tmp_path / "curl"
    curl.write_text("#!/bin/sh\necho 'curl: (6) Could not resolve host' >&2; exit 6\n")
    curl.chmod(0o755)
    given = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "TO": str(tmp_path / "none")}
    done = subprocess.run(
        ["bash", FOLDER / "anole_parti.sh"],
        env=os.environ | given | {"PY": "false"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "PartiPrompts.tsv: not here" in done.stderr and "Could not resolve host" in done.stderr


def test_relaxed_rows_of_the_main_table(checkpoint, tmp_path, monkeypatch) -> None:
    checkpoint = with_table(checkpoint, tmp_path / "checkpoint")
    flags = f"--model_path {checkpoint} --dtype fp64 --device cpu"
    methods = {"lantern": "eagle2", "lantern_pp": "static", "adt_lantern": "adt"}
    found = commands(
        "tiny_test.sh",
        tmp_path,
        {"METHODS": " ".join(methods), "TEMPERATURES": "1", "FLAGS": flags},
    )
    rows = [words for words in found if words[0] == "generate_images"]
    monkeypatch.chdir(ROOT)
    for words, (name, method) in zip(rows, methods.items(), strict=True):
        # the small checkpoint has 24 codes
        assert main.main([*words, "--lantern_k", "10"]) == 0, words
        settings = json.loads((tmp_path / "out" / "T1" / name / "run.json").read_text())["settings"]
        assert (settings["method"], settings["verifier"]) == (method, "lantern")


def with_table(checkpoint: Path, copy: Path) -> Path:
    """Copy a checkpoint and add ten nearest codes for each of its own; returns the copy."""
    shutil.copytree(checkpoint, copy)
    latents = torch.randn(CODES, 4, generator=torch.Generator().manual_seed(0))
    write_table(latents, table_path(copy, CODES, 10), 10)
    return copy


@pytest.mark.parametrize("name", ABLATIONS)
def test_an_ablation_measures_its_sweep_at_both_temperatures(
    name, checkpoint, tmp_path, capsys, monkeypatch
) -> None:
    (tmp_path / "prompts.txt").write_text("a cat\ntwo dogs\nmore\n")
    flags = "--dtype fp64 --device cpu --cells 0-2 --repeats 1 --warmup 0"
    if name == "lantern":  # this checkpoint has a table of nearest codes, but no classifier
        checkpoint = with_table(checkpoint, tmp_path / "checkpoint")
    flags += f" --model_path {checkpoint}"
    monkeypatch.chdir(ROOT)
    for words in commands(
        f"{name}.sh", tmp_path, {"PROMPTS": str(tmp_path / "prompts.txt"), "FLAGS": flags}
    ):
        assert main.main(words) == 0, words
    for temperature in (1, 0):
        folder = tmp_path / "out" / f"T{temperature}"
        rows = [json.loads(line) for line in (folder / "sweep.jsonl").read_text().splitlines()]
        assert len(rows) == 2 and {row["temperature"] for row in rows} == {temperature}
        assert (folder / "speed.png").stat().st_size > 5000
    assert capsys.readouterr().out.count("| cell |") == 2


def test_maps_of_runs_with_a_trace(checkpoint, tmp_path, capsys, monkeypatch) -> None:
    (tmp_path / "prompts.txt").write_text("a cat\ntwo dogs\nmore\n")
    flags = f"--model_path {checkpoint} --dtype fp64 --device cpu"
    monkeypatch.chdir(ROOT)
    found = commands(
        "maps.sh", tmp_path, {"PROMPTS": str(tmp_path / "prompts.txt"), "FLAGS": flags}
    )
    assert [words[0] for words in found] == ["generate_images", "scripts.tools.maps"] * 2
    for words in found:
        if words[0] == "generate_images":
            assert main.main(words) == 0, words
        else:
            maps(run=words[2])
    assert capsys.readouterr().out.count("| rounds | upper |") == 2
    for method in ("eagle2", "adt"):
        folder = tmp_path / "out" / method / "maps"
        assert {path.name for path in folder.iterdir()} == {
            "mean.png", "00000_0.png", "00001_0.png", "correlations.json"
        }  # fmt: skip


def pictures(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "img").iterdir()}
