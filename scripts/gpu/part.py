"""Runs parts of the check in this process: `python -m scripts.gpu.part --parts tokens ...`.

scripts/gpu/check.py starts one such process per part, since an error of CUDA ends its process.
"""

import sys
from importlib import import_module

from scripts.gpu.options import read_options
from scripts.gpu.record import Record
from support.border import run_guarded

MODULES = {"tokens": "tokens", "large": "large", "tiny": "tiny", "profile": "traces"}


def run() -> None:
    """Measure the pieces of the parts that are not done yet."""
    options = read_options(sys.argv[1:], __doc__)
    for part in options.parts:
        module = import_module(f"scripts.gpu.{MODULES[part]}")
        Record(options.output).run(part, module.pieces(options))


if __name__ == "__main__":
    sys.exit(run_guarded(run, refusals=ValueError))
