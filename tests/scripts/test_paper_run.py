"""`run.sh`: all its commands, run on small checkpoints of each family."""

import json
import os
import re
import shlex
import shutil
import sys
from contextlib import nullcontext
from pathlib import Path
from subprocess import CompletedProcess

import numpy as np
import pytest
from browser import thinned
from families import SMALL, size_flag
from made_runs import pictures
from ran import copied_checkout, ran
from small_glm_image import SIZES, write_glm_image
from small_llamagen import LlamaGenSizes, put_llamagen, write_llamagen

import main
from configs.command_line import read_recipe
from configs.fields import SettingsError
from configs.schema import ROOT
from models.codecs.codebook import load_table, table_path
from runs.commands import run_settings
from runs.run_folder import RunFolder
from scripts.paper.needs import methods_of, paper_needs
from scripts.paper.refused import refuse_runs
from support.border import Failure

RECIPES = sorted(path.stem for path in (ROOT / "configs").glob("*.yaml"))
TINY = "run.sh tiny configs/prompts/tiny_test.txt"
CAPTIONS = [{"image_id": 3, "caption": "a cat"}, {"image_id": 7, "caption": "two dogs"}]
COCO = {"images": [{"id": 7}, {"id": 3}], "annotations": CAPTIONS}
PARTI = "Prompt\tCategory\tChallenge\tNote\na cat\tAnimals\tBasic\t\ntwo dogs\tAnimals\tBasic\t\n"
PROMPTS = {"coco": ("captions.json", json.dumps(COCO)), "parti": ("prompts.tsv", PARTI)}
SIDES = {"llamagen": 4, "llamagen2": 6}  # of small images, in place of 16 and 32 codes
NEEDS, REFUSED = "scripts.paper.needs", "scripts.paper.refused"


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
        return write_llamagen(place, LlamaGenSizes(side=SIDES[recipe]))
    return SMALL["tiny" if recipe == "anole" else recipe].write(place)


@pytest.mark.parametrize("recipe", thinned(RECIPES))
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
    each = ["benchmark", *["generate_images"] * 3, "evaluate"]
    assert [words[0] for words in script_commands] == [NEEDS, REFUSED, *each * len(temperatures)]
    for words in script_commands:
        run(words)
    for temperature in temperatures:
        out = tmp_path / "out" / f"T{temperature}"
        table = json.loads((out / "benchmark.json").read_text())
        assert table["settings"]["temperature"] == float(temperature)
        check_rows(table["rows"], out)
        images = [pictures(out / method) for method in ("ar", "eagle2", "adt")]
        assert len(images[0]) == 2 and images[0] == images[1] == images[2]
        assert (out / "evaluation" / "speed.md").read_text().count("| 2/2 |") == 3


def check_rows(rows: list[dict], out: Path) -> None:
    """The rows that were timed are those whose images were made, and those of configs/paper."""
    assert [row["method"] for row in rows] == ["ar", "eagle2", "adt"]
    for row in rows:
        made = json.loads((out / row["method"] / "run.json").read_text())["settings"]
        shared = row.keys() & made.keys()
        assert len(shared) > 5 and all(row[name] == made[name] for name in shared)
        assert row["identical"] == 2
        recipe = ROOT / "configs" / "paper" / f"{row['method']}.yaml"
        assert row["method"] == "ar" or read_recipe(str(recipe), "benchmark").items() <= row.items()


def run(words: list[str]) -> None:
    """Run a command that the script has: of main.py, or a module of its own."""
    function = {NEEDS: paper_needs, REFUSED: refuse_runs}.get(words[0])
    if function is None:
        assert main.main(words) == 0, words
        return
    flags = [word.removeprefix("--").partition("=") for word in words[1:] if "=" in word]
    function(**{name: text for name, _, text in flags})


