"""The command line: refusals before any work, exit codes, texts that survive fire."""

import subprocess
import sys
import time
import types
from pathlib import Path

import pytest
from stand_ins import empty_checkpoint

import main
from configs.schema import ROOT

AFTER = "; import sys; sys.exit(code if 'torch' not in sys.modules else 99)"


@pytest.fixture
def model(tmp_path) -> str:
    return f"--model_path={empty_checkpoint(tmp_path / 'model')}"


@pytest.fixture
def seen(monkeypatch) -> list:
    """Stand-ins for what the commands call: they note their settings."""
    found: list = []
    for module, name in (
        ("runs.generate", "generate_images"),
        ("eval.bench.benchmark", "run_benchmark"),
    ):
        stand_in = types.ModuleType(module)
        setattr(stand_in, name, found.append)
        monkeypatch.setitem(sys.modules, module, stand_in)
    return found


def python(*words: str, cwd: Path = ROOT) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, *words], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "text",
    [
        *(
            "a, b",
            "a #1 cat",
            "#",
            "'single'",
            '"double"',
            'it\'s "both"',
            "123",
            "1e5",
            "None",
            "True",
            "[1, 2]",
        ),
        *(
            "{a: b}",
            "(1,)",
            "a=b",
            "--seed=3",
            "--help",
            "-h",
            "--",
            "-",
            "-x",
            "é 漢 🐈",
            "line\nbreak",
            "\ttab ",
        ),
        *("generate_images", "%s $HOME `ls` \\n", "notrace", "a" * 5000),
    ],
)
def test_texts_survive_fire(model, seen, text):
    assert main.main(["generate_images", f"--prompt={text}", model]) == 0
    if not text.startswith("-") or text == "-":
        assert main.main(["generate_images", "--prompt", text, model]) == 0
    assert {settings.prompt for settings in seen} == {text}


def test_values_arrive_as_their_types(model, seen):
    words = [
        "--prompt",
        "a cat",
        "--num-images",
        "-1",
        "--notrace",
        "--cfg",
        "1",
        "--method",
        "eagle2",
        "--depth=3",
    ]
    assert main.main(["generate-images", *words, model]) == 0
    settings = seen[0]
    assert (settings.num_images, settings.trace, settings.sampling.cfg, settings.method.depth) == (
        1,
        False,
        1.0,
        3,
    )


def test_benchmark_gets_its_settings(model, seen):
    assert (
        main.main(
            [
                "benchmark",
                "--prompt",
                "a cat",
                "--methods",
                "ar,adt:proposal=topk",
                "--repeats=2",
                model,
            ]
        )
        == 0
    )
    assert [method.method for method in seen[0].methods] == ["ar", "adt"] and seen[0].repeats == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["generate"], "'generate': found as first word; did you mean generate_images? allowed: "),
        (
            ["--prompt", "a cat"],
            "'--prompt': found as first word; allowed: generate_images, benchmark",
        ),
        (["__class__"], "'__class__': found as first word"),
        (["generate_images"], "--prompt: missing"),
        (["generate_images", "a", "cat"], "'a': a word without a flag"),
        (["generate_images", "--prompt"], "--prompt: found no value"),
        (["generate_images", "--prompt="], "--prompt: found ''"),
        (["generate_images", "--prompt", "a", "cat"], "'cat': a word without a flag"),
        (
            ["generate_images", "--prompt=a", "--sede=3"],
            "--sede: unknown flag; did you mean --seed?",
        ),
        (
            ["generate_images", "--prompt=a", "--seed=abc"],
            "--seed: found 'abc'; allowed: a whole number",
        ),
        (
            ["generate_images", "--prompt=a", "--lantern_k=5"],
            "--lantern_k: found 5; allowed: only with --verifier",
        ),
        (["generate_images", "--prompt=no.txt"], "--prompt no.txt: found no such file"),
        (
            ["generate_images", "--prompt=a", "--model=anola"],
            "--model: found 'anola'; allowed: tiny, anole",
        ),
        (["vq_distances", "--tokenizer_path=./no"], "--tokenizer_path ./no: found no such folder"),
        (["generate_images", "--prompt=a", "--config=no.yaml"], "--config no.yaml: cannot be read"),
        (
            ["generate_images", "--prompt=a", "--method=ar", "--peanut"],
            "--peanut: found True; allowed: only with --method adt, not ar",
        ),
        (["benchmark", "--prompt=a", "--methods=ar,eagle"], "--methods: found 'eagle'"),
        (
            ["extract_tokens", "--output_dir=o"],
            "--data_dir: missing; allowed: images with captions, or --from_prompts",
        ),
        (
            ["extract_tokens", "--data_dir=no", "--output_dir=o"],
            "--data_dir: found 'no'; allowed: a folder, a .jsonl",
        ),
        (
            ["benchmark", "--prompt=PartiPrompts", "--prompt_file=no"],
            "--prompt PartiPrompts: found no file no",
        ),
    ],
)
def test_refusals(monkeypatch, tmp_path, capsys, model, words, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "eval.bench.benchmark", None)
    assert main.main([*words, model] if len(words) > 1 else words) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and message in said.err
    assert said.err.count("\n") == 1


