"""`inspect` through the command line:
what fits, what is missing or damaged, all of it in one report, and memory.
"""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import LUMINA, Sizes, write_checkpoint, write_shards
from small_llamagen import write_llamagen

import main
from decoding.cache import CacheShape, KVCache
from drafters.loading import load_drafter
from models.base import TargetOptions
from models.linear import Linear, can_pack
from models.registry import FAMILIES, TARGETS, load_target
from models.targets.llamagen_files import llamagen_family
from runs import inspection, throughput


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "model"))


def report(capsys, folder: Path, *words: str) -> tuple[int, dict]:
    """Exit code and JSON document of `inspect`."""
    code = main.main(["inspect", "--json", "--model_path", str(folder), *words])
    said = capsys.readouterr()
    assert bool(said.err) == (code == 1), said.err
    return code, json.loads(said.out)


def faults(document: dict) -> dict[tuple[str, str], dict]:
    return {(line["part"], line["item"]): line for line in document["findings"] if not line["fits"]}


def rewrite(path: Path, change) -> None:
    state = load_file(path)
    change(state)
    save_file(state, path)


def test_every_target_can_be_inspected() -> None:
    assert FAMILIES.keys() == TARGETS.keys()


@pytest.mark.parametrize("model", ["tiny", "anole"])
def test_a_whole_checkpoint_fits(model, checkpoint, capsys) -> None:
    code, document = report(capsys, checkpoint, "--model", model)
    assert code == 0 and document["fits"] and not faults(document)
    texts = {(line["part"], line["item"]): line["text"] for line in document["findings"]}
    count = sum(value.numel() for value in load_file(checkpoint / "model.safetensors").values())
    assert texts["target", "stored"].startswith(f"{count:,} parameters: F32 (29 tensors)")
    assert "2 layers, hidden 32, 2 heads" in texts["target", "config.json"]
    assert "24 codes, 8 x 8 pixels" in texts["image tokenizer", "files"]
    assert "image codes 4 to 27" in texts["text tokenizer", "files"]


def test_the_table_is_for_readers(checkpoint, capsys) -> None:
    assert (
        main.main(["inspect", "--model_path", str(checkpoint), "--batch_size", "3", "--dtype=bf16"])
        == 0
    )
    out = capsys.readouterr().out
    assert (
        "memory, bf16, 3 images x 2 guidance rows" in out
        and "together" in out
        and "FAULT" not in out
    )
    assert max(map(len, out.splitlines())) < 400


@pytest.mark.parametrize(
    ("words", "images", "rows"), [([], 1, 2), (["--batch_size=3"], 3, 2), (["--cfg=1"], 1, 1)]
)
def test_memory_is_that_of_a_loaded_model(words, images, rows, checkpoint, capsys) -> None:
    _, document = report(capsys, checkpoint, "--dtype=bf16", *words)
    memory, device = document["memory"], torch.device("cpu")
    target = load_target("tiny", str(checkpoint), TargetOptions(torch.bfloat16, device))
    head = load_drafter(str(checkpoint / "drafter"), target).network
    for name, module in (("target", target.transformer), ("drafter", head)):
        assert memory[f"{name} weights"] == sum(weight.nbytes for weight in module.parameters())
    shape = CacheShape(images, rows, target.spec.max_positions + 59)
    cache = KVCache(target.spec, shape, target.dtype, torch.device("meta"))
    assert memory["target keys and values"] == cache.nbytes
    assert memory["image tokenizer"] == sum(
        weight.nbytes for weight in target.images.model.parameters()
    )


@pytest.mark.skipif(not can_pack(), reason="this torch packs no weight")
def test_copies_in_fp32_are_counted(checkpoint, capsys) -> None:
    memory = report(capsys, checkpoint)[1]["memory"]
    target = load_target("tiny", str(checkpoint), TargetOptions(torch.float32, torch.device("cpu")))
    linears = (part for part in target.transformer.modules() if isinstance(part, Linear))
    packed = [linear.weight for linear in linears if linear.packed is not None]
    assert memory["target copies on CPUs"] == sum(weight.nbytes for weight in packed) > 0


