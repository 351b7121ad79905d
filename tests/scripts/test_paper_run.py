"""`run.sh`: all its commands, run on small checkpoints of each family."""

import csv
import json
import re
import shlex
import shutil
from itertools import pairwise, takewhile
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from browser import ALL
from families import SMALL, size_flag
from made_runs import pictures, write_run
from program import run_settings
from ran import ran
from small_glm_image import SIZES
from small_llamagen import put_llamagen

import main
from commands import command
from configs.benchmark import read_sweep
from configs.fields import split_list
from configs.recipes import read_recipe, read_yaml
from configs.schema import ROOT
from runs.generate import run_folder
from scripts.checkpoints.llamagen import LlamaGenSizes, write_llamagen
from scripts.paper.table import paper_table, rows_of

RECIPES = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
TINY = "run.sh tiny configs/prompts/tiny_test.txt"
CAPTIONS = [{"image_id": 3, "caption": "a cat"}, {"image_id": 7, "caption": "two dogs"}]
COCO = {"images": [{"id": 7}, {"id": 3}], "annotations": CAPTIONS}
PARTI = "Prompt\tCategory\tChallenge\tNote\na cat\tAnimals\tBasic\t\ntwo dogs\tAnimals\tBasic\t\n"
PROMPTS = {"coco": ("captions.json", json.dumps(COCO)), "parti": ("prompts.tsv", PARTI)}
SIDES = {"llamagen": 4, "llamagen2": 6}  # of small images, in place of 16 and 32 codes


def commands(words: str, folder: Path, given: dict[str, str]) -> list[list[str]]:
    """The words of all commands of a script, noted by a stand-in for Python; given: variables."""
    recorder, log = folder / "recorder", folder / "commands"
    log.unlink(missing_ok=True)
    # a word may have lines: \1 ends a word, \2 a command
    noted = f"{{ printf '%s\\1' \"$@\"; printf '\\2'; }} >> {log}"
    recorder.write_text(f"#!/usr/bin/env bash\n{noted}\n")
    recorder.chmod(0o755)
    done = start(words, {"PY": str(recorder), "OUT": str(folder / "out"), "IMAGES": "2"} | given)
    assert done.returncode == 0, done.stderr
    return [text.split("\1")[1:-1] for text in log.read_text().split("\2")[:-1]]


def start(words: str, given: dict[str, str]) -> CompletedProcess[str]:
    script, *arguments = shlex.split(words)
    return ran(["bash", ROOT / "scripts" / "paper" / script, *arguments], **given)


def checkpoint_of(recipe: str, place: Path) -> Path:
    if recipe in SIDES:
        return write_llamagen(place / "LlamaGen-T2I", LlamaGenSizes(side=SIDES[recipe]))
    return SMALL["tiny" if recipe == "anole" else recipe].write(place)


@pytest.mark.parametrize("recipe", RECIPES if ALL else ["anole"])
def test_a_model_gets_images_and_a_table(recipe, tmp_path, monkeypatch) -> None:
    folder = checkpoint_of(recipe, tmp_path)
    name = ("coco", "parti")[RECIPES.index(recipe) % 2]
    prompts, text = PROMPTS[name]
    (tmp_path / prompts).write_text(text)
    flags = " ".join([f"--model_path {folder} --dtype fp64", *size_flag(recipe)])
    flags += f" --device cpu --prompt_file {tmp_path / prompts}"
    temperatures = ("1", "0") if recipe == "tiny" else ("1",)
    given = {"BENCH": "2", "REPEATS": "1", "FLAGS": flags, "TEMPERATURES": " ".join(temperatures)}
    given |= {"DRAFTER": str(folder / "drafter"), "EVALUATE": "--metrics none"}
    script_commands = commands(f"run.sh {recipe} {name}", tmp_path, given)
    monkeypatch.chdir(ROOT)
    for stage, side in SIDES.items():
        put_llamagen(monkeypatch, stage, side)
    monkeypatch.setitem(SIZES, "preview", 3)  # few tokens
    table, times = ["benchmark", *["generate_images"] * 3], len(temperatures)
    asked = [*table * times, "generate_images", "evaluate"]
    joined = script_commands.pop()
    assert joined == ["scripts.paper.table", str(tmp_path / "out")]
    assert [words[0] for words in script_commands] == [*asked, *[*table, "evaluate"] * times]
    assert ["--dry_run" in words for words in script_commands].count(True) == len(asked) - 1
    for words in script_commands:
        assert main.main(words) == 0, words
    for temperature in temperatures:
        out = tmp_path / "out" / f"T{temperature}"
        table = json.loads((out / "benchmark.json").read_text())
        assert table["settings"]["temperature"] == float(temperature)
        check_rows(table["rows"], out)
        images = [pictures(out / method) for method in ("ar", "eagle2", "adt")]
        assert len(images[0]) == 2 and images[0] == images[1] == images[2]
        assert (out / "evaluation" / "speed.md").read_text().count("| 2/2 |") == 3
    paper_table(str(tmp_path / "out"))
    header, *rows = csv.reader((tmp_path / "out" / "table.csv").open())
    assert header[:6] == ["model", "prompts", "T", "row", "speed-up", "tau"]
    found = [(row[2], row[3]) for row in rows]
    assert sorted(found) == sorted((t, m) for t in temperatures for m in ("ar", "eagle2", "adt"))
    assert all(re.match("[0-9.]+", row[4]) for row in rows)
    latex = (tmp_path / "out" / "table.tex").read_text()
    assert latex.count("\\\\\n") == 1 + len(rows)


