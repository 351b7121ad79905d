"""Broken checkpoint folders x commands:
one line names the file, at once, and inspect foretells it.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from browser import thinned
from small_llamagen import write_llamagen

import main
from models.codecs.codebook import table_path
from models.registry import FAMILIES, TARGETS
from models.targets.llamagen import LlamaGen
from models.targets.llamagen_files import llamagen_family

Damage = Callable[[Path], object]
HUGE = 10**18  # of which no tensor can be made, not even without memory
JUNK = {
    "empty": b"",
    "text": b"not found\n" * 100,
    "pickle of nothing": b"\x80\x02}q\x00h\x05.",  # reads what was never stored: a KeyError
    "cut pickle": b"\x80\x02",
    "zip": b"PK\x03\x04" + b"x" * 100,
}


def entry(name: str, value: object, place: str = ".") -> Damage:
    """Change an entry of a config.json."""

    def damage(folder: Path) -> None:
        path = folder / place / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))

    return damage


def vqgan(name: str, value: object) -> Damage:
    """Change a size in vqgan.yaml."""

    def damage(folder: Path) -> None:
        path = folder / "tokenizer" / "vqgan.yaml"
        content = yaml.safe_load(path.read_text())
        params = content["model"]["params"]
        (params if name in params else params["ddconfig"])[name] = value
        path.write_text(yaml.safe_dump(content))

    return damage


def content(name: str, text: bytes) -> Damage:
    """Replace a file."""
    return lambda folder: (folder / name).write_bytes(text)


def pickled(place: str, text: bytes) -> Damage:
    """Put a .bin file in the place of the weights."""

    def damage(folder: Path) -> None:
        (folder / place / "model.safetensors").unlink()
        (folder / place / "pytorch_model.bin").write_bytes(text)

    return damage


def gone(name: str) -> Damage:
    """Put a folder in the place of a file."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


def sizes(place: str) -> dict[str, tuple[Damage, str, str]]:
    """Sizes that the weights contradict, or that none could have."""
    part = "target" if place == "." else "drafter"
    cases = {}
    for name in ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size"):
        for value in (100000, HUGE):
            words = rf"config\.json: {name} is {value}, the weights hold \d+$"
            cases[f"{part} {name} {value}"] = (entry(name, value, place), part, words)
    for name, allowed in (
        ("num_attention_heads", "divisors of 32"),
        ("num_key_value_heads", "divisors of 2"),
        ("max_position_embeddings", "whole numbers up to"),
        ("swin_norm", "true or false"),
    ):
        words = rf"config\.json: {name} is {HUGE}; allowed: {allowed}"
        cases[f"{part} {name}"] = (entry(name, HUGE, place), part, words)
    return cases


def weights(place: str) -> dict[str, tuple[Damage, str, str]]:
    """Weight files that hold something else."""
    part = "target" if place == "." else "drafter"
    return {
        **{
            f"{part} bin, {name}": (pickled(place, text), part, r"pytorch_model\.bin")
            for name, text in JUNK.items()
        },
        **{
            f"{part} safetensors, {name}": (
                content(f"{place}/model.safetensors", text),
                part,
                r"model\.safetensors",
            )
            for name, text in JUNK.items()
        },
        f"{part} weights gone": (gone(f"{place}/model.safetensors"), part, r"model\.safetensors"),
        f"{part} config gone": (gone(f"{place}/config.json"), part, r"config\.json"),
        f"{part} config nested": (
            content(f"{place}/config.json", b"[" * 100000),
            part,
            r"config\.json: found no JSON",
        ),
    }


# name -> damage, part of inspect's report, what both commands say
CASES: dict[str, tuple[Damage, str, str]] = {
    **sizes("."),
    **sizes("drafter"),
    **weights("."),
    **weights("drafter"),
    "too few positions": (
        entry("max_position_embeddings", 8),
        "parts",
        r"max_position_embeddings is 8; an image of 4 x 4 tokens takes 16",
    ),
    "bias": (entry("bias", "no", "drafter"), "drafter", r"drafter/config\.json: bias is 'no'"),
    **{
        f"calibration {text[:9]!r}": (
            content("drafter/calibration.json", text),
            "drafter",
            r"drafter/calibration\.json: ",
        )
        for text in (b"{", b"[]", b'{"x": {"topk": [0]}}', b"\xff", b"[" * 100000)
    },
    **{
        f"vqgan {name}": (
            vqgan(name, value),
            "image tokenizer",
            rf"vqgan\.safetensors: .*{name} is .*, the weights hold",
        )
        for name, value in (
            ("num_res_blocks", 100000),
            ("n_embed", HUGE),
            ("embed_dim", HUGE),
            ("z_channels", HUGE),
            ("ch", HUGE),
            ("ch_mult", [1] * 200),
        )
    },
    "vqgan.yaml nested": (
        content("tokenizer/vqgan.yaml", b"[" * 700),
        "image tokenizer",
        r"vqgan\.yaml",
    ),
    "vqgan junk": (
        content("tokenizer/vqgan.safetensors", JUNK["text"]),
        "image tokenizer",
        r"vqgan\.safetensors",
    ),
    "tokenizer junk": (
        content("tokenizer/text_tokenizer.json", JUNK["text"]),
        "text tokenizer",
        r"text_tokenizer\.json is not a tokenizer file",
    ),
}


def inspected(capsys, folder: Path, *words: str) -> tuple[int, list[dict]]:
    """Exit code and faults of `inspect`."""
    capsys.readouterr()
    code = main.main(["inspect", "--json", f"--model_path={folder}", *words])
    said = capsys.readouterr()
    assert said.err.count("\n") == (code != 0), said.err
    found = json.loads(said.out)["findings"]
    return code, [finding for finding in found if not finding["fits"]]


