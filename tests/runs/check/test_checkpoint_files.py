"""`inspect`: what fits, notes, memory and flags."""

from dataclasses import replace

import pytest
import torch
from damage import cut, entries, faults, gone, inspected, rows
from safetensors.torch import load_file
from small import LUMINA, loaded, store_weights, write_checkpoint

import main
from decoding.cache import CacheShape, KVCache
from drafters.loading import load_drafter
from models.linear import Linear
from runs.check import files as files_module
from runs.session import DTYPES


@pytest.mark.parametrize("model", ["tiny", "anole"])
def test_a_whole_checkpoint_fits(model, checkpoint, capsys) -> None:
    code, document = inspected(capsys, checkpoint, "--model", model)
    assert code == 0 and not faults(document)
    texts = {key: row["text"] for key, row in rows(document).items()}
    count = sum(value.numel() for value in load_file(checkpoint / "model.safetensors").values())
    assert texts["target", "stored"].startswith(f"{count:,} parameters: F32 (29 tensors)")
    assert "2 layers, hidden 32, 2 heads" in texts["target", "config.json"]
    assert "24 codes, 8 x 8 pixels" in texts["image tokenizer", "files"]
    assert "image codes 4 to 27" in texts["text tokenizer", "files"]


@pytest.mark.parametrize("sizes", [{}, None])
def test_config_json_need_not_tell_the_codecs_sizes(sizes, folder, capsys) -> None:
    entries(vq_config=sizes)(folder)
    assert inspected(capsys, folder)[0] == 0


def test_the_table_is_for_readers(checkpoint, capsys) -> None:
    words = ["--model_path", str(checkpoint), "--batch_size", "3", "--dtype=bf16"]
    assert main.main(["inspect", *words]) == 0
    out = capsys.readouterr().out
    assert "memory, bf16, 3 images x 2 guidance rows" in out and "together" in out
    assert "FAULT" not in out and max(map(len, out.splitlines())) < 400


@pytest.mark.parametrize(
    ("dtype", "words", "images", "guidance"),
    [("bf16", ["--batch_size=3"], 3, 2), ("bf16", ["--cfg=1"], 1, 1), ("fp32", [], 1, 2)],
)
def test_memory_is_that_of_a_loaded_model(
    dtype, words, images, guidance, checkpoint, capsys
) -> None:
    memory = inspected(capsys, checkpoint, f"--dtype={dtype}", *words)[1]["memory"]
    target = loaded(checkpoint, dtype=DTYPES[dtype])
    head = load_drafter(str(checkpoint / "drafter"), target)
    modules = {"target weights": target.transformer, "drafter weights": head}
    for name, module in (modules | {"image tokenizer": target.images.model}).items():
        assert memory[name] == sum(weight.nbytes for weight in module.parameters())
    shape = CacheShape(images, guidance, target.spec.max_positions + 59)
    cache = KVCache(target.spec, shape, target.dtype, torch.device("meta"))
    assert memory["target keys and values"] == cache.nbytes
    linears = (module for module in target.transformer.modules() if isinstance(module, Linear))
    copies = sum(linear.weight.nbytes for linear in linears)
    assert memory["target copies on CPUs"] == copies > 0


@pytest.mark.parametrize("kind", ["bin", "old bin"])
def test_bin_files(kind, folder, capsys) -> None:
    path = store_weights(folder, kind)
    assert not faults(inspected(capsys, folder)[1])
    cut(path.name, 3000)(folder)
    assert set(faults(inspected(capsys, folder)[1])) == {("target", path.name)}


def test_a_drafter_with_another_rotary_base_is_a_note(folder, capsys) -> None:
    """Such a head loads and only drafts badly, so nothing else would tell."""
    entries(file="drafter/config.json", rope_theta=500.0)(folder)
    code, document = inspected(capsys, folder)
    row = rows(document)["drafter", "rope_theta"]
    assert code == 0 and row["state"] == "note" and row["text"].startswith("500, the target's is")


