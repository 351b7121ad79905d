"""Every command at every kind of place that cannot be written or read: one line."""

import shlex
from pathlib import Path

import pytest
from browser import thinned
from damage import fill_disk
from made_runs import scenes, write_run

import main
from scripts.checkpoints.chameleon import write_checkpoint

MODEL = ["--model_path={data}/checkpoint", "--device=cpu"]
TRAINING = ["--tokens={data}/tokens", "--holdout=4", *MODEL]
COMMANDS = {
    "generate_images": ("output_dir", ["--prompt=a cat", *MODEL]),
    "benchmark": ("output_dir", ["--prompt=a cat", "--methods=ar", *MODEL]),
    "evaluate": ("report_dir", ["--output_dir={data}/run", "--device=cpu"]),
    "evaluate ": ("cache_dir", ["--output_dir={data}/run", "--report_dir=report"]),
    "extract_tokens": ("output_dir", ["--from_prompts", "--num_images=2", *MODEL]),
    "train_drafter": ("output_dir", TRAINING),
    "train_drafter ": ("cache_features", [*TRAINING, "--output_dir=out"]),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A checkpoint, its tokens and a run."""
    folder = tmp_path_factory.mktemp("data")
    write_checkpoint(folder / "checkpoint")
    (folder / "p.txt").write_text("\n".join(f"a cat {n}" for n in range(8)))
    words = f"--from_prompts --prompt={folder}/p.txt --num_images=8 --output_dir={folder}/tokens"
    model = [word.format(data=folder) for word in MODEL]
    assert main.main(["extract_tokens", *words.split(), *model]) == 0
    write_run(folder / "run", *scenes(1))
    return folder


PLACES = ["file", "file/below", "x" * 300, "/proc/nowhere"]


def errors(capsys) -> list[str]:
    """What a command says on stderr, without notes, which it says once a process, and progress."""
    said = capsys.readouterr().err.splitlines()
    assert "Traceback" not in "".join(said)
    return [line for line in said if line.startswith("error: ")]


@pytest.mark.parametrize("place", thinned(PLACES))
@pytest.mark.parametrize("command", COMMANDS)
def test_a_place_that_cannot_be_written_is_one_line(
    tmp_path, monkeypatch, capsys, data, command, place
):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    flag, words = COMMANDS[command]
    words = [word.format(data=data) for word in words]
    code = main.main([command.strip(), *words, f"--{flag}={place}"])
    (said,) = errors(capsys)
    assert code in (1, 2) and place[:150] in said
    assert Path("file").read_text() == "mine"


READERS = {
    "generate_images": ["--prompt=a cat", "--model_path={place}"],
    "generate_images ": ["--prompt={place}.txt", *MODEL],
    "evaluate": ["--output_dir={place}"],
    "inspect": ["--model_path={place}"],
    "train_drafter": ["--tokens={place}", "--output_dir=out", *MODEL],
    "extract_tokens": ["--data_dir={place}", "--output_dir=out", *MODEL],
}


@pytest.mark.parametrize("place", thinned(["nowhere", *PLACES[1:]]))
@pytest.mark.parametrize("command", READERS)
def test_a_place_that_cannot_be_read_is_one_line(
    tmp_path, monkeypatch, capsys, data, command, place
):
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("mine")
    words = [word.format(data=data, place=place) for word in READERS[command]]
    assert main.main([command.strip(), *words]) in (1, 2)
    (said,) = errors(capsys)
    assert place[:80] in said


_QUICK = "--num_images 1 --device cpu --prompt 'a cat, #1' --model_path {} --output_dir out"
_READ = "--output_dir run --ref_dir run/img --report_dir report --cache_dir cache"


@pytest.mark.parametrize(
    ("file", "words", "printed"),
    [
        ("00000_0.png", f"generate_images --method jacobi {_QUICK}", '"target_forwards": '),
        ("benchmark.json", f"benchmark --methods ar,jacobi --repeats 1 {_QUICK}", "| jacobi | "),
        ("measurements.jsonl", f"benchmark --methods ar {_QUICK}", '"target_forwards": '),
        ("speed.md", f"evaluate --metrics none --images 0 {_READ}", "| run | ar | "),
        (".npy", f"evaluate --metrics tiny_fid --images 0 {_READ}", "speed, tiny_fid"),
    ],
)
def test_figures_are_printed(checkpoint, tmp_path, monkeypatch, capsys, file, words, printed):
    monkeypatch.chdir(tmp_path)
    write_run(Path("run"), *scenes(2))
    fill_disk(monkeypatch, file)
    code = main.main(shlex.split(words.format(checkpoint)))
    assert code == (0 if file == ".npy" else 2 if file.endswith(".png") else 1)
    told = capsys.readouterr()
    assert printed in told.out, told.err
    assert "No space left on device" in told.err
