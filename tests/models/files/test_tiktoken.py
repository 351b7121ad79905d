"""Tokenizers from ranks of byte strings give the ids that tiktoken 0.12 gives."""

import base64
from pathlib import Path

import pytest

from models.files.tokenizer_file import read_ranks, row_ids, tokenizer_of
from models.targets.emu3 import _WORD

MERGED = [b"th", b"he", b"the", b" th", b" the", b"in", b"ing", "ä".encode(), b"er", "rä".encode(),
          b"'S"]  # fmt: skip
SPECIAL = ["<|a|>", "<|b|>"]
IDS = {
    "the thing": [258, 259, 262],
    "Bär the": [66, 263, 114, 260],
    "IT'S 42\n\n there": [73, 84, 266, 32, 52, 50, 10, 10, 260, 114, 101],
    "thethe  er": [258, 258, 32, 32, 264],
}


@pytest.fixture
def path(tmp_path) -> Path:
    tokens = [bytes([byte]) for byte in range(256)] + MERGED
    lines = (f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens))
    (tmp_path / "x.tiktoken").write_text("".join(lines))
    return tmp_path / "x.tiktoken"


def test_ids(path) -> None:
    tokenizer = tokenizer_of(read_ranks(path), _WORD, SPECIAL)
    for text, ids in IDS.items():
        assert tokenizer.encode(text, add_special_tokens=False).ids == ids
        assert tokenizer.decode(ids, skip_special_tokens=False) == text
    assert row_ids(tokenizer, "Bär", 268, " the") == [66, 263, 114, 268, 260]


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "missing file: "), ("YQ==\n", "no|not a file"), ("a 1\n", "not a file"), ("YQ== x\n",
     "not a file of tokens and ranks")],
)  # fmt: skip
def test_damaged_ranks(content, message, tmp_path) -> None:
    if content is not None:
        (tmp_path / "x.tiktoken").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_ranks(tmp_path / "x.tiktoken")
