"""Token shards: what is written is read, in one order; continued, damaged and foreign folders."""

import json
import shutil
from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from configs.fields import SettingsError
from drafters.training import shards
from drafters.training.order import batch, captionless, feature_noise
from drafters.training.shards import Example, ShardWriter, Tokens
from support.json_lines import read_lines

CPU = torch.device("cpu")
ABOUT = {"rows": 2, "columns": 3, "vocab": 9, "law": None}
ABOUT |= {"settings": {"model": "tiny", "cfg": 3.0}}


def example(number: int) -> Example:
    codes = torch.randint(9, (6,), generator=torch.Generator().manual_seed(number))
    return Example(f"{number:03d}", f"caption {number % 4}", codes, number)


def fill(folder: Path, numbers: range, rank: int = 0, size: int = 3) -> None:
    writer = ShardWriter(folder, ABOUT, rank, size)
    for number in numbers:
        if example(number).id not in writer.done:
            writer.add(example(number))
    writer.close()


def content(folder: Path) -> tuple:
    tokens = Tokens.read(folder)
    return tokens.ids, tokens.captions, tokens.seeds, tokens.codes(range(len(tokens))).tolist()


def test_what_is_written_is_read(tmp_path):
    fill(tmp_path, range(8))
    assert sorted(path.name for path in tmp_path.glob("*.*")) == [
        ".lock.0", "about.json", *(f"tokens-0-0000{n}.safetensors" for n in range(3))
    ]  # fmt: skip
    tokens, examples = Tokens.read(tmp_path), [example(n) for n in range(8)]
    assert tokens.about == ABOUT and len(tokens) == 8
    assert tokens.ids == [written.id for written in examples] and tokens.seeds == list(range(8))
    assert tokens.captions == [written.caption for written in examples]
    codes, order = tokens.codes([7, 0, 7, 4]), (7, 0, 7, 4)
    assert codes.dtype == torch.int64
    assert torch.equal(codes, torch.stack([examples[n].codes for n in order]))


@pytest.mark.parametrize(
    ("vocab", "dtype"), [(2**15, torch.int16), (2**15 + 1, torch.int32)], ids=str
)
def test_codes_take_as_few_bytes_as_the_largest_needs(vocab, dtype, tmp_path):
    writer = ShardWriter(tmp_path, ABOUT | {"vocab": vocab})
    codes = torch.tensor([0, 1, vocab - 1, 3, 2, 1])
    writer.add(Example("0", "a caption", codes))
    writer.close()
    assert load_file(tmp_path / "tokens-0-00000.safetensors")["codes"].dtype == dtype
    assert torch.equal(Tokens.read(tmp_path).codes([0])[0], codes)


def test_an_unfinished_shard_is_all_that_a_kill_takes(tmp_path):
    writer = ShardWriter(tmp_path, ABOUT, size=3)
    for number in range(5):
        writer.add(example(number))
    writer.skip("bad", "no caption: nothing")
    writer._lock.close()  # as a kill does
    (tmp_path / ".tokens-0-00001.safetensors.1.tmp").write_bytes(b"half")
    with (tmp_path / "skipped.jsonl").open("a") as file:
        file.write('{"id": "wor')
    again = ShardWriter(tmp_path, ABOUT, size=3)
    assert again.done == {"000", "001", "002", "bad"}
    again.skip("worse", "no caption: nothing")
    again.close()
    fill(tmp_path, range(5))
    assert Tokens.read(tmp_path).ids == [example(n).id for n in range(5)]
    skipped = [{"id": id, "reason": "no caption: nothing"} for id in ("bad", "worse")]
    assert read_lines(tmp_path / "skipped.jsonl") == skipped


def test_an_unfinished_shard_is_written_now_and_then(tmp_path, monkeypatch):
    monkeypatch.setattr(shards, "_SECONDS", 0.0)
    writer = ShardWriter(tmp_path, ABOUT, size=3)
    for number in range(5):
        writer.add(example(number))
        assert Tokens.read(tmp_path).ids == [example(n).id for n in range(number + 1)]
    writer._lock.close()  # as a kill does
    assert len(list(tmp_path.glob("tokens-*"))) == 2
    fill(tmp_path, range(8))
    assert Tokens.read(tmp_path).ids == [example(n).id for n in range(8)]


def test_an_id_stands_once(tmp_path):
    fill(tmp_path, range(3))
    writer = ShardWriter(tmp_path, ABOUT)
    with pytest.raises(ValueError, match="the id '001' is there already"):
        writer.add(example(1))
    writer.close()
    names = (f"tokens-{rank}-00000.safetensors" for rank in (0, 1))
    shutil.copy(*(tmp_path / name for name in names))
    with pytest.raises(ValueError, match=r"tokens-1-00000.*'000' is also in tokens-0-00000"):
        Tokens.read(tmp_path)


def rewrite(path: Path, codes: torch.Tensor, entries: int = 2, **change: object) -> None:
    lines = [{"id": str(n), "caption": "a", "seed": None} | change for n in range(entries)]
    save_file({"codes": codes}, path, {"examples": json.dumps(lines)})


