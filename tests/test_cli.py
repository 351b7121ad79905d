"""The command line: refusals before any work, exit codes, texts that survive fire."""

import platform
import re
import sys
from importlib import metadata
from types import SimpleNamespace

import pytest
from ran import ran
from stand_ins import empty_checkpoint

import main
from configs.schema import ROOT
from support.output import remark


@pytest.fixture
def model(tmp_path) -> str:
    return f"--model_path={empty_checkpoint(tmp_path / 'model')}"


@pytest.fixture
def seen(monkeypatch) -> list:
    """The settings that a stand-in for `generate_images` gets."""
    found: list = []
    stand_in = SimpleNamespace(generate_images=found.append)
    monkeypatch.setitem(sys.modules, "runs.generate", stand_in)
    return found


TEXTS = ["a, b", "a #1 cat", "#", "'single'", '"double"', 'it\'s "both"']
TEXTS += ["123", "1e5", "None", "True"]
TEXTS += ["[1, 2]", "{a: b}", "(1,)", "a=b", "--seed=3", "--help", "-h", "--", "-", "-x", "é 漢 🐈"]
TEXTS += ["line\nbreak", "\ttab ", "generate_images", "%s $HOME `ls` \\n", "notrace", "a" * 5000]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_survive_fire(model, seen, text):
    assert main.main(["generate_images", f"--prompt={text}", model]) == 0
    if not text.startswith("-") or text == "-":
        assert main.main(["generate_images", "--prompt", text, model]) == 0
    assert {settings.prompts.prompt for settings in seen} == {text}


def test_values_arrive_as_their_types(model, seen):
    words = "--prompt x --num-images -1 --notrace --cfg 1 --method eagle2 --depth=3"
    assert main.main(["generate-images", *words.split(), model]) == 0
    settings = seen[0]
    assert (settings.prompts.num_images, settings.trace) == (1, False)
    assert (settings.engine.sampling.cfg, settings.engine.method.depth) == (1.0, 3)


def test_without_a_recipe_none_is_read(model, seen, monkeypatch):
    monkeypatch.delattr("configs.recipes.read_yaml")
    assert main.main(["generate_images", "--prompt=x", "--method=adt", model]) == 0
    assert seen[0].engine.method.method == "adt"


def test_what_the_models_own_recipe_sets_is_told(model, seen, capsys):
    remark.cache_clear()
    words = ["--prompt=x", "--model=anole", model, "--top_k=5", "--method=adt_lantern"]
    assert main.main(["generate_images", *words]) == 0
    assert capsys.readouterr().err == "note: --dtype bf16: as configs/anole.yaml says\n"
    engine = seen[0].engine
    assert (engine.sampling.top_k, engine.method.verifier) == (5, "lantern")


def test_a_missing_model_is_refused_in_a_process_of_its_own(tmp_path):
    words = ["generate_images", "--prompt", "a cat", "--model_path", str(tmp_path / "no where")]
    done = ran([sys.executable, "-X", "importtime", ROOT / "main.py", *words], tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    *imported, told = done.stderr.splitlines(keepends=True)
    assert not any(line.split()[-1:] == ["torch"] for line in imported), "it takes seconds"
    assert told == (
        f"error: --model_path {tmp_path / 'no where'}: expected a folder such as "
        f"{ROOT / 'ckpts/tiny'}, or owner/name, got a path that does not exist. "
        "Get it: ckpts/tiny, which is included. `python main.py inspect --model tiny --model_path "
        f"'{tmp_path / 'no where'}'` lists all files that tiny needs.\n"
    )
    assert list(tmp_path.iterdir()) == []


WITHOUT_TORCH = [
    ([], 0),
    (["--help"], 0),
    (["--version"], 0),
    (["generate_images", "--help"], 0),
    (["benchmark", "--", "--help"], 0),
    (["extract_tokens", "--output_dir=o"], 2),
    (["generate_images", "--sede", "3"], 2),
    (["generate_images", "--prompt", "x.txt"], 2),
    (["generate_images", "--prompt", "PartiPrompts", "--prompt_file", "nowhere"], 2),
    (["benchmark", "--prompt", "PartiPrompts", "--prompt_file", "nowhere"], 2),
    (["extract_tokens", "--data_dir=configs", "--output_dir=outputs/none"], 2),
    (["evaluate", "--output_dir=docs"], 2),
]
PROGRAM = f"""
import sys, main, configs.model
configs.model.sees_gpu = lambda: False  # only torch knows, where there is a driver
for words, code in {WITHOUT_TORCH}:
    assert main.main(words) == code, words
    assert "torch" not in sys.modules, words
"""


def test_torch_is_not_imported_for_help_and_refusals():
    done = ran([sys.executable, "-c", PROGRAM])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("commit", ["a1b2c3+changes", None], ids=["checkout", "no-git"])
def test_version_is_one_line_for_a_bug_report(commit, monkeypatch, capsys):
    monkeypatch.setattr("support.provenance.revision", lambda: commit)
    for word in ("--version", "-V"):
        assert main.main([word]) == 0
        program, *between, torch, python = capsys.readouterr().out.removesuffix("\n").split(", ")
        assert re.fullmatch(r"adt-tree \d+\.\d+\.\d+", program)
        assert between == ([] if commit is None else [f"revision {commit}"])
        assert torch == f"torch {metadata.version('torch')}"
        assert python == f"Python {platform.python_version()}"


@pytest.mark.parametrize(
    ("flags", "said"), [([], "continues"), (["--overwrite"], "without --overwrite continues")]
)
def test_an_interruption_says_that_the_same_command_continues(
    monkeypatch, model, capsys, flags, said
):
    def interrupted(settings):
        raise KeyboardInterrupt

    stand_in = SimpleNamespace(generate_images=interrupted)
    monkeypatch.setitem(sys.modules, "runs.generate", stand_in)
    assert main.main(["generate_images", "--prompt", "a cat", model, *flags]) == 130
    assert f"the same command {said}" in capsys.readouterr().err


_TWICE = """
import atexit, os, runpy, signal, sys, types
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background shell's child ignores it
interrupt = lambda *_: os.kill(os.getpid(), signal.SIGINT)
sys.modules["runs.generate"] = types.SimpleNamespace(generate_images=interrupt)
atexit.register(interrupt)
sys.argv = ["main.py", "generate_images", "--prompt", "a cat", {model!r}]
runpy.run_path("main.py", run_name="__main__")
"""


def test_a_second_interruption_leaves_no_traceback(model) -> None:
    done = ran([sys.executable, "-c", _TWICE.format(model=model)])
    assert done.returncode == 130
    assert "Traceback" not in done.stderr and done.stderr.count("interrupted") == 1
