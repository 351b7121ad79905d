"""Token shards: what is written is read, in one order; continued, damaged and foreign folders."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from configs.fields import SettingsError
from drafters.training import shards
from drafters.training.shards import Example, ShardWriter, Tokens
from support.json_files import read_lines

ABOUT = {
    "rows": 2,
    "columns": 3,
    "vocab": 9,
    "law": None,
    "settings": {"model": "tiny", "cfg": 3.0},
}


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


def test_order_does_not_depend_on_processes_or_interruptions(tmp_path):
    fill(tmp_path / "one", range(11))
    fill(tmp_path / "two", range(0, 11, 2), rank=0)
    fill(tmp_path / "two", range(1, 11, 2), rank=1)
    fill(tmp_path / "parts", range(4))
    fill(tmp_path / "parts", range(11), size=4)
    assert content(tmp_path / "two") == content(tmp_path / "parts") == content(tmp_path / "one")


def test_an_unfinished_shard_is_all_that_a_kill_takes(tmp_path):
    writer = ShardWriter(tmp_path, ABOUT, size=3)
    for number in range(5):
        writer.add(example(number))
    writer.skip("bad", "no caption: nothing")
    writer._lock.close()  # as a kill does
    (tmp_path / ".tokens-0-00001.safetensors.1.tmp").write_bytes(b"half")
    again = ShardWriter(tmp_path, ABOUT, size=3)
    assert again.done == {"000", "001", "002", "bad"}
    again.close()
    fill(tmp_path, range(5))
    assert Tokens.read(tmp_path).ids == [example(n).id for n in range(5)]
    skipped = [{"id": "bad", "reason": "no caption: nothing"}]
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


def test_every_process_sees_what_all_have_done(tmp_path):
    first, second = (ShardWriter(tmp_path, ABOUT, rank) for rank in (0, 1))
    first.add(example(0))
    second.skip("bad", "empty caption")
    first.close(), second.close()
    assert ShardWriter(tmp_path, ABOUT, 2).done == {"000", "bad"}
    assert (tmp_path / "skipped.1.jsonl").exists()


def test_an_id_stands_once(tmp_path):
    fill(tmp_path, range(3))
    writer = ShardWriter(tmp_path, ABOUT)
    with pytest.raises(ValueError, match="the id '001' is there already"):
        writer.add(example(1))
    writer.close()
    (tmp_path / "tokens-1-00000.safetensors").write_bytes(
        (tmp_path / "tokens-0-00000.safetensors").read_bytes()
    )
    with pytest.raises(ValueError, match=r"tokens-1-00000.*'000' is in tokens-0-00000"):
        Tokens.read(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"settings": {"model": "anole", "cfg": 3.0}},
            "other settings: --model: tiny there, anole now. Use",
        ),
        ({"settings": {"model": "tiny"}}, "--cfg: 3.0 there, none now"),
        ({"rows": 3}, "rows: 2 there, 3 now"),
    ],
)
def test_other_settings_are_refused_by_name(tmp_path, change, message):
    fill(tmp_path, range(1))
    with pytest.raises(ValueError, match=message):
        ShardWriter(tmp_path, ABOUT | change)
    fill(tmp_path, range(2))  # the lock is free again


def test_a_folder_without_tokens_takes_any_settings(tmp_path):
    ShardWriter(tmp_path, ABOUT).close()
    ShardWriter(tmp_path, ABOUT | {"rows": 3}).close()
    assert json.loads((tmp_path / "about.json").read_text())["rows"] == 3


def test_one_command_at_a_time(tmp_path):
    writer, other = ShardWriter(tmp_path, ABOUT, rank=0), ShardWriter(tmp_path, ABOUT, rank=1)
    writer.close()
    with pytest.raises(BlockingIOError):
        ShardWriter(tmp_path, ABOUT, rank=0)
    other.close()
    ShardWriter(tmp_path, ABOUT, rank=0).close()


def rewrite(path: Path, codes: torch.Tensor, entries: int = 2, **change: object) -> None:
    lines = [{"id": str(n), "caption": "a", "seed": None} | change for n in range(entries)]
    save_file({"codes": codes}, path, {"examples": json.dumps(lines)})


CODES = torch.zeros(2, 6, dtype=torch.int32)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-5]), "damaged shard"),
        (lambda path: path.write_bytes(b""), "damaged shard"),
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
    ],
    ids=range(7),
)
def test_a_damaged_about_is_named(tmp_path, content):
    fill(tmp_path, range(1))
    (tmp_path / "about.json").write_text(content)
    for read in (Tokens.read, lambda folder: ShardWriter(folder, ABOUT)):
        with pytest.raises(SettingsError, match="about.json: .*expected .*, got "):
            read(tmp_path)


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


def test_folders_are_joined_one_behind_the_other(tmp_path):
    fill(tmp_path / "real", range(3))
    fill(tmp_path / "own", range(2, 7))
    tokens = Tokens.joined([tmp_path / "real", tmp_path / "own"])
    examples = [example(number) for number in (*range(3), *range(2, 7))]
    assert tokens.ids == [joined.id for joined in examples]
    assert tokens.captions == [joined.caption for joined in examples]
    codes = torch.stack([joined.codes for joined in examples])
    assert torch.equal(tokens.codes(range(8)), codes.long())
    train, held = tokens.split(2)
    assert not {tokens.captions[i] for i in train} & {tokens.captions[i] for i in held}
    ShardWriter(tmp_path / "other", ABOUT | {"vocab": 10}).close()
    with pytest.raises(ValueError, match="other: found no tokens"):
        Tokens.joined([tmp_path / "real", tmp_path / "other"])
    writer = ShardWriter(tmp_path / "other", ABOUT | {"vocab": 10})
    writer.add(example(0))
    writer.close()
    with pytest.raises(ValueError, match="other: its vocab is 10; that of .*real is 9"):
        Tokens.joined([tmp_path / "real", tmp_path / "other"])
