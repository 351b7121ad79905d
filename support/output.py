"""What a command prints, apart from what it does: a closed or full output never costs it its work.

Commands simply `print`, and print what they have measured before they save it: a full disk may
take the file, but not the figures. `main.py` and `support/script.py` run them inside
`guarded_output`, where a failed print does not raise: the command goes on to its end, silently.
Then

- a reader that has seen enough (`... | head -1`) is no failure: the exit code stays as it is;
- any other failed print, as on a full disk, is one line on stderr and exit code 1;
- characters that the output's encoding lacks are written as escapes (`\\xe9`).
"""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import cache
from typing import Any, TextIO


@cache
def remark(text: str) -> None:
    """Print a remark on stderr, once, however often the command comes by."""
    print(f"note: {text}", file=sys.stderr)


@contextmanager
def printed_unless_saved(*rows: dict[str, Any]) -> Iterator[None]:
    """Print rows of figures, a line of JSON each, if the block, which saves them, fails.

    For figures that are not printed otherwise.
    """
    try:
        yield
    except Exception:
        print(*map(json.dumps, rows), sep="\n", flush=True)
        raise


class GuardedStream:
    """A text stream that stays quiet after its first failed write, which `fault` keeps."""

    def __init__(self, stream: TextIO):
        self._stream = stream
        self.fault: OSError | None = None
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the text, or nothing once the stream has failed; returns the text's length."""
        if self.fault is None:
            try:
                self._stream.write(text)
            except OSError as error:
                self._give_up(error)
        return len(text)

    def flush(self) -> None:
        """Hand on what was written, unless the stream has failed."""
        if self.fault is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        """Note the failure, and let what is still in the buffer, and all that follows, go nowhere.

        Without that the interpreter would flush the buffer once more at its end, and complain.
        """
        self.fault = error
        try:
            descriptor = self._stream.fileno()
        except OSError:  # a stream in memory has no file
            return
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, descriptor)
        os.close(nowhere)


class Outcome:
    """The exit code that a guarded command ends with."""

    code = 0


@contextmanager
def guarded_output() -> Iterator[Outcome]:
    """Guard stdout and stderr for the time of a command.

    Set the outcome's `code` inside, and read it afterwards: it becomes 1 if printing has failed
    and nothing else has.
    """
    outcome = Outcome()
    # Python has no stdout or stderr at all where the caller closed them (`command >&-`)
    missing = open(os.devnull, "w") if None in (sys.stdout, sys.stderr) else None  # noqa: SIM115
    out = GuardedStream(sys.stdout or missing)
    err = GuardedStream(sys.stderr or missing)
    with redirect_stdout(out), redirect_stderr(err):
        try:
            yield outcome
        finally:
            out.flush()
            fault = out.fault
            if fault is not None and not isinstance(fault, BrokenPipeError):
                print(f"error: standard output: {fault.strerror}", file=sys.stderr)
                outcome.code = outcome.code or 1
            err.flush()
            if missing is not None:
                missing.close()