CODES = torch.zeros(2, 6, dtype=torch.int32)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-5]), "damaged shard"),
        (lambda path: save_file({"codes": torch.zeros(2, 6)}, path), "damaged shard"),
        (lambda path: rewrite(path, CODES, 1), "2 images with 1 captions"),
        (lambda path: rewrite(path, CODES.float()), "codes of type F32"),
        (lambda path: rewrite(path, CODES, caption=7), "examples without id, caption and seed"),
        (lambda path: rewrite(path, CODES[:, :5].clone()), "5 codes per image; .* 2 x 3"),
        (lambda path: rewrite(path, CODES + 9), "codes from 9 to 9; .* 9 codes"),
    ],
)
def test_a_damaged_shard_is_named(tmp_path, damage, message):
    fill(tmp_path, range(8))
    damage(tmp_path / "tokens-0-00001.safetensors")
    with pytest.raises(ValueError, match=f"tokens-0-00001.safetensors: .*{message}"):
        content(tmp_path)


def test_a_folder_without_tokens_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"no about.json; `main.py extract_tokens` writes one"):
        Tokens.read(tmp_path)
    ShardWriter(tmp_path, ABOUT).close()
    with pytest.raises(ValueError, match="found no tokens-"):
        Tokens.read(tmp_path)
    fill(tmp_path, range(1))
    (tmp_path / "about.json").unlink()
    with pytest.raises(ValueError, match="expected an empty folder or .*, got tokens without"):
        ShardWriter(tmp_path, ABOUT)


@pytest.mark.parametrize(
    "content",
    [
        "[1",
        "[" * 100_000,
        "7",
        '{"columns": 3, "vocab": 9}',
        '{"rows": "2", "columns": 3, "vocab": 9}',
        '{"rows": 2, "columns": 0, "vocab": 9}',
        '{"rows": 2, "columns": 3, "vocab": 9, "settings": 7}',
        '{"name": "mine"}',  # of another program
    ],
    ids=range(8),
)
def test_a_damaged_about_is_named_and_stays(tmp_path, content):
    fill(tmp_path, range(1))
    (tmp_path / "about.json").write_text(content)
    for read in (Tokens.read, lambda folder: ShardWriter(folder, ABOUT)):
        with pytest.raises(SettingsError, match="about.json: .*expected .*, got "):
            read(tmp_path)
    assert (tmp_path / "about.json").read_text() == content


def test_no_caption_stands_on_both_sides_of_a_split(tmp_path):
    fill(tmp_path, range(10))
    tokens = Tokens.read(tmp_path)
    for holdout in range(8):
        training, held = tokens.split(holdout)
        assert sorted(training + held) == list(range(10)) and holdout <= len(held) <= holdout + 2
        assert not {tokens.captions[i] for i in training} & {tokens.captions[i] for i in held}
        assert set(held) <= set(tokens.split(holdout + 1)[1])
    with pytest.raises(ValueError, match="10 images; holding out 10"):
        tokens.split(10)


def test_where_all_images_have_one_caption_each_is_held_out_by_itself(tmp_path):
    fill(tmp_path, range(10))
    tokens = Tokens.read(tmp_path)
    tokens.captions = ["a digit"] * 10
    training, held = tokens.split(3)
    assert sorted(training + held) == list(range(10)) and len(held) == 3
    assert set(held) < set(tokens.split(4)[1]) and not tokens.shared(held, training)


def test_fewer_images_for_training_are_among_more_of_them(tmp_path):
    fill(tmp_path, range(10))
    tokens = Tokens.read(tmp_path)
    everything, held = tokens.split(2)
    for most in range(1, len(everything)):
        images = tokens.split(2, most)[0]
        assert len(images) == most and tokens.split(2, most)[1] == held
        assert set(images) < set(tokens.split(2, most + 1)[0]) <= set(everything)
    with pytest.raises(ValueError, match=f"leaves {len(everything)} for training"):
        tokens.split(2, 9)


def test_every_image_comes_once_before_one_comes_again() -> None:
    drawn, other = ([i for s in range(14) for i in batch(seed, s, 5, 7)] for seed in (3, 4))
    assert all(set(drawn[first : first + 7]) == set(range(7)) for first in range(0, 70, 7))
    assert drawn[:7] != drawn[7:14] and drawn != other
    assert Counter(batch(0, 0, 20, 3)).keys() == {0, 1, 2}, "a batch may be larger than the data"


def test_noise_belongs_to_places_whatever_stands_beside_them() -> None:
    whole = feature_noise(1, 2, [0, 1, 2], torch.Size((6, 4, 8)), CPU)
    assert torch.equal(feature_noise(1, 2, [1], torch.Size((2, 4, 8)), CPU), whole[2:4])
    assert not torch.equal(feature_noise(1, 3, [1], torch.Size((2, 4, 8)), CPU), whole[2:4])
    assert -1 <= whole.min() < -0.9 and 0.9 < whole.max() <= 1


def test_one_row_in_ten_has_no_caption() -> None:
    share = sum(sum(captionless(0, step, 16)) for step in range(400)) / 6400
    assert 0.08 < share < 0.12 and captionless(0, 1, 16) == captionless(0, 1, 16)