def test_what_was_measured_is_not_measured_again(tmp_path, monkeypatch) -> None:
    copy = copied_checkout(tmp_path / "copy")
    monkeypatch.setitem(globals(), "ROOT", copy)
    row = tmp_path / "row.yaml"
    row.write_text("method: jacobi\n")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a red circle\n")
    given = {"TEMPERATURES": "1", "BENCH": "2", "METHODS": f"ar {row}"}
    out = tmp_path / "out" / "T1"

    def measured(**more: str) -> bool:
        found = commands(f"run.sh tiny {prompts}", tmp_path, given | more)
        return any(words[0] == "benchmark" for words in found)

    assert measured() and measured(), "it was stopped before benchmark.json was there"
    (out / "benchmark.json").write_text("{}")
    assert not measured() and not measured(IMAGES="3")
    assert measured(BENCH="3") and measured(FLAGS="--dtype bf16")
    assert not measured(FLAGS="--dtype bf16")
    row.write_text("method: jacobi\nwindow: 8\n")
    assert measured(FLAGS="--dtype bf16"), "the row's recipe is another one now"
    prompts.write_text("a blue square\n")
    assert measured() and not measured()
    (out.parent / "hashes.json").write_text("{}")
    assert measured(), "the weights are others now"
    for file in ("main.py", "decoding/engine.py", "models/cpu/kernels/network.h"):
        (copy / file).write_text("other code")
        assert measured() and not measured(), file
    failing = tmp_path / "failing"
    failing.write_text('#!/bin/sh\n[ "$2" != benchmark ]\n')
    failing.chmod(0o755)
    with pytest.raises(AssertionError):
        measured(BENCH="3", PY=str(failing))
    assert measured(), "benchmark.json may be of the table that failed"


def test_images_that_cannot_be_made_are_refused_before_the_speed_is_measured(tmp_path) -> None:
    """By the script's own modules; a stand-in for Python notes the commands of main.py."""
    stand_in = tmp_path / "py"
    own = f'-m) exec {sys.executable} "$@" ;; *) echo "$2" >> {tmp_path}/called ;;'
    stand_in.write_text(f"#!/bin/sh\ncase $1 in {own} esac\n")
    stand_in.chmod(0o755)
    given = {"PY": str(stand_in), "OUT": str(tmp_path / "out"), "METHODS": "ar jacobi"}
    run = run_settings({"prompt": "a cat", "top_k": "5", "output_dir": f"{tmp_path}/out/T0/ar"})
    with RunFolder(run) as folder:
        folder.begin({})
    (tmp_path / "jacobi.yaml").write_text("method: jacobi\nwindow: 4\n")
    twice = "METHODS, TEMPERATURES: .*once, and recipes of .*, got .*T1/jacobi twice"
    for variables, said in (
        ({"METHODS": f"jacobi {tmp_path}/jacobi.yaml"}, twice),
        ({"METHODS": "jacobi", "TEMPERATURES": "1 1"}, twice),
        ({"IMAGES": "999"}, "--num_images: expected .*, got 999"),
        ({"IMAGES": "2"}, "--output_dir .*/T0/ar: .* other settings: .*"),
    ):
        done = start(TINY, given | variables)
        assert done.returncode == 2 and re.fullmatch(f"error: {said}\n", done.stderr), done.stderr
        assert not (tmp_path / "called").exists()


def test_rows_of_methods_without_a_drafter(tmp_path) -> None:
    given = {"METHODS": "ar jacobi", "TEMPERATURES": "1", "DRAFTER": "none"}
    found = commands("run.sh emu3 parti", tmp_path, given | {"FLAGS": "--prompt-file p.tsv"})
    assert [words[0] for words in found] == [
        NEEDS, REFUSED, "benchmark", "generate_images", "generate_images", "evaluate"
    ]  # fmt: skip
    assert not any("--drafter_path" in word for words in found for word in words)
    assert "ar,jacobi" in found[2] and "jacobi" in found[4]


def test_a_folder_may_have_a_space_but_no_comma(tmp_path) -> None:
    given = {"DRAFTER": "none", "TEMPERATURES": "1", "OUT": str(tmp_path / "my out")}
    recipes = f"configs/tiny.yaml,{tmp_path}/my out/drafter.yaml"
    assert recipes in commands(TINY, tmp_path, given)[2]
    done = start(TINY, given | {"OUT": str(tmp_path / "a,b")})
    assert (done.returncode, done.stdout) == (1, "") and not (tmp_path / "a,b").exists()
    assert done.stderr == f"error: OUT: expected a folder without a comma, got {tmp_path}/a,b\n"


