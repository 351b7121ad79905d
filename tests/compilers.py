"""Tests of compiled kernels need a C++ compiler."""

import pytest
import torch

from models.cpu.native import NoKernels, kernels
from support.compiler import missing_compiler


def compiles() -> bool:
    try:
        kernels()
    except NoKernels:
        return False
    return True


needs_compiler = pytest.mark.skipif(not compiles(), reason="there is no C++ compiler")
needs_inductor = pytest.mark.skipif(
    missing_compiler(torch.device("cpu")) is not None, reason="torch.compile lacks a compiler"
)
