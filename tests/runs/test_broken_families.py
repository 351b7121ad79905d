"""Broken folders of Janus-Pro and Emu3: `inspect` names all that is missing, each fault once, and
`generate_images` refuses with one line.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from browser import thinned
from safetensors.torch import load_file, save_file
from small import write_checkpoint
from small_emu3 import Emu3Sizes, write_emu3
from small_janus import write_janus
from test_broken_checkpoints import Damage, content, entry, inspected, refused

WRITERS: dict[str, Callable[[Path], Path]] = {
    "janus_pro": write_janus,
    "emu3": write_emu3,
    "emu3 of the authors": lambda folder: write_emu3(folder, layout="authors"),
    "tiny": lambda folder: write_checkpoint(folder),
}
FAMILIES = ("janus_pro", "emu3")


class Evil:
    """Unpickled, it makes a file."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.path}",)


def no_codec(folder: Path) -> None:
    """Take the codec out of the weights."""
    state = load_file(folder / "model.safetensors")
    kept = {key: value for key, value in state.items() if "vqmodel." not in key}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


def gone(*names: str) -> Damage:
    """Remove files and folders."""

    def damage(folder: Path) -> None:
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def with_code(place: str) -> Damage:
    """Put a .bin file that would run code in the place of weights."""

    def damage(folder: Path) -> None:
        (folder / place / "model.safetensors").unlink()
        evil = {"weight": Evil(folder.parent / "ran")}
        torch.save(evil, folder / place / "pytorch_model.bin")

    return damage


def renamed(*names: str) -> Damage:
    """Give tokens other names."""

    def damage(folder: Path) -> None:
        path = folder / "tokenizer.json"
        text = path.read_text()
        for name in names:
            assert name in text
            text = text.replace(name, f"{name[:3]}no{name[3:]}")
        path.write_text(text)

    return damage


APART = "../Emu3-VisionTokenizer"
ALL = ("config.json", "model.safetensors", "tokenizer.json", "drafter/config.json")
MISSING = {"target config.json", "target weights", "text tokenizer files", "drafter config.json"}
# what it is; family; damage; the faults; what generate_images says
CASES: list[tuple[str, str, Damage, set[str], str]] = [
    ("config", "janus_pro", gone("config.json"), {"target config.json"}, "without config.json"),
    ("config", "emu3", gone("config.json"), {"target config.json"}, "without config.json"),
    ("everything", "janus_pro", gone(*ALL), MISSING, "without config.json"),
    ("everything", "emu3", gone(*ALL), MISSING, "without config.json"),
    (
        "no codec", "janus_pro", no_codec, {"image codec files"},
        "no image codec among the weights (keys model.vqmodel.*)",
    ),
    ("no codec", "emu3", no_codec, {"image codec files"}, "`hf download BAAI/Emu3-VisionToken"),
    ("code", "janus_pro", with_code("."), {"target pytorch_model.bin"}, "more than tensors"),
    ("code", "emu3", with_code("."), {"target pytorch_model.bin"}, "more than tensors"),
    ("code", "janus_pro", with_code("drafter"), {"drafter pytorch_model.bin"}, "than tensors"),
    ("code", "emu3", with_code("drafter"), {"drafter pytorch_model.bin"}, "more than tensors"),
    (
        "tokens", "janus_pro", renamed("<｜▁pad▁｜>", "<begin_of_image>"), {"text tokenizer files"},
        "has no token '<｜▁pad▁｜>', '<begin_of_image>'",
    ),
    (
        "tokens", "emu3", renamed("<|extra_203|>", "<|image start|>"), {"text tokenizer files"},
        "has no token '<|extra_203|>', '<|image start|>'",
    ),
    (
        "calibration", "emu3", content("drafter/calibration.json", b"[]"),
        {"drafter calibration.json"}, "drafter/calibration.json: ",
    ),
    (
        "calibration", "janus_pro", content("drafter/calibration.json", b"[]"),
        {"drafter calibration.json"}, "drafter/calibration.json: ",
    ),
    (
        "bias", "janus_pro", entry("bias", "no", "drafter"), {"drafter config.json"},
        "bias is 'no'",
    ),
]  # fmt: skip


