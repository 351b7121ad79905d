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
import time
from collections.abc import Sequence
from typing import NoReturn

import fire

from commands import NAMES, command
from commands.help import asked_help, program_help
from configs.fields import mismatch, near_names, one_of
from support.border import OUT_OF_MEMORY, TRAINING_OUT_OF_MEMORY, run_guarded
from support.threads import prepare_threads


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
    if name not in NAMES:
        expected = f"{one_of(NAMES)}, --help or --version"
        server = "Did you mean demo: the page and OpenAI's image API?"
        advice = server if name in ("serve", "server") else near_names(name, NAMES)
        raise mismatch("command", repr(words[0]), expected, advice)
    asked = command(name)
    if "--help" in words or "-h" in words:
        print(asked_help(asked, words[1:]))
        return
    prepare_threads()  # before torch is loaded, which a plugin may do
    work = asked.carry_out(words[1:])
    # fire dispatches but reads no flag: it would make numbers, lists and dicts of prompts
    fire.Fire({name: work}, command=[name], name="main.py")


def main(words: Sequence[str] | None = None) -> int:
    """Run a command line, sys.argv by default, and return its exit code (support/border.py)."""
    words = sys.argv[1:] if words is None else words
    too_large = TRAINING_OUT_OF_MEMORY if "train_drafter" in words[:1] else OUT_OF_MEMORY
    return run_guarded(lambda: run(words), lambda: _after_interrupt(words), too_large=too_large)


def _after_interrupt(words: Sequence[str]) -> str:
    """Return what to say after Ctrl-C: whether the same command goes on from there."""
    name = "".join(words[:1]).replace("-", "_")
    resumes = name in NAMES and command(name).resumes
    kept = name == "benchmark"  # in a folder
    resumes = resumes or (kept and any(w.startswith(("--sweep", "--output_dir")) for w in words))
    # which deletes the finished images each time
    without = " without --overwrite" if any(w.startswith("--overwrite") for w in words) else ""
    same = f"; the same command{without} continues where it stopped"
    return "interrupted" + (same if resumes else "")


def _interrupt(*_: object) -> NoReturn:
    """Raise KeyboardInterrupt; later signals end the process at once, without a traceback."""
    first = time.monotonic()

    def end(*_: object) -> None:
        if time.monotonic() - first > 1:  # the same key, held down, does not cut the message off
            os._exit(130)

    signal.signal(signal.SIGINT, end)
    raise KeyboardInterrupt


if __name__ == "__main__":
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
    sys.exit(main())
