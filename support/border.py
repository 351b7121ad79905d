"""Where a command ends: what it raises becomes one line on stderr and an exit code.

0   done
1   it could not be done: a disk is full, a file cannot be read or written, nothing could be used, a
    package of an extra is not installed
2   a flag, recipe or file cannot be used (SettingsError)
130 interrupted (Ctrl-C)

Anything else is a mistake of the program and keeps its traceback.
"""

import os
import sys
from collections.abc import Callable

from configs.fields import SettingsError
from support.extras import missing_extra
from support.output import guarded_output


class Failure(Exception):
    """Why a command with usable settings has no result; the message names flag or file."""


def run_guarded(
    run: Callable[[], None],
    refusals: type[ValueError] = SettingsError,
    interrupted: str = "interrupted",
) -> int:
    """Run a command; returns its exit code.

    refusals: what means settings that cannot be used. interrupted: what to say after Ctrl-C.
    """
    with guarded_output() as outcome:
        try:
            run()
        except refusals as error:
            outcome.code = _tell(str(error), 2)
        except (Failure, FloatingPointError) as error:  # weights with NaN; the message names them
            outcome.code = _tell(str(error), 1)
        except ModuleNotFoundError as error:
            if (words := missing_extra(error)) is None:
                raise
            outcome.code = _tell(words, 1)
        except OSError as error:
            outcome.code = _tell(_words(error), 1)
        except KeyboardInterrupt:
            print(f"\n{interrupted}", file=sys.stderr)
            outcome.code = 130  # what shells return for a command that Ctrl-C ended: 128 + 2
    return outcome.code


def _tell(text: str, code: int) -> int:
    # in one line whatever a library's message looks like, so that logs can be searched for it
    print("error:", " ".join(text.split()), file=sys.stderr)
    return code


def _words(error: OSError) -> str:
    """Return what went wrong with which file."""
    if error.filename is None:
        return str(error)
    name = os.fsdecode(error.filename) if not isinstance(error.filename, int) else "a file"
    shown = name if len(name) <= 200 else f"{name[:200]}..."
    return f"{shown}: {error.strerror}"