def generated(capsys, folder: Path, *words: str) -> tuple[int, str]:
    """Exit code of `generate_images`, and what it says on stderr."""
    output = f"--output_dir={folder.parent / 'out'}"
    code = main.main(
        ["generate_images", f"--model_path={folder}", "--prompt=a cat", output, *words]
    )
    return code, capsys.readouterr().err


def refused(capsys, folder: Path, *words: str) -> str:
    """Check that `generate_images` refuses before the first image, and return its one line."""
    code, said = generated(capsys, folder, *words)
    assert code == 2 and said.startswith("error: ") and said.count("\n") == 1, said
    assert not list(folder.parent.glob("out/img/*"))
    return said.strip()


@pytest.fixture
def folder(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "model"))


def test_a_whole_checkpoint(folder, capsys) -> None:
    assert inspected(capsys, folder) == (0, []) and generated(capsys, folder)[0] == 0


@pytest.mark.parametrize("name", thinned(CASES))
def test_inspect_foretells_what_generate_images_says(name, folder, capsys) -> None:
    damage, part, words = CASES[name]
    damage(folder)
    code, faults = inspected(capsys, folder)
    assert code == 1 and {fault["part"] for fault in faults} == {part}
    said = refused(capsys, folder)
    assert re.search(words, faults[0]["text"]) and re.search(words, said), (faults, said)
    works_without = part == "drafter"
    assert (generated(capsys, folder, "--method=ar")[0] == 0) is works_without


@pytest.mark.parametrize("index", [65535, 24])
def test_a_table_of_nearest_codes_that_names_no_code(index, folder, capsys) -> None:
    path = table_path(folder, 24)
    assert main.main(["vq_distances", f"--model_path={folder}"]) == 0
    assert inspected(capsys, folder)[0] == 0
    table = np.load(path)
    table[3, 2] = index
    np.save(path, table)
    words = f"{path}: found the code {index}; allowed: 0 to 23"
    assert inspected(capsys, folder)[1][0]["text"] == words
    assert words in refused(capsys, folder, "--lantern", "--lantern_k=5")
    assert generated(capsys, folder)[0] == 0


def test_a_place_that_takes_no_table(folder, capsys) -> None:
    (folder / "vq_distances").write_text("a file")
    assert main.main(["vq_distances", f"--model_path={folder}"]) == 1
    said = capsys.readouterr().err
    assert said == f"error: {folder / 'vq_distances'}: File exists\n"


def test_everything_missing_is_listed_at_once(folder, capsys) -> None:
    for name in ("config.json", "model.safetensors", "drafter/model.safetensors"):
        (folder / name).unlink()
    shutil.rmtree(folder / "tokenizer")
    code, faults = inspected(capsys, folder)
    found = {(fault["part"], fault["item"]) for fault in faults}
    assert code == 1 and found == {
        ("target", "config.json"),
        ("target", "weights"),
        ("text tokenizer", "files"),
        ("image tokenizer", "files"),
        ("drafter", "weights"),
    }


def test_folders_that_are_not_there_are_lines_of_the_report(tmp_path, capsys) -> None:
    words = [f"--drafter_path={tmp_path}/none", f"--tokenizer_path={tmp_path}/no"]
    code, faults = inspected(capsys, tmp_path / "nowhere", "--model=anole", *words)
    texts = {fault["part"]: fault["text"] for fault in faults}
    assert code == 1
    assert texts.keys() == {"target", "drafter", "text tokenizer", "image tokenizer"}
    assert "source: `hf download leloy/" in texts["target"]
    assert "source: `hf download jadohu/anole_drafter" in texts["drafter"]
    assert "--tokenizer_path" in texts["text tokenizer"]


LLAMAGEN: dict[str, tuple[Damage, str, str]] = {
    "caption_dim": (entry("caption_dim", HUGE), "target", f"caption_dim is {HUGE}, the weights"),
    "cls_token_num": (entry("cls_token_num", HUGE), "target", f"cls_token_num is {HUGE}, the"),
    "T5 layers": (
        entry("num_layers", 100000, "../t5/flan-t5-xl"),
        "text encoder",
        "num_layers is 100000, the weights hold",
    ),
    "T5 junk": (
        pickled("../t5/flan-t5-xl", JUNK["pickle of nothing"]),
        "text encoder",
        "--text_encoder_path: .*cannot be read",
    ),
    "T5 tokenizer": (
        content("../t5/flan-t5-xl/tokenizer.json", b"{}"),
        "text encoder",
        "--text_encoder_path: .*cannot be read as a tokenizer",
    ),
    "codes junk": (
        content("../vq_ds16_t2i.pt", JUNK["pickle of nothing"]),
        "image tokenizer",
        r"vq_ds16_t2i\.pt: damaged",
    ),
}


@pytest.mark.parametrize("name", thinned(LLAMAGEN))
def test_broken_llamagen_folders(name, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(FAMILIES, "llamagen", llamagen_family(4))
    monkeypatch.setitem(TARGETS, "llamagen", lambda *given: LlamaGen.load(*given, side=4))
    folder = write_llamagen(tmp_path / "LlamaGen-T2I")
    damage, part, words = LLAMAGEN[name]
    damage(folder)
    code, faults = inspected(capsys, folder, "--model=llamagen")
    assert code == 1 and {fault["part"] for fault in faults} == {part}
    said = refused(capsys, folder, "--model=llamagen")
    assert re.search(words, faults[0]["text"]) and re.search(words, said), (faults, said)
