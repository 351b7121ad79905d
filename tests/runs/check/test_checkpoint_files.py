"""`inspect`: what fits, what is missing or damaged, all of it in one report, and memory."""

import json
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
from models.linear import Linear
from models.probe import Timing
from models.registry import FAMILIES, TARGETS, load_target
from models.targets.llamagen_files import llamagen_family
from runs import throughput
from runs.check import files as files_module


@pytest.fixture
def folder(checkpoint, tmp_path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "model"))


@pytest.fixture
def llamagen(tmp_path, monkeypatch) -> Path:
    """A checkpoint of 4 x 4 codes, which `llamagen` stands for here."""
    monkeypatch.setitem(FAMILIES, "llamagen", llamagen_family(4))
    return write_llamagen(tmp_path / "LlamaGen-T2I")


def report(capsys, folder: Path, *words: str) -> tuple[int, dict]:
    """Exit code and JSON document of `inspect`."""
    code = main.main(["inspect", "--json", "--model_path", str(folder), *words])
    said = capsys.readouterr()
    errors = [line for line in said.err.splitlines() if not line.startswith("note: ")]
    assert bool(errors) == (code == 1), said.err
    return code, json.loads(said.out)


def rows(document: dict) -> dict[tuple[str, str], dict]:
    return {(row["part"], row["item"]): row for row in document["findings"]}


def faults(document: dict) -> dict[tuple[str, str], dict]:
    return {key: row for key, row in rows(document).items() if row["state"] == "FAULT"}


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
    texts = {key: row["text"] for key, row in rows(document).items()}
    count = sum(value.numel() for value in load_file(checkpoint / "model.safetensors").values())
    assert texts["target", "stored"].startswith(f"{count:,} parameters: F32 (29 tensors)")
    assert "2 layers, hidden 32, 2 heads" in texts["target", "config.json"]
    assert "24 codes, 8 x 8 pixels" in texts["image tokenizer", "files"]
    assert "image codes 4 to 27" in texts["text tokenizer", "files"]


def test_the_table_is_for_readers(checkpoint, capsys) -> None:
    words = ["--model_path", str(checkpoint), "--batch_size", "3", "--dtype=bf16"]
    assert main.main(["inspect", *words]) == 0
    out = capsys.readouterr().out
    assert "memory, bf16, 3 images x 2 guidance rows" in out and "together" in out
    assert "FAULT" not in out and max(map(len, out.splitlines())) < 400


@pytest.mark.parametrize(
    ("words", "images", "guidance"), [([], 1, 2), (["--batch_size=3"], 3, 2), (["--cfg=1"], 1, 1)]
)
def test_memory_is_that_of_a_loaded_model(words, images, guidance, checkpoint, capsys) -> None:
    memory = report(capsys, checkpoint, "--dtype=bf16", *words)[1]["memory"]
    options = TargetOptions(torch.bfloat16, torch.device("cpu"))
    target = load_target("tiny", str(checkpoint), options)
    head = load_drafter(str(checkpoint / "drafter"), target).network
    modules = {"target weights": target.transformer, "drafter weights": head}
    for name, module in (modules | {"image tokenizer": target.images.model}).items():
        assert memory[name] == sum(weight.nbytes for weight in module.parameters())
    shape = CacheShape(images, guidance, target.spec.max_positions + 59)
    cache = KVCache(target.spec, shape, target.dtype, torch.device("meta"))
    assert memory["target keys and values"] == cache.nbytes


def test_copies_in_fp32_are_counted(checkpoint, capsys) -> None:
    memory = report(capsys, checkpoint)[1]["memory"]
    target = load_target("tiny", str(checkpoint), TargetOptions(torch.float32, torch.device("cpu")))
    linears = (module for module in target.transformer.modules() if isinstance(module, Linear))
    copies = sum(linear.weight.nbytes for linear in linears)
    assert memory["target copies on CPUs"] == copies > 0


@pytest.mark.parametrize("measured", [False, True])
def test_speed_of_kernels_is_told_once_it_was_measured(
    measured, checkpoint, capsys, monkeypatch
) -> None:
    rows = {torch.float32: (Timing(256, 1, kernels=0.5, torch=2.0),)}
    monkeypatch.setattr(files_module, "measured", lambda dtype: rows if measured else {})
    findings = report(capsys, checkpoint, "--device", "cpu")[1]["findings"]
    told = next(finding["text"] for finding in findings if finding["part"] == "kernels")
    assert ("256 wide, 1 token: 4.0 times" if measured else "not measured yet") in told