def size_of(model: str) -> list[str]:
    return [f"--target_size={Emu3Sizes().size}"] if model == "emu3" else []


def named(faults: list[dict]) -> set[str]:
    return {f"{fault['part']} {fault['item']}" for fault in faults}


def differ(case: tuple) -> str:
    return f"{case[0]}, {case[1]}, {min(case[3])}"


@pytest.mark.parametrize("case", thinned(CASES), ids=differ)
def test_every_fault_is_told_once(case, tmp_path, capsys) -> None:
    _, model, damage, wanted, words = case
    folder = WRITERS[model](tmp_path / "model")
    given = [f"--model={model}", *size_of(model)]
    assert inspected(capsys, folder, *given) == (0, [])
    damage(folder)
    code, faults = inspected(capsys, folder, *given)
    assert code == 1 and named(faults) == wanted and len(faults) == len(wanted), faults
    said = refused(capsys, folder, *given)
    assert words in said, said
    assert len(wanted) > 1 or words in faults[0]["text"] or "without" in words
    assert not (tmp_path / "ran").exists()


def test_the_parts_of_the_authors_emu3_are_all_listed(tmp_path, capsys) -> None:
    folder = WRITERS["emu3 of the authors"](tmp_path / "model")
    gone(f"{APART}/config.json", f"{APART}/model.safetensors", "emu3.tiktoken")(folder)
    faults = inspected(capsys, folder, "--model=emu3", *size_of("emu3"))[1]
    texts = {fault["part"]: fault["text"] for fault in faults}
    assert texts["text tokenizer"] == f"missing file: {folder / 'emu3.tiktoken'}"
    codec = texts["image codec"]
    assert "Emu3-VisionTokenizer/config.json; no weights in " in codec
    gone("emu3_vision_tokens.txt", APART)(folder)
    faults = inspected(capsys, folder, "--model=emu3", *size_of("emu3"))[1]
    texts = {fault["part"]: fault["text"] for fault in faults}
    assert "nor emu3.tiktoken and emu3_vision_tokens.txt, in" in texts["text tokenizer"]
    assert "`hf download BAAI/Emu3-VisionTokenizer` with --local-dir" in texts["image codec"]


PAIRS = [
    (one, other) for one in FAMILIES for other in ("janus_pro", "emu3", "tiny") if one != other
]


@pytest.mark.parametrize(("model", "other"), thinned(PAIRS))
def test_the_folder_of_another_family(model, other, tmp_path, capsys) -> None:
    folder = WRITERS[other](tmp_path / "model")
    given = [f"--model={model}", *size_of(model)]
    code, faults = inspected(capsys, folder, *given)
    told = [fault for fault in faults if "model_type" in fault["text"]]
    assert code == 1 and named(told) == {"target config.json"}
    words = f"allowed for --model {model}: "
    assert words in told[0]["text"] and words in refused(capsys, folder, *given)
    assert all(len(fault["text"]) < 600 for fault in faults)


@pytest.mark.parametrize(("model", "other"), thinned(PAIRS))
def test_the_drafter_of_another_family(model, other, tmp_path, capsys) -> None:
    folders = {name: WRITERS[name](tmp_path / name / "model") for name in (model, other)}
    given = [f"--model={model}", *size_of(model), f"--drafter_path={folders[other]}/drafter"]
    code, faults = inspected(capsys, folders[model], *given)
    said = refused(capsys, folders[model], *given)
    assert code == 1 and len(faults) == 1 and faults[0]["part"] == "drafter"
    if faults[0]["item"] == "keys":  # as many ids of the same width: Chameleon's norms are told
        assert "unexpected key layers.0.self_attn.q_norm" in said
    else:
        assert "do not fit the target's" in faults[0]["text"] and faults[0]["text"] in said