def test_all_differences_of_both_networks_are_listed(folder, capsys) -> None:
    def change(state: dict) -> None:
        state["model.norm.weight"] = torch.zeros(31)
        for number in range(30):
            state[f"stranger.{number}"] = torch.zeros(1)
        del state["model.layers.1.mlp.up_proj.weight"]

    rewrite(folder / "model.safetensors", change)
    rewrite(folder / "drafter" / "model.safetensors", lambda state: state.pop("fc.bias"))
    code, document = report(capsys, folder)
    found = faults(document)
    assert code == 1 and set(found) == {("target", "keys"), ("drafter", "keys")}
    details = found["target", "keys"]["details"]
    assert len(details) == 32 and found["drafter", "keys"]["details"] == ["missing key fc.bias"]
    assert "model.norm.weight has shape (31,), expected (32,)" in details


def test_one_damaged_shard_of_two(folder, capsys) -> None:
    names = write_shards(folder, "safetensors")
    content = (folder / names[0]).read_bytes()
    (folder / names[0]).write_bytes(content[:-10])
    code, document = report(capsys, folder)
    found = faults(document)
    assert code == 1 and set(found) == {("target", names[0])}
    assert "file not fully covered" in found["target", names[0]]["text"]
    keys = next(
        line for line in document["findings"] if (line["part"], line["item"]) == ("target", "keys")
    )
    assert "15 keys are in files that cannot be read" in keys["text"]
    (folder / names[0]).unlink()
    _, document = report(capsys, folder, "--model=anole")
    assert "missing; source: `hf download leloy/" in faults(document)["target", names[0]]["text"]


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 100, b"\x02\0\0\0\0\0\0\0[]", b"\x09\0\0\0\0\0\0\0" + b'{"a": {}}']
)
def test_files_that_are_no_weights(content, folder, capsys) -> None:
    (folder / "model.safetensors").write_bytes(content)
    code, document = report(capsys, folder)
    assert code == 1 and set(faults(document)) == {("target", "model.safetensors")}
    assert {"image tokenizer", "drafter weights"} <= document["memory"].keys()


@pytest.mark.parametrize(("zipped", "cut"), [(True, 0), (False, 0), (True, 3000)])
def test_bin_files(zipped, cut, folder, capsys) -> None:
    path = folder / "pytorch_model.bin"
    torch.save(load_file(folder / "model.safetensors"), path, _use_new_zipfile_serialization=zipped)
    (folder / "model.safetensors").unlink()
    if cut:
        path.write_bytes(path.read_bytes()[:-cut])
    code, document = report(capsys, folder)
    assert set(faults(document)) == ({("target", "pytorch_model.bin")} if cut else set())
    assert code == (1 if cut else 0)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        (
            "config.json",
            {("target", "config.json")},
        ),
        ("model.safetensors", {("target", "weights")}),
        ("tokenizer/text_tokenizer.json", {("text tokenizer", "files")}),
        ("tokenizer/vqgan.yaml", {("image tokenizer", "files")}),
        ("drafter/config.json", {("drafter", "config.json")}),
        ("drafter/model.safetensors", {("drafter", "weights")}),
    ],
)
def test_a_missing_file_is_one_line_among_the_others(name, found, folder, capsys) -> None:
    (folder / name).unlink()
    code, document = report(capsys, folder)
    assert code == 1 and set(faults(document)) == found
    assert any(Path(name).name in line["text"] for line in faults(document).values())


def test_a_drafter_of_another_target(checkpoint, tmp_path, capsys) -> None:
    other = write_checkpoint(tmp_path / "other", Sizes(hidden=64))
    code, document = report(capsys, checkpoint, "--drafter_path", str(other / "drafter"))
    assert code == 1 and set(faults(document)) == {("drafter", "config.json")}
    assert "hidden_size 64" in faults(document)["drafter", "config.json"]["text"]