def test_files_are_looked_at_before_prompts_are_fetched(tmp_path) -> None:
    """Without network, as curl says it, and with a stand-in for Python that notes its call."""
    for name, text in (
        ("curl", "echo 'curl: (6) Could not resolve host' >&2; exit 6"),
        ("py", f'echo "$2" >> {tmp_path}/called; exit "$FAILS"'),
    ):
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    given = {"PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "TO": str(tmp_path / "none")}
    given |= {"PY": str(tmp_path / "py"), "OUT": str(tmp_path / "out")}
    done = start("run.sh anole parti", given | {"FAILS": "1"})
    assert done.returncode == 1 and "== prompts" not in done.stdout
    done = start("run.sh anole parti", given | {"FAILS": "0"})
    assert done.returncode == 1 and done.stdout.index("== files") < done.stdout.index("== prompts")
    assert done.stderr.startswith("error: ") and done.stderr.count("\n") == 1
    assert "PartiPrompts.tsv: not here" in done.stderr and "Could not resolve host" in done.stderr
    assert (tmp_path / "called").read_text() == f"{NEEDS}\n" * 2


@pytest.mark.parametrize(
    ("words", "ending"),
    [
        ("run.sh nothing coco", "got nothing"),
        ("run.sh emu35 coco", r"got emu35\. Did you mean emu3_5.*\?"),
        ("run.sh tiny no.txt", "got no.txt, which is no file or empty"),
        ("run.sh tiny MSCOCO2017.txt", "got MSCOCO2017.txt, which is no file or empty"),
    ],
)
def test_unknown_names_are_refused_with_a_line(words, ending) -> None:
    done = start(words, {})
    assert done.returncode == 1 and done.stdout == ""
    assert re.fullmatch(f"error: .* {ending}\n", done.stderr), done.stderr


def test_metrics_of_tokens_are_refused_first(tmp_path) -> None:
    folder = write_glm_image(tmp_path / "glm")
    flags = f"--config configs/glm_image.yaml --model_path {folder} --prompt none.txt"
    with pytest.raises(Failure, match="would be tokens.*--metrics none"):
        paper_needs(flags=flags, methods="ar jacobi", evaluate="--metrics clip")


def test_rows_that_are_compared_differ_in_one_thing() -> None:
    """EAGLE-2 and ADT-Tree, with and without LANTERN: the same trees, the same rule."""
    eagle2, adt, lantern, adt_lantern = (
        read_recipe(str(ROOT / "configs" / "paper" / f"{name}.yaml"), "benchmark")
        for name in ("eagle2", "adt", "lantern", "adt_lantern")
    )
    rule = {"verifier": "lantern", "lantern_k": 100, "lantern_delta": 0.5}
    assert lantern == eagle2 | rule and adt_lantern == adt | rule


SHIPPED = f"--config {ROOT}/configs/tiny.yaml --prompt {ROOT}/configs/prompts/tiny_test.txt"


def test_the_shipped_model_has_all_that_it_needs(capsys) -> None:
    paper_needs(flags=f"{SHIPPED} --num_images 20", methods="ar adt lantern")
    said = capsys.readouterr().out
    assert "FAULT" not in said and "together" in said
    assert "image quality: computed: accuracy, tiny_fid" in said


def test_all_that_is_missing_is_named_at_once(tmp_path: Path, capsys) -> None:
    flags = f"--model anole --model_path {tmp_path}/none --drafter_path {tmp_path}/no"
    with pytest.raises(Failure) as told:
        paper_needs(flags=f"{flags} --prompt PartiPrompts")
    assert "target (folder)" in str(told.value) and "drafter (folder)" in str(told.value)
    said = capsys.readouterr().out
    assert "hf download leloy/Anole-7b-v0.1-hf" in said and "jadohu/anole_drafter" in said
    assert "fid skipped: it needs real images" in said and "clip skipped: --clip_path" in said
    assert "image quality: computed: none" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ('--ref_dir "my images"', "'images\"': a word without a flag"),
        ("--report-dir x", "--report_dir: 'x' works only without run.sh, which names this folder"),
        ("--metrics nope", "--metrics: .*'nope'"),
    ],
)
def test_flags_of_evaluate_are_refused_as_the_script_uses_them(words, said) -> None:
    with pytest.raises(SettingsError, match=rf"^EVALUATE \(values without .*\): {said}"):
        paper_needs(flags=SHIPPED, methods="ar", evaluate=words)


