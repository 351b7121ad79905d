"""The nearest-latent table: order, ties, the file format and its errors."""

import numpy as np
import pytest
import torch

import main
from models.codecs.codebook import find_table, load_table, nearest_codes, table_path, write_table
from models.codecs.vqgan_files import load_vqgan


def whole(*arguments, **flags) -> np.ndarray:
    return np.concatenate([*nearest_codes(*arguments, **flags)])


def test_rows_are_the_other_codes_by_distance() -> None:
    codebook = torch.randn(37, 5, generator=torch.Generator().manual_seed(0))
    table = whole(codebook, chunk=8)
    assert table.dtype == np.uint16 and table.shape == (37, 36)
    for code, row in enumerate(table.astype(np.int64)):
        assert sorted([code, *row]) == list(range(37))
        distances = (codebook[row] - codebook[code]).double().norm(dim=1)
        assert bool((distances.diff() >= -1e-6).all())


def test_ties_go_to_the_lowest_code() -> None:
    codebook = torch.tensor([[0.0], [1.0], [-1.0], [0.0], [1.0]])
    assert whole(codebook).tolist() == [
        [3, 1, 2, 4], [4, 0, 3, 2], [0, 3, 1, 4], [0, 1, 2, 4], [1, 0, 3, 2]
    ]  # fmt: skip


def test_more_codes_than_16_bits_name(tmp_path) -> None:
    """Numbers of 32 bits, and not all neighbours."""
    codebook = torch.arange(2**16 + 2, dtype=torch.float32)[:, None]
    with pytest.raises(ValueError, match="--neighbours: expected 1 to 65535, got all others"):
        nearest_codes(codebook)
    first = next(nearest_codes(codebook, 3, chunk=2))
    assert first.dtype == np.uint32 and first.tolist() == [[1, 2, 3], [0, 2, 3]]
    path = table_path(tmp_path, len(codebook), 1)
    path.parent.mkdir()
    np.save(path, np.full((len(codebook), 1), 2**16 + 1, np.uint32))
    assert load_table(path, len(codebook), 1).max() == 2**16 + 1
    np.save(path, np.zeros((len(codebook), 1), np.uint16))
    with pytest.raises(ValueError, match="found uint16 .*expected uint32"):
        load_table(path, len(codebook), 1)


def test_fewer_neighbours_in_a_file_and_in_memory(tmp_path) -> None:
    codebook = torch.randn(20, 3, generator=torch.Generator().manual_seed(3))
    wide, narrow = table_path(tmp_path, 20), table_path(tmp_path, 20, 6)
    write_table(codebook, wide)
    assert find_table(tmp_path, 20, 5, "tiny") == wide
    write_table(codebook, narrow, 6)
    assert narrow.name == "top_6_indices.npy" and np.load(narrow).shape == (20, 6)
    assert [find_table(tmp_path, 20, n, "tiny") for n in (5, 6, 7)] == [narrow, narrow, wide]
    for path in (wide, narrow):
        table = load_table(path, 20, 5)
        assert not isinstance(table, np.memmap) and table.base is None
        assert table.nbytes == 20 * 5 * 2
        assert np.array_equal(table, whole(codebook, 5))
    with pytest.raises(ValueError, match=r"top_6.*expected uint16 \(20, 7 to 19\)"):
        load_table(narrow, 20, 7)
    wide.unlink()
    message = r"no table of at least 7 neighbours.*vq_distances --model tiny --m"
    with pytest.raises(ValueError, match=message):
        find_table(tmp_path, 20, 7, "tiny")


def test_command(folder, capsys) -> None:
    codebook = load_vqgan(folder / "tokenizer").codebook
    assert main.main(["vq_distances", f"--model_path={folder}"]) == 0
    assert "24 codes, 23 neighbours each" in capsys.readouterr().out
    assert np.array_equal(load_table(table_path(folder, 24), 24), whole(codebook))
    assert main.main(["vq_distances", f"--model_path={folder}", "--neighbours=5"]) == 0
    assert np.array_equal(load_table(table_path(folder, 24, 5), 24, 5), whole(codebook, 5))


def test_more_neighbours_than_codes_are_refused(folder, capsys) -> None:
    assert main.main(["vq_distances", f"--model_path={folder}", "--neighbours=24"]) == 2
    assert "--neighbours: expected 1 to 23, got 24" in capsys.readouterr().err
    assert not (folder / "vq_distances").exists()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, ""),
        (b"no table", ""),
        (np.zeros((4, 4), np.uint16), r".*expected uint16 \(4, 3\)"),
        (np.zeros((4, 3), np.int64), r".*expected uint16 \(4, 3\)"),
    ],
    ids=["missing", "text", "shape", "type"],
)
def test_an_unreadable_or_wrong_file_is_named(tmp_path, content, message) -> None:
    path = tmp_path / "top_3_indices.npy"
    if isinstance(content, np.ndarray):
        np.save(path, content)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=f"top_3_indices{message}"):
        load_table(path, 4)
