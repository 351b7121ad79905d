"""Relaxed and randomised acceptance through the commands: nearest codes, records, benchmark."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from damage import generated
from families import SMALL

import main
from configs.fields import SettingsError
from configs.schema import LanternSettings, MethodSettings
from models.codecs.codebook import table_path, write_table
from models.codecs.vqgan_files import load_vqgan
from support.json_lines import read_lines

CODES, opened = 24, SMALL["tiny"].load


@pytest.fixture(scope="module")
def folder(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("relaxed") / "checkpoint"
    shutil.copytree(checkpoint, place)
    latents = load_vqgan(place / "tokenizer").codebook
    write_table(latents, table_path(place, CODES, 10), 10)
    return place


def relaxed(**numbers: float | str) -> MethodSettings:
    return MethodSettings(verifier="lantern", numbers=LanternSettings(**numbers))


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ({"k": 24}, "--lantern_k: expected 1 to 23, since the model has 24 image codes.*got 24"),
        (
            {"k": 10, "residual": "reference"},
            "--lantern_k: .*no table of at least 11 neighbours; `.*main.py vq_distances",
        ),
    ],
)
def test_what_the_table_does_not_hold_is_refused(numbers, message, folder) -> None:
    session = opened(folder, MethodSettings())
    with pytest.raises(SettingsError, match=message):
        session.nearest_codes(relaxed(**numbers))


def test_a_table_of_another_codebook_is_refused(folder, tmp_path) -> None:
    """Such as that of the model before its codec was trained on."""
    place = tmp_path / "model"
    shutil.copytree(folder, place)
    latents = torch.randn(CODES, 4, generator=torch.Generator().manual_seed(0))
    write_table(latents, table_path(place, CODES, 4), 4)
    session = opened(place, MethodSettings())
    message = "--verifier lantern: .*top_4_indices.npy: .*got those of another codebook"
    with pytest.raises(SettingsError, match=message):
        session.nearest_codes(relaxed(k=4))
    session.nearest_codes(relaxed(k=10))


def test_a_missing_table_is_found_before_weights_are_read(checkpoint, monkeypatch) -> None:
    monkeypatch.setattr("runs.session.load_target", lambda *_: pytest.fail("weights were read"))
    message = "--lantern_k: .*vq_distances: found no table of at least 4 neighbours"
    with pytest.raises(SettingsError, match=message):
        opened(checkpoint, relaxed(k=4))


def test_a_relaxed_rule_makes_images(folder, capsys) -> None:
    words = ["--verifier=lantern", "--lantern_k=10", "--lantern_delta=0.5", "--num_images=2"]
    code, said = generated(capsys, folder, *words, "--device=cpu")
    assert code == 0, said
    out = folder.parent / "out"
    records = read_lines(out / "records.jsonl")
    found = [(record["method"], record["verifier"], record["lossless"]) for record in records]
    assert found == [("adt", "lantern", False)] * 2
    assert len(list((out / "img").iterdir())) == 2
    assert json.loads((out / "run.json").read_text())["settings"]["lantern_delta"] == 0.5


@pytest.mark.parametrize("temperature", ["1", "0"])
def test_a_benchmark_does_not_call_other_rules_wrong(temperature, folder, capsys) -> None:
    methods = [
        "adt:verifier=rejection",
        "static:proposal=sampled:verifier=sampled",
        "adt:verifier=lantern:lantern_delta=0.2",
    ]
    words = [f"--methods={','.join(methods)}", f"--model_path={folder}", "--device=cpu"]
    words += ["--prompt=a cat", "--num_images=3", "--dtype=fp64", f"--temperature={temperature}"]
    words += ["--lantern_k=10", "--repeats=1", "--warmup=0"]
    assert main.main(["benchmark", *words]) == 0
    said = capsys.readouterr().out.strip().splitlines()
    rows = json.loads(said[-1])["rows"]
    assert [row["verifier"] for row in rows] == ["exact", "rejection", "sampled", "lantern"]
    assert [row["lossless"] for row in rows] == [True, True, True, False]
    assert all(row["wrong"] == [] for row in rows)
    assert (rows[3]["lantern_delta"], rows[3]["lantern_k"]) == (0.2, 10)
    same = [row["identical"] for row in rows]
    # at T = 0 a prompt's images are one
    assert same[:3] == [1, 1, 1] if temperature == "0" else same[0] == 3 and max(same[1:3]) < 3
    words = "| adt, lantern verification, lantern_k=10, lantern_delta=0.2 | "
    assert any(line.startswith(words) and line.endswith(", relaxed |") for line in said)