def check_rows(rows: list[dict], out: Path) -> None:
    """The rows that were timed are those whose images were made, and those of configs/paper."""
    assert [row["method"] for row in rows] == ["ar", "eagle2", "adt"]
    for row in rows:
        made = json.loads((out / row["method"] / "run.json").read_text())["settings"]
        shared = row.keys() & made.keys()
        assert len(shared) > 5 and all(row[name] == made[name] for name in shared)
        assert row["identical"] == 2
        recipe = ROOT / "configs" / "paper" / f"{row['method']}.yaml"
        assert (
            row["method"] == "ar"
            or read_recipe(str(recipe), command("benchmark").known).items() <= row.items()
        )


def test_rows_of_methods_without_a_drafter(tmp_path) -> None:
    given = {"METHODS": "ar jacobi", "TEMPERATURES": "1", "DRAFTER": "none"}
    given |= {"OUT": str(tmp_path / "my out"), "FLAGS": "--prompt-file p.tsv", "BATCH": "8"}
    found = commands("run.sh emu3 parti", tmp_path, given)
    batched = [words[0] for words in found if "--batch_size" in words]
    assert {*batched} == {"generate_images"} and len(batched) == 5
    rows = ["benchmark", "generate_images", "generate_images"]
    names = [words[0] for words in found]
    assert names == [*rows, "generate_images", "evaluate", *rows, "evaluate", "scripts.paper.table"]
    assert not any("--drafter_path" in word for words in found for word in words)
    assert "ar,jacobi" in found[0] and "jacobi" in found[2]
    assert f"configs/emu3.yaml,{tmp_path}/my out/drafter.yaml" in found[0], "one word"


def test_the_hours_of_the_table_and_of_each_ablation_are_said_before_it_starts(tmp_path) -> None:
    (image := tmp_path / "T1/ar").mkdir(parents=True)
    (image / "records.jsonl").write_text('{"id": "a", "seconds": 36.0, "tau": 1.0}\n')
    done = start(TINY, {"PY": "echo", "OUT": str(tmp_path)})
    table, ablations = re.findall("(?m)^.*at most.*$", done.stdout)
    assert "at most 1.8 h of measuring and 6.0 h of images" in table
    hours = {name: text for text, name in re.findall(r"([0-9.]+) h \((\w+)\)", ablations)}
    for name, said in hours.items():  # 16 prompts, three times, each cell next to ar
        cells = read_sweep(str(ROOT / f"configs/sweeps/{name}.yaml")).entries
        assert said == f"{36 * 16 * 3 * 2 * len(cells) / 3600:.1f}"
    assert {f"configs/sweeps/{name}.yaml" for name in hours} == {
        str(path.relative_to(ROOT)) for path in (ROOT / "configs/sweeps").glob("paper_*.yaml")
    }
    assert done.stdout.index(table) < done.stdout.index("--report_dir")


def test_short_times_are_in_minutes_and_every_check_is_counted(tmp_path) -> None:
    (image := tmp_path / "T1/ar").mkdir(parents=True)
    (image / "records.jsonl").write_text('{"id": "a", "seconds": 4.295810020979843, "tau": 1.0}\n')
    given = {"PY": "echo", "OUT": str(tmp_path), "METHODS": "ar jacobi"}
    done = start(TINY, given | {"IMAGES": "4", "BENCH": "2"})
    assert "4.3 s an image: at most 2 min of measuring and 2 min of images" in done.stdout
    counted = [f"checking, {n} of 6" for n in range(1, 7)]
    assert re.findall("(?m)^checking.*$", done.stdout) == counted
    done = start(TINY, given | {"CHECK": "1"})
    assert done.returncode == 0 and done.stdout.count("main.py") == 6 == done.stdout.count(
        "--dry_run"
    )


NUMBER = "expected a number of at least 1 (IMAGES=-1: all), got"


@pytest.mark.parametrize(
    ("words", "given", "said"),
    [
        (TINY, {"IMAGES": "abc"}, f"IMAGES: {NUMBER} abc"),
        (TINY, {"BENCH": "0"}, f"BENCH: {NUMBER} 0"),
        ("run.sh tiny coco", {"REPEATS": "-1"}, f"REPEATS: {NUMBER} -1"),  # downloads nothing
        (
            "run.sh tiny COCO",
            {},
            "PROMPTS: expected coco, parti or a file, got COCO; did you mean coco?",
        ),
    ],
)
def test_a_wrong_word_is_refused_before_python_starts(words, given, said) -> None:
    done = start(words, {"PY": "echo"} | given)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"error: {said}\n")