def test_a_missing_model_is_refused_in_a_process_of_its_own(tmp_path):
    words = ["generate_images", "--prompt", "a cat", "--model_path", str(tmp_path / "nowhere")]
    started = time.monotonic()
    done = python(str(ROOT / "main.py"), *words, cwd=tmp_path)
    assert (
        done.returncode == 2 and time.monotonic() - started < 20
    )  # 5 s on a machine that is not busy
    assert done.stdout == "" and "Traceback" not in done.stderr
    assert done.stderr == (
        f"error: --model_path {tmp_path / 'nowhere'}: found no such folder; "
        f"allowed: a folder such as {ROOT / 'ckpts/tiny'}, or owner/name; "
        "the files: shipped as ckpts/tiny\n"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 0),
        (["--help"], 0),
        (["generate_images", "--help"], 0),
        (["benchmark", "--", "--help"], 0),
        (["extract_tokens", "--output_dir=o"], 2),
        (["generate_images", "--sede", "3"], 2),
        (["generate_images", "--prompt", "x.txt"], 2),
        (["generate_images", "--prompt", "PartiPrompts", "--prompt_file", "nowhere"], 2),
        (["benchmark", "--prompt", "PartiPrompts", "--prompt_file", "nowhere"], 2),
    ],
)
def test_torch_is_not_imported_for_help_and_refusals(model, words, code):
    extra = [model] if code == 2 else []
    done = python("-c", f"import main; code = main.main({[*words, *extra]!r})" + AFTER)
    assert done.returncode == code, done.stderr
    assert bool(done.stdout) == (code == 0) and "Traceback" not in done.stderr


def test_help_names_commands_and_flags(capsys):
    for words in ([], ["-h"], ["--help"], ["help"]):
        assert main.main(words) == 0
        assert all(name in capsys.readouterr().out for name in ("generate_images --prompt",))
    assert main.main(["benchmark", "--prompt", "x", "-h"]) == 0
    assert "--methods" in capsys.readouterr().out


def test_an_interruption_says_that_the_same_command_continues(monkeypatch, model, capsys):
    def interrupted(settings):
        raise KeyboardInterrupt

    stand_in = types.ModuleType("runs.generate")
    stand_in.generate_images = interrupted
    monkeypatch.setitem(sys.modules, "runs.generate", stand_in)
    assert main.main(["generate_images", "--prompt", "a cat", model]) == 130
    assert "the same command continues" in capsys.readouterr().err


def test_a_mistake_of_ours_keeps_its_traceback(monkeypatch, model):
    stand_in = types.ModuleType("runs.generate")
    stand_in.generate_images = lambda settings: int("x")
    monkeypatch.setitem(sys.modules, "runs.generate", stand_in)
    with pytest.raises(ValueError, match="invalid literal"):
        main.main(["generate_images", "--prompt", "a cat", model])