@pytest.mark.parametrize("offline", [True, False])
def test_hub_ids_are_not_fetched(offline, monkeypatch, tmp_path, capsys) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)  # whatever the shell has set
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert main.main(["inspect", "--model=anole", "--model_path=nobody/nothing"]) == 1
    out = capsys.readouterr().out
    assert "'nobody/nothing' is no folder here and not in the hub's cache" in out
    hint = "HF_HUB_OFFLINE is set: `hf download nobody/nothing`"
    assert (hint if offline else "`hf download nobody/nothing` fetches it") in out


@pytest.mark.parametrize("here", [True, False])
def test_a_missing_torchao_is_a_note(here, checkpoint, monkeypatch, capsys) -> None:
    monkeypatch.setattr(files_module, "find_spec", lambda name: object() if here else None)
    code, document = inspected(capsys, checkpoint, "--quantize=int8")
    row = rows(document).get(("target", "quantize"))
    assert code == 0 and (row is None) == here
    assert here or "needs torchao" in row["text"] and "pip install -e '.[quantize]'" in row["text"]


def test_a_checkpoint_without_a_drafter_says_so(folder, capsys) -> None:
    gone("drafter")(folder)
    code, document = inspected(capsys, folder)
    row = rows(document)["drafter", "folder"]
    assert code == 0 and row["state"] == "note"
    assert "only --method ar, jacobi or" in row["text"] and "works; source: " in row["text"]


def test_lumina_needs_the_token_of_row_ends(lumina_folder, folder, capsys) -> None:
    words = ["--model", "lumina_mgpt", "--target_size", "64"]
    assert inspected(capsys, lumina_folder, *words)[0] == 0
    code, document = inspected(capsys, folder, *words)
    assert code == 1 and "<reserved08799>" in faults(document)["text tokenizer", "files"]["text"]


@pytest.mark.parametrize(
    ("size", "positions", "fault", "words"),
    [
        ("96", 200, None, ""),
        ("192", 200, ("parts", "together"), "no token for a side of 192 pixels, '<reserved08806>'"),
        ("128", 60, ("parts", "together"), "max_position_embeddings is 60"),
        ("96", 60, ("target", "sequence"), "6 row ends of 60 positions leave 18 for prompts"),
    ],
)
def test_lumina_is_inspected_at_the_size_of_the_flag(
    size, positions, fault, words, tmp_path, capsys
) -> None:
    """The small tokenizer names sizes up to 128 pixels; 8 rows of 8 tokens take 72 positions."""
    folder = write_checkpoint(tmp_path / "lumina", replace(LUMINA, positions=positions))
    code, document = inspected(capsys, folder, "--model=lumina_mgpt", f"--target_size={size}")
    wrong = faults(document)
    assert code == (fault is not None) and wrong.keys() == ({fault} if code else set())
    assert not code or words in wrong[fault]["text"]


def test_a_whole_llamagen_checkpoint_fits_only_its_stage(llamagen, capsys) -> None:
    code, document = inspected(capsys, llamagen, "--model", "llamagen")
    assert code == 0, faults(document)
    texts, memory = {key: row["text"] for key, row in rows(document).items()}, document["memory"]
    assert "T5 of width" in texts["text encoder", "files"]
    assert "codes" in texts["image tokenizer", "files"]
    assert {"target weights", "drafter weights", "image tokenizer"} < memory.keys()
    encoder = load_file(llamagen.parent / "t5" / "flan-t5-xl" / "model.safetensors")
    used = [value for key, value in encoder.items() if key.startswith(("encoder.", "shared."))]
    assert memory["text encoder"] == 2 * sum(value.numel() for value in used) > 0
    code, document = inspected(capsys, llamagen, "--model", "llamagen2")
    text = faults(document)["target", "config.json"]["text"]
    assert code == 1 and "block_size is 16, expected 1024" in text
