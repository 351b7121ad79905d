"""What a mistaken command line or recipe is told: one line, with what was found and is allowed."""

import shutil

import pytest

import main
from configs.command_line import read_words
from configs.commands import COMMANDS, flags_of
from configs.fields import SettingsError
from configs.help import command_help
from configs.schema import ROOT
from runs.commands import run_settings

DRAW = ["generate_images", "--prompt", "a cat"]


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A working folder with some files that are no prompts, and recipes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/prompts.odd").touch()
    (tmp_path / "deep.yaml").write_text("prompt: " + "[" * 20_000)
    (tmp_path / "nul.yaml").write_text('output_dir: "a\\0b"\n')
    (tmp_path / "twice.yaml").write_text("cfg: 2\ncfg: 2\n")
    (tmp_path / "traced.yaml").write_text("trace: true\n")
    (tmp_path / "good.yaml").write_text("cfg: 2\n")
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inspect", "anole"], "'anole': a word without a flag; did you mean --model anole?"),
        (["inspect", "cat"], "'cat': a word without a flag; values follow their flag"),
        ([*DRAW, "--sede=1"], "did you mean --seed? allowed: those of `python main.py generate_i"),
        (["benchmark", *DRAW[1:], "--trace"], "--trace: no such flag here; only generate_images"),
        (
            ["benchmark", *DRAW[1:], "--config=traced.yaml"],
            "--config traced.yaml: trace: no such flag here; only generate_images has it",
        ),
        ([*DRAW[:2], "nofile.csv"], "found 'nofile.csv', which looks like a file; allowed: a text"),
        ([*DRAW[:2], "data/p.tsv"], "found 'data/p.tsv', which looks like a file"),
        ([*DRAW[:2], "data/prompts.odd"], "found 'data/prompts.odd', which is a file here"),
        ([*DRAW[:2], "data"], "found 'data', which is a folder here; allowed: a text; a .txt file"),
        ([*DRAW, "--config=deep.yaml"], "--config deep.yaml: found lists nested too deeply"),
        ([*DRAW, "--config=nul.yaml"], "--output_dir: found 'a\\x00b'; allowed: text without"),
        ([*DRAW, "--config=twice.yaml"], "--config twice.yaml: cannot be read: key 'cfg' twice"),
        ([*DRAW, "--config=good.yaml,"], "--config: found 'good.yaml,'; allowed: names of YAML"),
        ([*DRAW, "--lantern", "--method=ar"], "--verifier: found 'lantern'; allowed: with --"),
        (
            [*DRAW, "--model=anole", "--model_path=owner/name", "--method=adt"],
            "--drafter_path: missing, with --model_path owner/name from the hub; allowed: the draf",
        ),
        (
            [*DRAW, "--model=lumina_mgpt"],
            f"--model_path {ROOT}/ckpts/lumina_mgpt/Lumina-mGPT-7B-768: found no such folder; "
            "allowed: this folder, once the files are in it, or owner/name; the files: `hf",
        ),
        (["inspect", "--target_size=512"], "--target_size: found '512'; allowed: only with --mo"),
    ],
)
def test_mistakes(here, capsys, words, message):
    assert main.main(words) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("error: ") and message in said.err
    assert said.err.count("\n") == 1


def test_values_of_recipes_are_what_is_written(here):
    """YAML alone would make 750, 20240101 and 8 of these."""
    text = "prompt: 12:30\noutput_dir: 2024_01_01\nseed: 010\ntrace: off\ntop_p: .5\n"
    (here / "odd.yaml").write_text(text)
    settings = run_settings(read_words("generate_images", ["--config=odd.yaml"]))
    assert (settings.prompt, settings.output_dir, settings.seed) == ("12:30", "2024_01_01", 10)
    assert (settings.trace, settings.sampling.top_p) == (False, 0.5)


def test_a_word_that_is_a_file_can_be_drawn_from_a_list(here):
    (here / "words.txt").write_text("data\n")
    assert run_settings({"prompt": "words.txt"}).source == "file"


def test_a_checkpoint_without_a_drafter_is_decoded_by_jacobi(here, checkpoint, capsys):
    shutil.copytree(checkpoint, here / "bare", ignore=shutil.ignore_patterns("drafter"))
    for path in ("owner/name", "bare"):
        texts = {"prompt": "a cat", "model": "anole", "model_path": path}
        assert run_settings(texts).method.method == "jacobi"
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and f"none comes with --model_path {path};" in said
        assert run_settings(texts | {"method": "ar"}).method.method == "ar"
        for own in ({"method": "adt"}, {"adt_beta": "0.5"}):
            with pytest.raises(SettingsError, match="--drafter_path"):
                run_settings(texts | own)
    texts = {"prompt": "a cat", "model_path": str(checkpoint)}
    assert run_settings(texts).method.method == "adt"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_no_flag_that_is_refused(command):
    shown = {
        line.split()[0][2:]
        for line in command_help(command, everything=True).splitlines()
        if "  --" in line[:4]
    }
    assert shown == flags_of(command).keys()
    assert not shown & COMMANDS[command].gone.keys()
