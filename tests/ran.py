"""Programs that tests start and wait for, and what they say apart from their progress."""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from configs.targets import ROOT


def ran(
    words: Sequence[str | Path], cwd: Path = ROOT, **variables: str
) -> subprocess.CompletedProcess[str]:
    """A program that has ended; variables: of its environment, beside ours."""
    options = {"capture_output": True, "text": True, "timeout": 1800}
    return subprocess.run(words, cwd=cwd, env=os.environ | variables, **options)


def torchrun(*words: str, program: str | Path = "main.py") -> subprocess.CompletedProcess[str]:
    """A program that has ended well in two processes."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    done = ran([*launch, program, *words], PYTHONPATH=str(ROOT))
    assert done.returncode == 0, done.stderr[-2000:]
    return done


def without_progress(stderr: str) -> str:
    return re.sub(r"\[\d{4}-[\d: -]+\] .*\n", "", stderr)
