"""Tests of compiled kernels need a C++ compiler."""

import pytest

from models.native import NoKernels, kernels


def compiles() -> bool:
    try:
        kernels()
    except NoKernels:
        return False
    return True


needs_compiler = pytest.mark.skipif(not compiles(), reason="there is no C++ compiler")
