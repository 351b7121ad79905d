"""The exactness check: every sampling distribution, type and batch, and wrong images fail it."""

import os
import subprocess
from pathlib import Path

from configs.command_line import listed_method
from configs.schema import ROOT

CELLS = 2 * 2 * 3 * 2  # types, guidance scales, filters, batches


def check(folder: Path, *arguments: str, fails: str = "") -> subprocess.CompletedProcess[str]:
    """Run the script with a stand-in for Python that fails where its words contain a text."""
    python = folder / "python"
    python.write_text(
        f'#!/usr/bin/env bash\necho "$*" >> {folder}/commands\n[[ "$*" != *{fails or "never"}* ]]\n'
    )
    python.chmod(0o755)
    return subprocess.run(
        ["bash", ROOT / "scripts/exactness.sh", *arguments],
        env=os.environ | {"PY": str(python), "OUT": str(folder / "out")},
        capture_output=True,
        text=True,
        check=False,
    )


def test_wrong_images_in_one_cell_fail_the_check_and_only_it_runs_again(tmp_path) -> None:
    failed = check(tmp_path, fails="fp32*--cfg?3*--top_k*--batch_size?3")
    commands = (tmp_path / "commands").read_text().splitlines()
    assert len(set(commands)) == CELLS
    assert failed.returncode == 1 and failed.stderr.count("outputs") == 0
    assert "dtype_fp32_cfg_3_top_k_200_top_p_0.9_batch_size_3" in failed.stderr
    assert check(tmp_path).returncode == 0
    assert len((tmp_path / "commands").read_text().splitlines()) == CELLS + 1


def test_its_methods_are_lossless_ones_and_thin_takes_two_prompts(tmp_path) -> None:
    check(tmp_path, "--thin")
    words = (tmp_path / "commands").read_text().splitlines()[0].split()
    given = {name: words[words.index(f"--{name}") + 1] for name in ("methods", "num_images")}
    assert given["num_images"] == words[words.index("--samples_per_prompt") + 1] == "2"
    methods = [listed_method(entry, {}) for entry in given["methods"].split(",")]
    assert len(set(methods)) == len(methods) > 20
    assert all(method.same_tokens(1.0) for method in methods)


def test_it_says_how_it_is_called(tmp_path) -> None:
    unknown, asked = check(tmp_path, "--thick"), check(tmp_path, "--thin", "--help")
    assert (unknown.returncode, asked.returncode) == (2, 0) and unknown.stderr == asked.stdout
    assert "bash scripts/exactness.sh [--thin]" in asked.stdout
    assert not (tmp_path / "commands").exists()