def test_hub_ids_are_not_fetched(monkeypatch, tmp_path, capsys) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert main.main(["inspect", "--model=anole", "--model_path=nobody/nothing"]) == 1
    out = capsys.readouterr().out
    assert "'nobody/nothing' is no folder here and not in the hub's cache" in out
    assert "`hf download nobody/nothing` fetches it" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch_size=0"], "--batch_size: found 0"),
        (["--dtype=int8"], "--dtype: found 'int8'"),
        (["--top_k=5"], "--top_k: unknown flag"),
    ],
)
def test_settings_are_checked_like_those_of_other_commands(words, message, capsys) -> None:
    assert main.main(["inspect", *words]) == 2
    said = capsys.readouterr()
    assert said.out == "" and message in said.err


@pytest.mark.parametrize("here", [True, False])
def test_a_missing_torchao_is_a_note(here, checkpoint, monkeypatch, capsys) -> None:
    monkeypatch.setattr("runs.inspection.find_spec", lambda name: object() if here else None)
    code, document = report(capsys, checkpoint, "--quantize=int8")
    notes = [line["text"] for line in document["findings"] if line["item"] == "quantize"]
    assert code == 0 and len(notes) == (not here)
    assert here or "needs torchao" in notes[0] and "pip install -e '.[quantize]'" in notes[0]


def test_a_checkpoint_without_a_drafter_says_so(folder, capsys) -> None:
    shutil.rmtree(folder / "drafter")
    code, document = report(capsys, folder)
    assert code == 0
    line = next(line for line in document["findings"] if line["part"] == "drafter")
    assert (
        line["note"]
        and "only --method ar or jacobi or similar or ngram works; source: " in line["text"]
    )


def test_lumina_needs_the_token_of_row_ends(lumina_folder, folder, capsys) -> None:
    words = ["--model", "lumina_mgpt", "--target_size", "64"]
    assert report(capsys, lumina_folder, *words)[0] == 0
    code, document = report(capsys, folder, *words)
    assert code == 1 and "<reserved08799>" in faults(document)["text tokenizer", "files"]["text"]


@pytest.mark.parametrize(
    ("size", "positions", "fault", "words"),
    [
        ("96", 200, None, ""),
        ("192", 200, ("parts", "together"), "no token '<reserved08806>'"),
        ("128", 60, ("parts", "together"), "max_position_embeddings is 60"),
        (
            "96",
            60,
            ("target", "sequence"),
            "6 row ends of 60 positions leave 18 for prompts",
        ),
    ],
)
def test_lumina_is_inspected_at_the_size_of_the_flag(
    size, positions, fault, words, folder, capsys
) -> None:
    """The small tokenizer names sizes up to 128 pixels; 8 rows of 8 tokens take 72 positions."""
    shutil.rmtree(folder)
    write_checkpoint(folder, replace(LUMINA, positions=positions))
    code, document = report(capsys, folder, "--model=lumina_mgpt", f"--target_size={size}")
    found = faults(document)
    assert code == (fault is not None) and found.keys() == ({fault} if code else set())
    assert not code or words in found[fault]["text"]


@pytest.fixture
def llamagen(tmp_path, monkeypatch) -> Path:
    """A checkpoint of 4 x 4 codes, which `llamagen` stands for here."""
    monkeypatch.setitem(FAMILIES, "llamagen", llamagen_family(4))
    return write_llamagen(tmp_path / "LlamaGen-T2I")


def test_the_other_stage_is_a_fault(llamagen, capsys) -> None:
    code, document = report(capsys, llamagen, "--model", "llamagen2")
    assert (
        code == 1
        and "block_size is 16, expected 1024" in faults(document)["target", "config.json"]["text"]
    )


