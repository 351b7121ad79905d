"""Kernels of Triton compile for the GPUs that they are for, of which none has to be here."""

import json
import sys
from pathlib import Path

import pytest
from browser import only_in_all
from ran import ran

from configs.targets import ROOT

pytest.importorskip("triton", reason="torch's on Linux")
SHARED = {80: 163, 86: 99, 89: 99, 90: 227}  # KiB that a program may have


@only_in_all
@pytest.mark.parametrize("capability", SHARED)
def test_every_kernel_compiles(capability, tmp_path) -> None:
    words = [sys.executable, Path(__file__).with_name("ahead.py"), str(capability)]
    cache = {"TRITON_CACHE_DIR": str(tmp_path)}
    done = ran(words, PYTHONPATH=str(ROOT), TRITON_INTERPRET="0", **cache)
    assert done.returncode == 0, done.stderr[-2000:]
    *kernels, missing = map(json.loads, done.stdout.splitlines())  # and kernels without a launch
    assert missing == ([] if capability >= 89 else ["_scale_rows"])  # earlier GPUs have no fp8
    for kernel in kernels:
        assert kernel["shared"] <= SHARED[capability] * 1024, kernel
    early = [{k["name"] for k in kernels if k["early"] is early} for early in (False, True)]
    assert early[1] == (early[0] if capability >= 90 else set())
