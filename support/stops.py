"""How often this process was stopped and went on: by Ctrl-Z, `kill -STOP` or Slurm's suspend."""

import signal
import threading

_SEEN: list[None] = []  # one per time; a list, since a signal may come at any moment


def count_stops() -> None:
    """Count from now on, in a command: a program that imports this may handle signals itself."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGCONT, lambda *_: _SEEN.append(None))
        signal.siginterrupt(signal.SIGCONT, False)  # no call of another library is cut off


def stops() -> int:
    """Return how often the process went on since `count_stops`."""
    return len(_SEEN)