def test_all_differences_of_both_networks_are_listed(folder, capsys) -> None:
    def change(state: dict) -> None:
        state["model.norm.weight"] = torch.zeros(31)
        for number in range(30):
            state[f"stranger.{number}"] = torch.zeros(1)
        del state["model.layers.1.mlp.up_proj.weight"]

    rewrite(folder / "model.safetensors", change)
    rewrite(folder / "drafter" / "model.safetensors", lambda state: state.pop("fc.bias"))
    code, document = report(capsys, folder)
    wrong = faults(document)
    assert code == 1 and set(wrong) == {("target", "keys"), ("drafter", "keys")}
    details = wrong["target", "keys"]["details"]
    assert len(details) == 32 and wrong["drafter", "keys"]["details"] == ["missing key fc.bias"]
    assert "model.norm.weight has shape (31,), expected (32,)" in details


def test_one_damaged_shard_of_two(folder, capsys) -> None:
    names = write_shards(folder, "safetensors")
    content = (folder / names[0]).read_bytes()
    (folder / names[0]).write_bytes(content[:-10])
    code, document = report(capsys, folder)
    assert code == 1 and set(faults(document)) == {("target", names[0])}
    assert "file not fully covered" in faults(document)["target", names[0]]["text"]
    keys = rows(document)["target", "keys"]["text"]
    assert "15 keys are in files that cannot be read" in keys
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
    assert code == bool(cut)


@pytest.mark.parametrize(
    ("name", "part", "item"),
    [
        ("config.json", "target", "config.json"),
        ("model.safetensors", "target", "weights"),
        ("tokenizer/text_tokenizer.json", "text tokenizer", "files"),
        ("tokenizer/vqgan.yaml", "image tokenizer", "files"),
        ("drafter/config.json", "drafter", "config.json"),
        ("drafter/model.safetensors", "drafter", "weights"),
    ],
)
def test_a_missing_file_is_one_row_among_the_others(name, part, item, folder, capsys) -> None:
    (folder / name).unlink()
    code, document = report(capsys, folder)
    assert code == 1 and set(faults(document)) == {(part, item)}
    assert Path(name).name in faults(document)[part, item]["text"]


def test_a_drafter_of_another_target(checkpoint, tmp_path, capsys) -> None:
    other = write_checkpoint(tmp_path / "other", Sizes(hidden=64))
    code, document = report(capsys, checkpoint, "--drafter_path", str(other / "drafter"))
    assert code == 1 and set(faults(document)) == {("drafter", "config.json")}
    assert "hidden_size 64" in faults(document)["drafter", "config.json"]["text"]


def test_a_drafter_with_another_rotary_base_is_a_note(folder, capsys) -> None:
    """Such a head loads and only drafts badly, so nothing else would tell."""
    path = folder / "drafter" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rope_theta": 500.0}))
    code, document = report(capsys, folder)
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


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["inspect", "--batch_size=0"], "--batch_size: found 0"),
        (["inspect", "--dtype=int8"], "--dtype: found 'int8'"),
        (["inspect", "--num_images=0"], "--num_images: found 0"),
        (["inspect", "--method=adt"], "--method: unknown flag"),
        (["inspect", "--cfg_mode=sequential"], "--cfg_mode: unknown flag"),
        (["verify"], "verify: no such command here; use `inspect --run`"),
    ],
)
def test_settings_are_checked_first(words, message, capsys) -> None:
    assert main.main(words) == 2
    said = capsys.readouterr()
    assert said.out == "" and message in said.err


@pytest.mark.parametrize("here", [True, False])
def test_a_missing_torchao_is_a_note(here, checkpoint, monkeypatch, capsys) -> None:
    monkeypatch.setattr(files_module, "find_spec", lambda name: object() if here else None)
    code, document = report(capsys, checkpoint, "--quantize=int8")
    row = rows(document).get(("target", "quantize"))
    assert code == 0 and (row is None) == here
    assert here or "needs torchao" in row["text"] and "pip install -e '.[quantize]'" in row["text"]


def test_a_checkpoint_without_a_drafter_says_so(folder, capsys) -> None:
    shutil.rmtree(folder / "drafter")
    code, document = report(capsys, folder)
    row = rows(document)["drafter", "folder"]
    assert code == 0 and row["state"] == "note"
    assert "only --method ar or jacobi or" in row["text"] and "works; source: " in row["text"]


