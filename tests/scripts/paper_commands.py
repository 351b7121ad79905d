"""The commands of a script of scripts/paper, without the seconds that each takes to start."""

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import torch

from configs.schema import ROOT
from models.codecs.codebook import table_path, write_table

FOLDER = ROOT / "scripts" / "paper"
CODES = 24  # of the small checkpoint


def commands(words: str, folder: Path, given: dict[str, str]) -> list[list[str]]:
    """Return the words of every command that a script runs, written down by a stand-in for Python.

    words: the script and its arguments; given: its variables.
    """
    recorder, log = folder / "recorder", folder / "commands"
    log.unlink(missing_ok=True)
    recorder.write_text(f'#!/usr/bin/env bash\nprintf "%q " "$@" >> {log}\necho >> {log}\n')
    recorder.chmod(0o755)
    done = start(words, {"PY": str(recorder), "OUT": str(folder / "out"), "IMAGES": "2"} | given)
    assert done.returncode == 0, done.stderr
    return [shlex.split(text)[1:] for text in log.read_text().splitlines()]


def start(words: str, given: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """Run a script of scripts/paper to its end."""
    script, *arguments = shlex.split(words)
    return subprocess.run(
        ["bash", FOLDER / script, *arguments],
        env=os.environ | given,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def with_table(checkpoint: Path, copy: Path) -> Path:
    """Copy a checkpoint and add ten nearest codes for each of its codes; returns the copy."""
    shutil.copytree(checkpoint, copy)
    latents = torch.randn(CODES, 4, generator=torch.Generator().manual_seed(0))
    write_table(latents, table_path(copy, CODES, 10), 10)
    return copy
