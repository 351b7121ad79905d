"""The command line: `python main.py <command> --flag value ...`.

A command imports what it runs only after its settings have been checked, so a mistake is reported
at once.
"""

import os
import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    # Ctrl-C while the modules below are loaded: nothing has begun, so nothing is to be said.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import fire

from configs.command_line import read_words
from configs.fields import SettingsError, mismatch, near_names, one_of
from configs.help import asked_help, program_help
from runs import commands
from support.border import run_guarded


def generate_images(texts: Mapping[str, str]) -> None:
    settings = commands.run_settings(texts)
    _check_device(settings.device)
    from runs.generate import generate_images

    generate_images(settings)


def benchmark(texts: Mapping[str, str]) -> None:
    settings = commands.benchmark_settings(texts)
    _check_device(settings.run.device)
    from runs.prompts import prompt_items

    prompt_items(settings.run)  # reports a bad prompt file before the model is loaded
    if settings.sweep is not None:
        from eval.bench.sweep import run_sweep

        run_sweep(settings)
    else:
        from eval.bench.benchmark import run_benchmark

        run_benchmark(settings)


def tune(texts: Mapping[str, str]) -> None:
    settings = commands.tune_settings(texts)
    _check_device(settings.run.device)
    from runs.prompts import prompt_items

    prompt_items(settings.run)  # reports a bad prompt file before the model is loaded
    from eval.bench.tune import run_tune

    run_tune(settings)


def evaluate(texts: Mapping[str, str]) -> None:
    settings = commands.evaluate_settings(texts)
    _check_device(settings.device)
    from eval.report.run import read_runs

    # Folders that cannot be used are reported before the slow imports.
    runs = read_runs(settings.folders, settings.baseline)
    from eval.report.evaluate import evaluate

    evaluate(settings, runs)


def extract_tokens(texts: Mapping[str, str]) -> None:
    settings = commands.extraction_settings(texts)
    _check_device(settings.run.device)
    if settings.data_dir is not None:
        from runs.captioned_images import captioned_images

        captioned_images(Path(settings.data_dir))  # reports a bad folder before the slow imports
    from runs.extract import extract_tokens

    extract_tokens(settings)


def inspect(texts: Mapping[str, str]) -> None:
    settings = commands.inspect_settings(texts)
    if settings.run:
        _check_device(settings.device)
    from runs.check.files import inspect_checkpoint

    inspect_checkpoint(settings)


def vq_distances(texts: Mapping[str, str]) -> None:
    settings = commands.distance_settings(texts)
    from runs.distances import make_distances

    make_distances(settings)


def demo(texts: Mapping[str, str]) -> None:
    settings = commands.page_settings(texts)
    _check_device(settings.engine.device)
    from adt_tree.page.server import serve

    serve(settings)


def train_drafter(texts: Mapping[str, str]) -> None:
    settings = commands.train_settings(texts)
    _check_device(settings.device)
    from runs.training.train import train

    train(settings)


def _check_device(name: str) -> None:
    """Refuse a GPU that is not there before the slow imports."""
    if name.startswith("cuda"):
        from support.devices import pick_device

        pick_device(name)


COMMANDS = {
    function.__name__: function
    for function in (
        generate_images,
        benchmark,
        tune,
        evaluate,
        extract_tokens,
        inspect,
        vq_distances,
        demo,
        train_drafter,
    )
}
GONE_COMMANDS = {"verify": "inspect --run"}


def run(words: Sequence[str]) -> None:
    """Run the command that the words name, or print help or the version."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(program_help())
        return
    if words[0] in ("--version", "-V"):
        from support.provenance import version_line

        print(version_line())
        return
    name = words[0].replace("-", "_")
    if name in GONE_COMMANDS:
        raise SettingsError(f"{name}: there is no such command; use `{GONE_COMMANDS[name]}`")
    if name not in COMMANDS:
        expected = f"{one_of(COMMANDS)}, --help or --version"
        raise mismatch("command", repr(words[0]), expected, near_names(name, COMMANDS))
    if "--help" in words or "-h" in words:
        print(asked_help([name, *words[1:]]))
        return
    texts = read_words(name, words[1:])
    # fire dispatches but reads no flag: it would make numbers, lists and dicts of prompts
    fire.Fire({name: lambda: COMMANDS[name](texts)}, command=[name], name="main.py")


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line, sys.argv by default, and return its exit code (support/border.py)."""
    words = sys.argv[1:] if words is None else words
    return run_guarded(lambda: run(words), interrupted=_after_interrupt(words))


def _after_interrupt(words: Sequence[str]) -> str:
    """Return what to say after Ctrl-C: whether the same command goes on from there."""
    resumes = "".join(words[:1]).startswith(("generate", "extract", "train", "tune"))
    resumes = resumes or any(word.startswith("--sweep") for word in words)
    return "interrupted" + ("; the same command continues where it stopped" if resumes else "")


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