def test_lumina_needs_the_token_of_row_ends(lumina_folder, folder, capsys) -> None:
    words = ["--model", "lumina_mgpt", "--target_size", "64"]
    assert report(capsys, lumina_folder, *words)[0] == 0
    code, document = report(capsys, folder, *words)
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
    code, document = report(capsys, folder, "--model=lumina_mgpt", f"--target_size={size}")
    wrong = faults(document)
    assert code == (fault is not None) and wrong.keys() == ({fault} if code else set())
    assert not code or words in wrong[fault]["text"]


def test_a_whole_llamagen_checkpoint_fits_only_its_stage(llamagen, capsys) -> None:
    code, document = report(capsys, llamagen, "--model", "llamagen")
    assert code == 0, faults(document)
    texts, memory = {key: row["text"] for key, row in rows(document).items()}, document["memory"]
    assert "T5 of width" in texts["text encoder", "files"]
    assert "codes" in texts["image tokenizer", "files"]
    assert {"target weights", "drafter weights", "image tokenizer"} < memory.keys()
    encoder = load_file(llamagen.parent / "t5" / "flan-t5-xl" / "model.safetensors")
    used = [value for key, value in encoder.items() if key.startswith(("encoder.", "shared."))]
    assert memory["text encoder"] == 2 * sum(value.numel() for value in used) > 0
    code, document = report(capsys, llamagen, "--model", "llamagen2")
    text = faults(document)["target", "config.json"]["text"]
    assert code == 1 and "block_size is 16, expected 1024" in text


@pytest.mark.parametrize("damage", ["tokenizer.json", "model.safetensors"])
def test_a_damaged_text_encoder_is_a_fault(damage, llamagen, capsys) -> None:
    path = llamagen.parent / "t5" / "flan-t5-xl" / damage
    content = path.read_bytes()
    path.unlink()
    if damage == "model.safetensors":
        path.write_bytes(content[:-500])
    code, document = report(capsys, llamagen, "--model", "llamagen")
    assert code == 1 and damage in faults(document)["text encoder", "files"]["text"]


def test_every_fault_of_a_llamagen_checkpoint_is_named(llamagen, capsys) -> None:
    key = "model.cls_embedding.uncond_embedding"
    rewrite(llamagen / "model.safetensors", lambda state: state.pop(key))
    (llamagen.parent / "vq_ds16_t2i.pt").write_bytes(b"nonsense")
    shutil.rmtree(llamagen.parent / "t5")
    code, document = report(capsys, llamagen, "--model", "llamagen")
    wrong = faults(document)
    assert code == 1 and wrong["target", "keys"]["details"] == [f"missing key {key}"]
    codec, encoder = (wrong[name, "files"]["text"] for name in ("image tokenizer", "text encoder"))
    assert "source: `hf download peizesun/llamagen_t2i vq_ds16" in codec
    assert "--text_encoder_path" in encoder and "`hf download google/flan-t5-xl" in encoder


def test_speeds_are_measured_on_demand(folder, capsys, monkeypatch, tmp_path) -> None:
    """Of the methods that the checkpoint has, at the batch sizes that fit into the memory."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(throughput, "TIMED", 2)
    monkeypatch.setattr(files_module, "BATCHES", (1, 2, 4))
    monkeypatch.setattr(files_module, "_SHARE", 1.0)
    monkeypatch.setattr(files_module, "free_memory", lambda device: most * 3 // 4)
    _, large = report(capsys, folder, "--batch_size=4")
    assert "tokens_per_second" not in large
    most = sum(n for name, n in large["memory"].items() if not name.endswith("weights"))
    code, document = report(capsys, folder, "--speed")
    cells, rates = zip(*document["tokens_per_second"], strict=True)
    assert code == 0 and document["recommended"] in cells and min(rates) > 0
    for cell, (batch, name) in zip(
        cells, [(n, name) for n in (1, 2) for name in ("ar", "jacobi", "adt")], strict=True
    ):
        assert cell.startswith(f"--batch_size {batch} --method {name}")
    shutil.rmtree(folder / "drafter")
    monkeypatch.setattr(files_module, "BATCHES", (1,))
    _, document = report(capsys, folder, "--speed")
    assert [cell.split()[3] for cell, _ in document["tokens_per_second"]] == ["ar", "jacobi"]