@pytest.mark.parametrize("damage", ["tokenizer.json", "model.safetensors"])
def test_a_damaged_text_encoder_is_a_fault(damage, llamagen, capsys) -> None:
    path = llamagen.parent / "t5" / "flan-t5-xl" / damage
    content = path.read_bytes()
    path.unlink()
    if damage == "model.safetensors":
        path.write_bytes(content[:-500])
    code, document = report(capsys, llamagen, "--model", "llamagen")
    assert code == 1 and damage in faults(document)["text encoder", "files"]["text"]


def test_a_whole_llamagen_checkpoint_fits(llamagen, capsys) -> None:
    code, document = report(capsys, llamagen, "--model", "llamagen")
    assert code == 0, faults(document)
    texts = {(line["part"], line["item"]): line["text"] for line in document["findings"]}
    assert (
        "T5 of width" in texts["text encoder", "files"]
        and "codes" in texts["image tokenizer", "files"]
    )
    assert {"target weights", "drafter weights", "image tokenizer", "text encoder"} < document[
        "memory"
    ].keys()
    encoder = load_file(llamagen.parent / "t5" / "flan-t5-xl" / "model.safetensors")
    count = sum(
        value.numel() for key, value in encoder.items() if key.startswith(("encoder.", "shared."))
    )
    assert document["memory"]["text encoder"] == 2 * count > 0


def test_every_fault_of_a_llamagen_checkpoint_is_named(llamagen, capsys) -> None:
    rewrite(
        llamagen / "model.safetensors",
        lambda state: state.pop("model.cls_embedding.uncond_embedding"),
    )
    (llamagen.parent / "vq_ds16_t2i.pt").write_bytes(b"nonsense")
    shutil.rmtree(llamagen.parent / "t5")
    code, document = report(capsys, llamagen, "--model", "llamagen")
    found = faults(document)
    assert code == 1
    assert found["target", "keys"]["details"] == [
        "missing key model.cls_embedding.uncond_embedding"
    ]
    assert (
        "source: `hf download peizesun/llamagen_t2i vq_ds16"
        in found["image tokenizer", "files"]["text"]
    )
    assert "--text_encoder_path" in found["text encoder", "files"]["text"]
    assert "source: `hf download google/flan-t5-xl" in found["text encoder", "files"]["text"]


def test_speeds_are_measured_on_demand(checkpoint, capsys, monkeypatch, tmp_path) -> None:
    """Of the methods that the checkpoint has, at the batch sizes that fit into the memory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(throughput, "TIMED", 2)
    monkeypatch.setattr(inspection, "BATCHES", (1, 2, 4))
    monkeypatch.setattr(inspection, "_SHARE", 1.0)
    monkeypatch.setattr(inspection, "free_memory", lambda device: most * 3 // 4)
    _, large = report(capsys, checkpoint, "--batch_size=4")
    most = sum(n for name, n in large["memory"].items() if not name.endswith("weights"))
    code, document = report(capsys, checkpoint, "--speed")
    assert code == 0
    flags = [re.split(" --(window|size)", entry[0])[0] for entry in document["tokens_per_second"]]
    assert flags == [
        f"--batch_size {batch} --method {name}"
        for batch in (1, 2)
        for name in ("ar", "jacobi", "graft")
    ]
    assert document["recommended"] in [entry[0] for entry in document["tokens_per_second"]]
    assert all(rate > 0 for _, rate in document["tokens_per_second"])
    _, plain = report(capsys, checkpoint)
    assert "tokens_per_second" not in plain


def test_without_a_drafter_speeds_are_those_of_two_methods(folder, capsys, monkeypatch) -> None:
    shutil.rmtree(folder / "drafter")
    monkeypatch.setattr(throughput, "TIMED", 2)
    monkeypatch.setattr(inspection, "BATCHES", (1,))
    _, document = report(capsys, folder, "--speed")
    assert [entry[0] for entry in document["tokens_per_second"]] == [
        "--batch_size 1 --method ar",
        "--batch_size 1 --method jacobi --window 16",
    ]
