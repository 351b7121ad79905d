"""The command line: `python main.py <command> --flag value ...`.

A command imports what it runs only after its settings have been checked, so a mistake is reported
at once.
"""

import os
import signal

if __name__ == "__main__" and signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
    # Ctrl-C while the modules below are loaded: nothing has begun, so nothing is to be said.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

import difflib
import sys
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature

import fire

from configs.fields import SettingsError
from configs.flags import flags_of
from configs.help import help_text, named_method
from configs.words import read_words
from runs.commands import (
    benchmark_settings,
    distance_settings,
    evaluate_settings,
    extraction_settings,
    inspect_settings,
    page_settings,
    run_settings,
    train_settings,
    verify_settings,
)
from support.border import run_guarded


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Give fire the command's flags as keyword-only parameters, whose values stay text."""
    only = Parameter.KEYWORD_ONLY
    parameters = [Parameter(name, only, default=None) for name in flags_of(function.__name__)]
    function.__signature__ = Signature(parameters)
    return fire.decorators.SetParseFn(str)(function)


@command
def generate_images(**texts: str) -> None:
    """Generate images from prompts."""
    settings = run_settings(texts)
    _check_device(settings.device)
    from runs.generate import generate_images as generate

    generate(settings)


@command
def benchmark(**texts: str) -> None:
    """Compare methods on the same prompts and seeds."""
    settings = benchmark_settings(texts)
    _check_device(settings.run.device)
    from runs.prompts import prompt_items

    prompt_items(settings.run)  # reports a bad prompt file before the model is loaded
    if settings.sweep is not None:
        from eval.bench.sweep import run_sweep

        run_sweep(settings)
    else:
        from eval.bench.benchmark import run_benchmark

        run_benchmark(settings)


@command
def evaluate(**texts: str) -> None:
    """Make tables, image metrics and a report from run folders."""
    settings = evaluate_settings(texts)
    _check_device(settings.device)
    from eval.report.run import read_runs

    # Folders that cannot be used are reported before the slow imports.
    runs = read_runs(settings.folders, settings.baseline)
    from eval.report.evaluate import evaluate as evaluate_runs

    evaluate_runs(settings, runs)


@command
def extract_tokens(**texts: str) -> None:
    """Turn images and captions, or the target's own samples, into token shards."""
    settings = extraction_settings(texts)
    _check_device(settings.run.device)
    from runs.extract import extract_tokens as extract

    extract(settings)


@command
def inspect(**texts: str) -> None:
    """Say what a checkpoint holds and lacks, and the memory that it needs."""
    settings = inspect_settings(texts)
    from runs.inspection import inspect_checkpoint

    inspect_checkpoint(settings)


@command
def verify(**texts: str) -> None:
    """Run a checkpoint and say whether all is well with it."""
    settings = verify_settings(texts)
    _check_device(settings.device)
    from eval.verify.verify import verify as verify_checkpoint

    verify_checkpoint(settings)


@command
def vq_distances(**texts: str) -> None:
    """Make the table of nearest latents."""
    settings = distance_settings(texts)
    from runs.distances import make_distances

    make_distances(settings)


@command
def demo(**texts: str) -> None:
    """Serve a page that draws while it decodes."""
    settings = page_settings(texts)
    _check_device(settings.engine.device)
    from adt_tree.page.server import serve

    serve(settings)


@command
def train_drafter(**texts: str) -> None:
    """Train a drafter."""
    settings = train_settings(texts)
    _check_device(settings.device)
    from runs.training.train import train

    train(settings)


def _check_device(name: str) -> None:
    """Refuse a GPU that is not there before the slow imports."""
    if name.startswith("cuda"):
        from support.devices import pick_device

        pick_device(name)


_FUNCTIONS = (
    generate_images,
    benchmark,
    evaluate,
    extract_tokens,
    inspect,
    verify,
    vq_distances,
    demo,
    train_drafter,
)
COMMANDS = {function.__name__: function for function in _FUNCTIONS}


def run(words: Sequence[str]) -> None:
    """Run the command that the words name, or print help."""
    if not words or words[0] in ("-h", "--help", "help"):
        print(help_text())
        return
    name = words[0].replace("-", "_")
    if name not in COMMANDS:
        near = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise SettingsError(
            f"{words[0]!r}: found as first word; {hint}allowed: {', '.join(COMMANDS)}, --help"
        )
    if "--help" in words or "-h" in words:
        print(help_text(name, named_method(words)))
        return
    texts = read_words(name, words[1:])
    fire.Fire(
        COMMANDS,
        command=[name, *(f"--{flag}={text}" for flag, text in texts.items())],
        name="main.py",
    )


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line, sys.argv by default, and return its exit code (support/border.py)."""
    words = sys.argv[1:] if words is None else words
    return run_guarded(lambda: run(words), interrupted=_after_interrupt(words))


def _after_interrupt(words: Sequence[str]) -> str:
    """Return what to say after Ctrl-C: whether the same command goes on from there."""
    resumes = "".join(words[:1]).startswith(("generate", "extract", "train"))
    resumes = resumes or any(word.startswith("--sweep") for word in words)
    return "interrupted" + ("; the same command continues where it stopped" if resumes else "")


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