def test_metrics_that_are_chosen_and_real_images(tmp_path: Path, capsys) -> None:
    weights = tmp_path / "inception.pth"
    weights.write_bytes(b"")
    evaluate = f"--metrics fid,pr --inception_path {weights} --vgg_path {weights}"
    evaluate += f" --ref_dir {tmp_path}"
    with pytest.raises(Failure):
        paper_needs(flags=f"--model anole --model_path {tmp_path}/no --prompt x", evaluate=evaluate)
    assert "image quality: computed: fid, pr\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("without", "methods", "missing"),
    [
        ("drafter", "ar eagle2", "no drafter for eagle2: .*DRAFTER=folder"),
        ("drafter", "ar jacobi", None),
        ("vq_distances", "ar lantern", "table of nearest codes for lantern: .*vq_distances"),
        ("vq_distances", "ar eagle2", None),
    ],
)
def test_what_is_missing_matters_to_rows_that_read_it(without, methods, missing, tmp_path) -> None:
    link_all_but(without, tmp_path)
    with pytest.raises(Failure, match=missing) if missing else nullcontext():
        paper_needs(flags=f"{SHIPPED} --model_path {tmp_path}", methods=methods)


def link_all_but(name: str, folder: Path) -> None:
    for path in (ROOT / "ckpts/tiny").iterdir():
        if path.name != name:
            (folder / path.name).symlink_to(path)


def test_a_table_that_is_too_narrow_for_a_row_is_named(tmp_path) -> None:
    link_all_but("vq_distances", tmp_path)
    (tmp_path / "vq_distances").mkdir()
    table = load_table(table_path(ROOT / "ckpts/tiny", 1024), 1024, 100)
    np.save(table_path(tmp_path, 1024, 100), table)
    flags = f"{SHIPPED} --model_path {tmp_path}"
    paper_needs(flags=flags, methods="ar lantern")
    found = "nearest codes for lantern_published: expected 101 columns or more, got 100"
    with pytest.raises(Failure, match=found):
        paper_needs(flags=flags, methods="ar lantern lantern_published")


def test_hashes_tell_another_drafter_and_another_machine(tmp_path, monkeypatch) -> None:
    drafter, found = shutil.copytree(ROOT / "ckpts/tiny/drafter", tmp_path / "drafter"), []
    for text, cpu in (("one", "A"), ("one", "A"), ("two", "A"), ("two", "B")):
        monkeypatch.setattr("support.devices.cpu_name", lambda cpu=cpu: cpu)
        (drafter / "training.json").write_text(text)
        hashes = tmp_path / "out" / "hashes.json"
        paper_needs(flags=f"{SHIPPED} --device cpu --drafter_path {drafter}", hashes=str(hashes))
        found.append(hashes.read_text())
    assert found[0] == found[1] and len({*found}) == 3


def test_rows_are_methods_or_recipes_of_the_paper() -> None:
    rows = methods_of("lantern_pp jacobi adt")
    assert [row.method for row in rows.values()] == ["static", "jacobi", "adt"]
    own = rows["adt"].own  # its bounds from the paper's mean depths 3.86 and 5.15
    assert (rows["adt"].nodes, own.d_min, own.d_max) == (58, 2, 8), "the paper's, not our default"
    with pytest.raises(SettingsError, match="METHODS: expected .*got 'eagle3'"):
        methods_of("ar eagle3")
    with pytest.raises(SettingsError, match="METHODS: expected .* got 'jacobi:window=10'"):
        methods_of("ar jacobi:window=10")
