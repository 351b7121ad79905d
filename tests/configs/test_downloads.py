"""Pointers, pages, messages and empty files are named wherever a file is read."""

import numpy as np
import pytest

from configs.downloads import failed_download
from configs.recipes import read_yaml
from drafters.training.shards import read_shard
from eval.metrics.base import Unavailable
from eval.metrics.weights import read_state
from models.codecs.codebook import load_table
from models.codecs.vqgan import read_config
from models.files.tensors import load_pickled, read_header
from models.files.tokenizer_file import load_tokenizer, read_ranks
from support.json_files import read_object
from support.json_lines import read_lines
from support.training_state import load_state

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
INSTEAD = {
    "Git LFS pointer": POINTER,
    "a web page": b"\xef\xbb\xbf\n<!DOCTYPE html><title>model.safetensors",
    "a server's message, 'entry not found'": b"Entry not found",
    "an empty file": b"",
}
READERS = {
    "config.json": read_object,
    "model.safetensors": read_header,
    "tokens.safetensors": read_shard,
    "pytorch_model.bin": load_pickled,
    "vgg.pth": read_state,
    "checkpoint.pt": load_state,
    "tokenizer.json": load_tokenizer,
    "emu3.tiktoken": read_ranks,
    "vqgan.yaml": read_config,
    "table.npy": lambda path: load_table(path, 8),
}


@pytest.mark.parametrize("words", INSTEAD)
@pytest.mark.parametrize("name", READERS)
def test_what_stands_in_a_files_place_is_named(tmp_path, name, words):
    (tmp_path / name).write_bytes(INSTEAD[words])
    with pytest.raises((ValueError, Unavailable)) as error:
        READERS[name](tmp_path / name)
    assert words in str(error.value) and name in str(error.value)


@pytest.mark.parametrize("read", [read_lines, lambda path: read_yaml(str(path), "config")])
def test_files_that_may_be_empty(tmp_path, read):
    path = tmp_path / "file"
    path.write_bytes(b"")
    assert not read(path)
    path.write_bytes(POINTER)
    with pytest.raises(ValueError, match="file: .*got a Git LFS pointer"):
        read(path)


def test_real_files_are_none():
    for content in (b"{}", b"PK\3\4", b"404 in neon", b"\x80\2", np.arange(9).tobytes()):
        assert failed_download(content) is None, content
