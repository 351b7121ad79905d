"""The compiled library: a damaged one is compiled again, a failure says its reason."""

import ctypes

import pytest
from compilers import needs_compiler

from models.cpu import native
from support import output


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A library of one number, in a cache of its own."""
    file = tmp_path / "kernels" / "library.cpp"
    file.parent.mkdir()
    file.write_text('extern "C" { extern const int adt_number; const int adt_number = 7; }\n')
    monkeypatch.setattr(native, "SOURCE", file)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    output.remark.cache_clear()
    return file


@needs_compiler
@pytest.mark.parametrize("kept", [0, 100, -1])
def test_a_cut_library_is_compiled_again(source, tmp_path, capsys, kept):
    native.kernels.__wrapped__()
    (library,) = (tmp_path / "adt-tree").iterdir()
    content = library.read_bytes()
    library.unlink()  # not cut in place, since this process has it in memory
    library.write_bytes(content[:kept])
    assert ctypes.c_int.in_dll(native.kernels.__wrapped__(), "adt_number").value == 7
    assert f"note: {library}: damaged, is compiled again" in capsys.readouterr().err
    assert library.read_bytes()[:100] == content[:100]
    native.kernels.__wrapped__()
    assert "damaged" not in capsys.readouterr().err


def test_a_compiler_that_fails_says_why(source, tmp_path, monkeypatch):
    compiler = tmp_path / "c++"
    compiler.write_text(
        '#!/bin/sh\n[ "$1" = --version ] && exit 0\n'
        "echo '/tmp/x.s: Assembler messages:' >&2\n"
        'echo "/tmp/x.s: Fatal error: can\'t write 9 bytes: No space left on device" >&2\nexit 1\n'
    )
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(native.NoKernels, match="cannot compile .*: No space left on device$"):
        native.kernels.__wrapped__()
