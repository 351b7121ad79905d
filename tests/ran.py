"""Programs that tests start and wait for."""

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from configs.targets import ROOT


def ran(
    words: Sequence[str | Path], cwd: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A program that has ended; variables: of its environment, beside ours."""
    options = {"capture_output": True, "text": True, "timeout": 1800}
    return subprocess.run(words, cwd=cwd, env=os.environ | variables, **options)
