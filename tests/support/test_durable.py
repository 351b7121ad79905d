"""Files after a failed write: the old content stays, and the error names the file."""

import errno
import fcntl
import os
import resource
import signal
import socket
import subprocess

import pytest
import torch
from safetensors.torch import save_file

from configs.fields import SettingsError
from support import output
from support.durable import (
    append_lines,
    encode_json,
    encode_lines,
    files_named,
    give_usual_mode,
    make_writable,
    replace_file,
)
from support.json_files import read_object
from support.json_lines import read_lines, scan_texts
from support.locks import lock
from support.training_state import JsonLog, save_state

STATE = {"step": 2, "weights": torch.ones(50_000)}
WRITERS = {
    "replace_file": lambda path: replace_file(path, b"new" * 50_000),
    "append_lines": lambda path: append_lines(path, [{"id": "a", "text": "x" * 50_000}]),
    "save_state": lambda path: save_state(path, STATE),
    "JsonLog": lambda path: JsonLog(path).write(step=2, text="x" * 50_000),
}


@pytest.fixture
def full_disk():
    """Return what fills the disk: files then take 1,000 bytes of a write, and no more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    previous = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # then writes fail with EFBIG
    yield lambda size=1000: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, previous)


@pytest.mark.parametrize("writer", WRITERS)
def test_a_full_disk_leaves_what_was_there(tmp_path, full_disk, writer, capsys):
    path = tmp_path / "file"
    path.write_text('{"id": "before"}\n')
    full_disk()
    with pytest.raises(OSError) as failure:
        WRITERS[writer](path)
    assert failure.value.filename == str(path)
    assert path.read_text() == '{"id": "before"}\n'
    assert os.listdir(tmp_path) == ["file"]  # no rest takes space


@pytest.mark.parametrize("name", ["file", "file/below", "x" * 300, "/proc/nowhere", "a\0b"])
def test_folders_of_flags_are_tried_before_work(tmp_path, name):
    (tmp_path / "file").write_text("")
    expected = "^--output_dir .*: expected a writable folder, got [A-Za-z ]+"
    with pytest.raises(SettingsError, match=expected):
        make_writable("output_dir", tmp_path / name)
    make_writable("output_dir", tmp_path / "new" / "folder")
    assert os.listdir(tmp_path / "new" / "folder") == []


def test_a_killed_process_leaves_no_half_checkpoint_for_long(tmp_path):
    others = [".other.pt.123.tmp", ".state.pt.mine.tmp"]
    for name in (".state.pt.123.tmp", *others):
        (tmp_path / name).write_bytes(b"half")
    save_state(tmp_path / "state.pt", STATE)
    assert sorted(os.listdir(tmp_path)) == [*others, "state.pt"]


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_without_locks_a_file_names_the_holder(tmp_path, monkeypatch, capsys, code):
    def flock(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    output.remark.cache_clear()
    path, holder = tmp_path / ".lock", tmp_path / ".lock.holder"
    with lock(path), pytest.raises(BlockingIOError):
        lock(path)
    assert not holder.exists()
    assert capsys.readouterr().err.count("its file system has no locks") == 1
    process = subprocess.Popen(["true"])
    process.wait()
    holder.write_text(f"{socket.gethostname()} {process.pid}")  # of a process that was killed
    lock(path).close()
    holder.write_text("other 1")
    with pytest.raises(SettingsError, match="process 1 on other holds.* Delete it if that"):
        lock(path)


def test_an_error_of_a_lock_names_its_file(tmp_path, monkeypatch):
    def flock(*_):
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(OSError) as failure:
        lock(tmp_path / ".lock")
    assert failure.value.filename == str(tmp_path / ".lock")


def test_only_files_of_exactly_our_names_are_ours(tmp_path):
    for name in ("records.1.jsonl", "records.12.jsonl", "records.old.jsonl", "records.1.jsonl~"):
        (tmp_path / name).write_text("")
    found = files_named(tmp_path, r"records\.[0-9]+\.jsonl")
    assert [path.name for path in found] == ["records.1.jsonl", "records.12.jsonl"]
    assert files_named(tmp_path / "nowhere", ".*") == []


def test_texts_in_no_encoding_are_written_as_json(tmp_path):
    odd = {"id": "a", "arguments": ["caf\udce9", "é"]}
    for name, content in (("lines", encode_lines([odd])), ("object", encode_json(odd))):
        (tmp_path / name).write_bytes(content)
    assert read_lines(tmp_path / "lines") == [odd] and read_object(tmp_path / "object") == odd
    assert "é".encode() in encode_json({"id": "é"})  # as it is, where that can be


@pytest.mark.parametrize(
    ("end", "read"),
    [('{"id": "c', ["a"]), ('{"id": "c"}\n', ["a", "c"]), ("\0" * 30 + "\n", ["a"])],
    ids=["cut", "whole", "zeros, as after a power failure"],
)
def test_only_the_last_line_may_be_cut(tmp_path, end, read) -> None:
    path = tmp_path / "records.jsonl"
    path.write_text('{"id": "a"}\n' + end)
    assert [record["id"] for record in read_lines(path)] == read
    path.write_text('{"id": "a"}\n{"id": \n' + end)
    with pytest.raises(SettingsError, match="records.jsonl, line 2: "):
        read_lines(path)


def test_a_line_that_is_written_meanwhile_is_not_read(tmp_path) -> None:
    """As by `evaluate` beside the run: the first half of a line is read, then the rest is there."""
    path = tmp_path / "records.jsonl"
    path.write_text('{"id": "a"}\n{"id": ')
    found = scan_texts(path)
    assert [next(found), next(found)] == [(1, b'{"id": "a"}\n'), (2, b'{"id": ')]
    with path.open("a") as file:
        file.write('"b"}\n')
    assert [*found] == [] and read_lines(path) == [{"id": "a"}, {"id": "b"}]


def test_weights_have_the_mode_of_the_umask(tmp_path):
    """safetensors alone makes them 0600, and nobody else can read them."""
    usual, weights = tmp_path / "usual", tmp_path / "weights"
    for mask in (0o022, 0o077):
        before = os.umask(mask)
        try:
            usual.unlink(missing_ok=True)
            usual.touch()
            save_file({"a": torch.ones(1)}, weights)
            give_usual_mode(weights)
        finally:
            os.umask(before)
        assert weights.stat().st_mode == usual.stat().st_mode