def test_names_with_commas_and_quotes_are_one_entry_of_a_list(tmp_path) -> None:
    recipe, drafter = tmp_path / "my,row.yaml", tmp_path / "it's: a #1 head"
    recipe.write_text("method: adt\nnodes: 9\n")
    out = tmp_path / 'so "good", really'
    given = {"METHODS": f"ar {recipe}", "TEMPERATURES": "1", "FLAGS": "--prompt-file p.tsv"}
    given |= {"OUT": str(out), "DRAFTER": str(drafter)}
    found = commands("run.sh emu3 parti", tmp_path, given)
    texts = [dict(pairwise(words)) for words in found]
    assert split_list(texts[0]["--methods"]) == ["ar", str(recipe)]
    recipes = ["configs/emu3.yaml", str(out / "drafter.yaml")]
    assert split_list(texts[0]["--config"]) == recipes
    assert split_list(texts[2]["--config"]) == [str(recipe), *recipes]
    folders = [str(out / "T1" / name) for name in ("ar", "my,row")]
    judged = [split_list(text["--output_dir"]) for text in texts if "evaluate" in text]
    assert judged == [folders[:1], folders]
    assert read_yaml(str(out / "drafter.yaml"), "config") == {"drafter_path": str(drafter)}


def test_images_that_were_made_together_have_the_speed_up_of_their_row(tmp_path) -> None:
    """As with BATCH, which only generate_images gets."""
    place = tmp_path / "T1"
    settings = {"method": "adt", "batch_size": 8}
    run = write_run(place / "adt", [np.zeros((8, 8, 3), np.uint8)], ["a"], settings)
    (place / "evaluation").mkdir()
    made = json.loads((run / "run.json").read_text())["settings"]
    runs = [{"name": "adt", "folder": str(run), "settings": made}]
    judged = {"runs": runs, "speed": [{"tau": 2.0, "images": 1}], "images": {}}
    (place / "evaluation" / "evaluation.json").write_text(json.dumps(judged))
    row = {"batch_size": 1, "speedup": 1.5, "doubts": []}
    timed = [{"method": name} | row for name in ("ar", "adt")]
    timed[0]["speedup"] = 1.0
    (place / "benchmark.json").write_text(json.dumps({"rows": timed}))
    shutil.copytree(place, tmp_path / "T1.old")  # a copy that a user keeps
    assert [cells["speed-up"] for cells in rows_of(tmp_path)] == ["1.50"]


def test_what_cannot_be_done_is_refused_before_anything_is_loaded(
    tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(ROOT)
    out = tmp_path / "out"
    run = run_settings({"prompt": "a cat", "top_k": "5", "output_dir": f"{out}/T0/ar"})
    with run_folder(run) as folder:
        folder.begin({})
        (folder.path / "img/00000_0.png").write_bytes(b"")
    for words, variables, said in (
        (TINY, {"IMAGES": "999"}, "--num_images: expected .*, got 999"),
        (TINY, {"IMAGES": "2"}, "--output_dir .*/T0/ar: .* other settings: .*"),
        ("run.sh nothing coco", {"FLAGS": "--prompt_file p"}, "--config configs/nothing.yaml: .*"),
        ("run.sh tiny no.txt", {}, "--prompt no.txt: .*"),
    ):
        found = commands(words, tmp_path, {"METHODS": "ar jacobi"} | variables)
        dry = takewhile(lambda words: "--dry_run" in words, found)
        assert next((code for code in map(main.main, dry) if code), 0) == 2, words
        told = capsys.readouterr().err
        assert re.fullmatch(f"(.*\n)*error: {said}\n", told) and "measuring" not in told, told


def test_it_ends_with_the_first_command_that_is_refused(tmp_path) -> None:
    """Also where another program reads what the command prints."""
    done = start(TINY, {"METHODS": f"jacobi {tmp_path}/jacobi.yaml"})
    said = "error: METHODS: expected rows of different names, got jacobi twice\n"
    assert (done.returncode, done.stderr) == (2, said)
    refuses = tmp_path / "refuses"
    refuses.write_text('#!/usr/bin/env bash\necho "$2" >&2\n[ "$2" != "$REFUSED" ] || exit 2\n')
    refuses.chmod(0o755)
    for refused, begun in (("benchmark", 1), ("generate_images", 2)):
        given = {"PY": str(refuses), "OUT": str(tmp_path / "out"), "REFUSED": refused}
        done = start(TINY, given)
        assert done.returncode == 2 and len(done.stderr.splitlines()) == begun, done.stderr


def test_rows_that_are_compared_differ_in_one_thing() -> None:
    """EAGLE-2 and ADT-Tree, with and without LANTERN: the same trees, the same rule.

    ADT-Tree's beta is chosen for the rule.
    """
    eagle2, adt, lantern, adt_lantern = (
        read_recipe(str(ROOT / "configs" / "paper" / f"{name}.yaml"), command("benchmark").known)
        for name in ("eagle2", "adt", "lantern", "adt_lantern")
    )
    rule = {"verifier": "lantern", "lantern_k": 100, "lantern_delta": 0.5}
    assert lantern == eagle2 | rule and adt_lantern == adt | rule | {"adt_beta": 0.5}
