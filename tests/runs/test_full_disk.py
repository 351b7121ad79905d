"""A disk that fills up while a command saves: what it has measured is on its output."""

import errno
import os

import pytest
from made_runs import scenes, write_run

import main

_QUICK = "--num_images 1 --device cpu"


@pytest.mark.parametrize(
    ("file", "words", "printed"),
    [
        ("00000_0.png", f"generate_images --method jacobi {_QUICK}", '"target_forwards": '),
        ("benchmark.json", f"benchmark --methods ar,jacobi --repeats 1 {_QUICK}", "| jacobi | "),
        ("sweep.jsonl", f"benchmark --sweep SWEEP --repeats 1 {_QUICK}", '"cell": "adt:nodes=2", '),
        ("speed.md", "evaluate --metrics none --images 0", "| run | ar | "),
        (".npy", "evaluate --metrics tiny_fid --images 0", "speed, tiny_fid"),
    ],
)
def test_figures_are_printed(checkpoint, tmp_path, monkeypatch, capsys, file, words, printed):
    sync = os.fsync

    def full(number: int) -> None:
        if file in os.readlink(f"/proc/self/fd/{number}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(number)

    (tmp_path / "sweep.yaml").write_text("base: adt\naxes: {nodes: [2]}\nmethods: jacobi\n")
    words = words.replace("SWEEP", str(tmp_path / "sweep.yaml")).split()
    if words[0] == "evaluate":
        write_run(tmp_path / "run", *scenes(2))
        words += ["--output_dir", str(tmp_path / "run"), "--cache_dir", str(tmp_path / "cache")]
        words += ["--report_dir", str(tmp_path / "report")]
        words += ["--ref_dir", str(tmp_path / "run/img")]
    else:
        words += ["--prompt", "a cat, #1", "--model_path", str(checkpoint)]
        words += ["--output_dir", str(tmp_path / "out")]
    monkeypatch.setattr(os, "fsync", full)
    assert main.main(words) == (0 if file == ".npy" else 2 if file.endswith(".png") else 1)
    told = capsys.readouterr()
    assert printed in told.out, told.err
    assert "No space left on device" in told.err
