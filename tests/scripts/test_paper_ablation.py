"""`ablation.sh`: its sweeps, the parts of a drafter's training, maps."""

import json
from pathlib import Path

import pytest
from browser import thinned
from paper_commands import commands, with_table
from test_train import write_tokens

import main
from configs.command_line import read_recipe, read_words
from configs.schema import ROOT
from runs.commands import train_settings
from scripts.tools.drafter_table import table
from scripts.tools.maps import maps

SWEEPS = sorted(path.stem for path in (ROOT / "configs" / "sweeps").glob("*.yaml"))
ROWS = ["published", "plain", "full", "agreement", "shifted", "depths1", "depths4", "unguided",
        "noiseless", "layers2"]  # fmt: skip


def settings_of(words: list[str], tokens: Path) -> dict:
    given = {"tokens": str(tokens), "model_path": str(ROOT / "ckpts/tiny")}
    settings = train_settings(read_words("train_drafter", words[1:]) | given)
    names = ("depths", "guidance_aware", "feature_noise", "layers", "alignment", "agreement_weight",
             "optimizer", "ce_weight", "enlarge_embeddings")  # fmt: skip
    return {name: getattr(settings, name) for name in names}


def test_each_row_changes_what_it_names(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(ROOT)
    (tmp_path / "about.json").write_text("{}")
    *found, last = commands("ablation.sh drafter", tmp_path, {"TOKENS": str(tmp_path)})
    names = [Path(words[words.index("--output_dir") + 1]).name for words in found]
    assert names == ROWS and [Path(word).name for word in last[1:]] == ROWS
    rows = dict(zip(names, (settings_of(words, tmp_path) for words in found), strict=True))
    full = {"depths": 2, "guidance_aware": True, "feature_noise": 0.05, "layers": 1,
            "alignment": "inference", "agreement_weight": 0, "optimizer": "muon", "ce_weight": 0.5,
            "enlarge_embeddings": True}  # fmt: skip
    assert rows["full"] == full
    plain = {"depths": 1, "guidance_aware": False}
    published = plain | {"optimizer": "adamw", "ce_weight": 0.1, "enlarge_embeddings": False}
    changes = {"published": published, "plain": plain,
               "shifted": {"alignment": "shifted"}, "agreement": {"agreement_weight": 2},
               "depths1": {"depths": 1}, "depths4": {"depths": 4},
               "unguided": {"guidance_aware": False}, "noiseless": {"feature_noise": 0.0},
               "layers2": {"layers": 2}}  # fmt: skip
    assert {name: rows[name] for name in changes} == {
        name: full | change for name, change in changes.items()
    }


@pytest.mark.parametrize(
    "path", sorted((ROOT / "configs" / "training").glob("*.yaml")), ids=lambda path: path.stem
)
def test_recipes_are_settings_of_the_command(path) -> None:
    assert read_recipe(str(path), "train_drafter")["model"] == path.stem


def test_a_table_of_two_rows(checkpoint, tmp_path, monkeypatch, capsys) -> None:
    """Both trained by the script's own commands, on a small checkpoint."""
    monkeypatch.chdir(ROOT)
    tokens = write_tokens(tmp_path / "tokens", "tiny", checkpoint, (4, 4), 8)
    flags = f"--model_path {checkpoint} --device cpu --steps 2 --batch_size 4"
    flags += " --holdout 2 --eval_images 1"
    given = {"TOKENS": str(tokens), "ROWS": "plain shifted", "FLAGS": flags}
    *trainings, last = commands("ablation.sh drafter", tmp_path, given)
    for words in trainings:
        assert main.main(words) == 0
    lines = table([Path(word) for word in last[1:]]).splitlines()
    assert len(lines) == 4 and lines[0].startswith("| drafter | steps | depths |")
    assert lines[2].startswith("| plain | 2 | 1 | False |")
    assert lines[3].startswith("| shifted | 2 | 2 | True |")
    figures = json.loads((tmp_path / "out" / "plain" / "evaluation.json").read_text())
    assert f"{figures['decoding']['tau']:.3f}" in lines[2] and lines[2].endswith("| 1/1 |")
    with pytest.raises(ValueError, match="evaluation.json: missing"):
        table([tmp_path])


def test_the_usage_names_every_ablation() -> None:
    usage = (ROOT / "scripts" / "paper" / "ablation.sh").read_text().split("set -euo")[0]
    assert [name for name in (*SWEEPS, "drafter", "maps") if f" {name} " not in usage] == []


@pytest.mark.parametrize("name", thinned(SWEEPS))
def test_a_sweep_is_measured_at_both_temperatures(
    name, checkpoint, tmp_path, capsys, monkeypatch
) -> None:
    (tmp_path / "prompts.txt").write_text("a cat\n")
    flags = "--dtype fp64 --device cpu --cells 0-2 --repeats 1 --warmup 0"
    if name == "lantern":  # this checkpoint has a table of nearest codes, but no classifier
        checkpoint = with_table(checkpoint, tmp_path / "checkpoint")
    flags += f" --model_path {checkpoint}"
    monkeypatch.chdir(ROOT)
    given = {"PROMPTS": str(tmp_path / "prompts.txt"), "FLAGS": flags, "IMAGES": "1"}
    for words in commands(f"ablation.sh {name}", tmp_path, given):
        assert main.main(words) == 0, words
    for temperature in (1, 0):
        folder = tmp_path / "out" / f"T{temperature}"
        rows = [json.loads(text) for text in (folder / "sweep.jsonl").read_text().splitlines()]
        assert len(rows) == 2 and {row["temperature"] for row in rows} == {temperature}
        assert (folder / "speed.png").stat().st_size > 5000
    assert capsys.readouterr().out.count("| cell |") == 2


def test_maps_of_runs_with_a_trace(checkpoint, tmp_path, capsys, monkeypatch) -> None:
    (tmp_path / "prompts.txt").write_text("a cat\ntwo dogs\nmore\n")
    flags = f"--model_path {checkpoint} --dtype fp64 --device cpu"
    monkeypatch.chdir(ROOT)
    given = {"PROMPTS": str(tmp_path / "prompts.txt"), "FLAGS": flags}
    found = commands("ablation.sh maps", tmp_path, given)
    assert [words[0] for words in found] == ["generate_images", "scripts.tools.maps"] * 2
    for words in found:
        if words[0] == "generate_images":
            assert main.main(words) == 0, words
        else:
            maps(run=words[2])
    assert capsys.readouterr().out.count("| upper |") == 2
    for method in ("eagle2", "adt"):
        assert (tmp_path / "out" / method / "maps" / "correlations.json").is_file()
