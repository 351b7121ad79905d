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
from collections.abc import Callable, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import fire

from configs.command_line import is_dry, read_words
from configs.evaluation import EvaluateSettings
from configs.extraction import ExtractionSettings
from configs.fields import Settings, mismatch, near_names, one_of, settings_dict
from configs.help import asked_help, program_help
from configs.tools import InspectSettings
from runs import commands
from runs.captioned_images import captioned_images
from support.border import OUT_OF_MEMORY, TRAINING_OUT_OF_MEMORY, run_guarded
from support.threads import prepare_threads


def extract_tokens(settings: ExtractionSettings) -> None:
    """Run `extract_tokens`."""
    if settings.data_dir is not None:
        captioned_images(Path(settings.data_dir))  # reports a bad folder before the slow imports
    from runs.extract import extract_tokens

    extract_tokens(settings)


def _later(name: str) -> Callable[[Any], None]:
    """Return the function `module:name`, whose module is imported when it is called."""
    return lambda settings: resolve_name(name)(settings)


def _on_runs(name: str) -> Callable[[EvaluateSettings], Any]:
    """Return a function that also takes the runs; folders are read before the slow imports."""

    def call(settings: EvaluateSettings) -> Any:
        runs = resolve_name("eval.report.run:read_runs")(settings.folders, settings.baseline)
        return resolve_name(name)(settings, runs)

    return call


# by name: what makes the settings of the texts of a command line, and what runs them
COMMANDS = {
    "generate_images": (commands.run_settings, _later("runs.generate:generate_images")),
    "benchmark": (commands.benchmark_settings, _later("eval.bench.benchmark:run_benchmark")),
    "tune": (commands.tune_settings, _later("eval.bench.tune:run_tune")),
    "evaluate": (commands.evaluate_settings, _on_runs("eval.report.evaluate:evaluate")),
    "extract_tokens": (commands.extraction_settings, extract_tokens),
    "inspect": (commands.inspect_settings, _later("runs.check.files:inspect_checkpoint")),
    "vq_distances": (commands.distance_settings, _later("runs.distances:make_distances")),
    "demo": (commands.page_settings, _later("page.server:serve")),
    "train_drafter": (commands.train_settings, _later("runs.training.train:train")),
}
# by command: what --dry_run would do
PLANS = {
    "generate_images": _later("runs.generate:plan_images"),
    "benchmark": _later("eval.bench.benchmark:plan_benchmark"),
    "tune": _later("eval.bench.tune:plan_tune"),
    "evaluate": _on_runs("eval.report.evaluate:plan_evaluation"),
    "train_drafter": _later("runs.training.train:plan_training"),
}


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
    if name not in COMMANDS:
        expected = f"{one_of(COMMANDS)}, --help or --version"
        raise mismatch("command", repr(words[0]), expected, near_names(name, COMMANDS))
    if "--help" in words or "-h" in words:
        print(asked_help([name, *words[1:]]))
        return
    read_settings, work = COMMANDS[name]
    texts = read_words(name, words[1:])
    if is_dry(texts):
        plan = PLANS[name]
        work = lambda settings: resolve_name("runs.plan:show")(plan(settings))  # noqa: E731
    settings = read_settings(texts)
    _check_device(settings)
    # fire dispatches but reads no flag: it would make numbers, lists and dicts of prompts
    fire.Fire({name: lambda: work(settings)}, command=[name], name="main.py")


def _check_device(settings: Settings) -> None:
    """Refuse a GPU that is not there before the slow imports."""
    flags = settings_dict(settings)
    computes = not isinstance(settings, InspectSettings) or settings.run
    if computes and flags.get("device", "").startswith("cuda"):
        from support.devices import pick_device

        pick_device(flags["device"])


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line, sys.argv by default, and return its exit code (support/border.py)."""
    words = sys.argv[1:] if words is None else words
    prepare_threads()
    too_large = TRAINING_OUT_OF_MEMORY if "train_drafter" in words[:1] else OUT_OF_MEMORY
    interrupted = _after_interrupt(words)
    return run_guarded(lambda: run(words), interrupted=interrupted, too_large=too_large)


def _after_interrupt(words: Sequence[str]) -> str:
    """Return what to say after Ctrl-C: whether the same command goes on from there."""
    resumes = "".join(words[:1]).startswith(("generate", "extract", "train", "tune"))
    kept = words[:1] == ["benchmark"]  # in a folder
    resumes = resumes or (kept and any(w.startswith(("--sweep", "--output_dir")) for w in words))
    # which deletes the finished images each time
    without = " without --overwrite" if any(w.startswith("--overwrite") for w in words) else ""
    same = f"; the same command{without} continues where it stopped"
    return "interrupted" + (same if resumes else "")


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(main())
