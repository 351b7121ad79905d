"""Where a command ends: what it raises becomes one line on stderr and an exit code.

0   done
1   it could not be done: a disk or a GPU is full, a file cannot be read or written, nothing could
    be used, a package of an extra is not installed
2   a flag, recipe or file cannot be used (SettingsError)
130 interrupted (Ctrl-C)

Anything else is a mistake of the program and keeps its traceback.

A closed or full output never costs a command its work. Commands simply `print`, and print what they
have measured before they save it: a full disk may take the file, but not the figures. A failed
print does not raise: the command goes on to its end, silently. Then

- a reader that has seen enough (`... | head -1`) is no failure: the exit code stays as it is;
- any other failed print, as on a full disk, is one line on stderr and exit code 1;
- characters that the output's encoding lacks are written as escapes (`\\xe9`).
"""

import os
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from typing import Any, TextIO

from configs.fields import SettingsError
from support.extras import missing_extra
from support.output import first_line

_TOO_SMALL = "the GPU is too small, or in use; docs/memory.md lists what to try, such as"
OUT_OF_MEMORY = f"{_TOO_SMALL} --dtype bf16, a smaller --batch_size or --vq_device cpu"
TRAINING_OUT_OF_MEMORY = f"{_TOO_SMALL} a larger --accumulate, with which a training may continue"


class Failure(Exception):
    """Why a command with usable settings has no result; the message names flag or file."""


class GuardedStream:
    """A text stream that stays quiet after its first failed write, which `fault` keeps."""

    def __init__(self, stream: TextIO | None):
        # Python has no stdout or stderr at all where the caller closed them (`command >&-`)
        self._stream = stream or open(os.devnull, "w")  # noqa: SIM115
        self.fault: OSError | None = None
        if hasattr(self._stream, "reconfigure"):
            self._stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        self._attempt(self._stream.write, text)
        return len(text)

    def flush(self) -> None:
        self._attempt(self._stream.flush)

    def _attempt(self, act: Callable[..., object], *text: str) -> None:
        if self.fault is not None:
            return
        try:
            act(*text)
        except OSError as error:
            self.fault = error
            with suppress(OSError):  # a stream in memory has no file
                # or the interpreter would flush the buffer once more at its end, and complain
                nowhere = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nowhere, self._stream.fileno())
                os.close(nowhere)


def ran_out_of_memory(error: RuntimeError) -> bool:
    """Return whether a GPU was full."""
    # by the text: torch has no type for it where others filled the GPU before
    return "out of memory" in str(error)


def run_guarded(
    run: Callable[[], None],
    interrupted: Callable[[], str] = lambda: "interrupted",  # what to say after Ctrl-C
    refusals: type[ValueError] = SettingsError,  # what means settings that cannot be used
    too_large: str = OUT_OF_MEMORY,  # what to say when a GPU is full
) -> int:
    """Run a command; returns its exit code."""
    out, err, code = GuardedStream(sys.stdout), GuardedStream(sys.stderr), 0
    with redirect_stdout(out), redirect_stderr(err):
        try:
            run()
        except refusals as error:
            code = _tell(str(error), 2)
        except (Failure, FloatingPointError) as error:  # weights with NaN; the message names them
            code = _tell(str(error), 1)
        except ModuleNotFoundError as error:
            if (words := missing_extra(error)) is None:
                raise
            code = _tell(words, 1)
        except RuntimeError as error:
            if not ran_out_of_memory(error):
                raise
            code = _tell(f"out of memory: {too_large} ({first_line(error)})", 1)
        except OSError as error:
            code = _tell(_words(error), 1)
        except KeyboardInterrupt:
            print(f"\n{interrupted()}", file=sys.stderr)
            code = 130  # what shells return for a command that Ctrl-C ended: 128 + 2
        finally:
            out.flush()
            if out.fault is not None and not isinstance(out.fault, BrokenPipeError):
                print(f"error: standard output: {out.fault.strerror}", file=sys.stderr)
                code = code or 1
            err.flush()
    return code


def _tell(text: str, code: int) -> int:
    # in one line whatever a library's message looks like, so that logs can be searched for it
    print("error:", " ".join(text.split()), file=sys.stderr)
    return code


def _words(error: OSError) -> str:
    if error.filename is None:
        return str(error)
    name = os.fsdecode(error.filename) if not isinstance(error.filename, int) else "a file"
    shown = name if len(name) <= 200 else f"{name[:200]}..."
    return f"{shown}: {error.strerror}"
