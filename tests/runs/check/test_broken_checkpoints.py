"""Broken folders: `inspect` names every fault once, and `generate_images` refuses in one line."""

import re
from itertools import permutations

import numpy as np
import pytest
from browser import thinned
from damage import (
    Damage,
    State,
    a_folder,
    content,
    cut,
    entries,
    faults,
    generated,
    gone,
    inspected,
    pickled,
    refused,
    renamed,
    rows,
    tensors,
    vqgan,
    weights,
    with_code,
)
from families import SMALL, size_flag
from small import write_shards

import main
from models.codecs.codebook import table_path
from models.registry import FAMILIES
from models.targets.llamagen import LlamaGen

HUGE = 10**18  # of which no tensor can be made, not even without memory
DEEP = b"[" * 100_000
JUNK = {
    "empty": b"",
    "text": b"not found\n" * 100,
    "pickle of nothing": b"\x80\x02}q\x00h\x05.",  # reads what was never stored: a KeyError
    "cut pickle": b"\x80\x02",
    "zip": b"PK\x03\x04" + b"x" * 100,
}
HEADERS = {  # of safetensors
    "of bytes": b"\xff" * 100,
    "a list": b"\x02\0\0\0\0\0\0\0[]",
    "without shapes": b"\x09\0\0\0\0\0\0\0" + b'{"a": {}}',
}
Row = tuple[str, str]  # part and item
Case = tuple[Damage, str, set[Row]]


def fault(damage: Damage, words: str, *rows: Row) -> Case:
    """A damage, what both commands say of it, and the rows of the report."""
    return damage, words, set(rows)


def network(place: str) -> dict[str, Case]:
    """Files of the target or its drafter that are missing, contradict each other, or are junk."""
    part = "target" if place == "." else "drafter"
    config, single, binary = "config.json", "model.safetensors", "pytorch_model.bin"
    file = f"{place}/{config}"
    cases: dict[str, tuple[Damage, str, str]] = {}
    for name in ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size"):
        for value in (100000, HUGE):
            words = rf"config\.json: {name} is {value}, the weights hold \d+$"
            cases[f"{name} {value}"] = entries(file=file, **{name: value}), config, words
    for name, expected in (
        ("num_attention_heads", "divisors of 32"),
        ("num_key_value_heads", "divisors of 2"),
        ("max_position_embeddings", "whole numbers up to"),
        ("swin_norm", "False or True"),
    ):
        words = rf"config\.json: {name}: expected {expected}.*, got {HUGE}"
        cases[name] = entries(file=file, **{name: HUGE}), config, words
    for name, text in JUNK.items():
        cases[f"bin, {name}"] = pickled(place, text), binary, r"pytorch_model\.bin"
    for name, text in (JUNK | HEADERS).items():
        damage = content(f"{place}/{single}", text)
        cases[f"safetensors, {name}"] = damage, single, r"model\.safetensors"
    cases |= {
        "weights gone": (gone(f"{place}/{single}"), "weights", r"model\.safetensors"),
        "weights a folder": (a_folder(f"{place}/{single}"), "weights", r"model\.safetensors"),
        "config gone": (gone(file), config, r"config\.json"),
        "config a folder": (a_folder(file), config, r"config\.json"),
        "config nested": (content(file, DEEP), config, "config.json: .* got no JSON"),
    }
    return {
        f"{part} {name}": fault(damage, words, (part, item))
        for name, (damage, item, words) in cases.items()
    }


TEXT, IMAGES = ("text tokenizer", "files"), ("image tokenizer", "files")
CODEC = "tokenizer/vqgan.safetensors"
TOKENIZER = "tokenizer/text_tokenizer.json"
VQGAN = {"num_res_blocks": 100000, "n_embed": HUGE, "embed_dim": HUGE, "z_channels": HUGE}
VQGAN |= {"ch": HUGE, "ch_mult": [1] * 200}
BIAS = fault(
    entries(file="drafter/config.json", bias="no"),
    "drafter/config.json: bias: expected true or false, got 'no'",
    ("drafter", "config.json"),
)
CASES = {
    **network("."),
    **network("drafter"),
    "too few positions": fault(
        entries(max_position_embeddings=8),
        "max_position_embeddings is 8; an image of 4 x 4 tokens takes 16",
        ("parts", "together"),
    ),
    "bias": BIAS,
    **{
        f"vqgan {name}": fault(
            vqgan(name, value), rf"vqgan\.safetensors: .*{name} is .*, the weights hold", IMAGES
        )
        for name, value in VQGAN.items()
    },
    "vqgan gone": fault(gone("tokenizer/vqgan.yaml"), "vqgan.yaml", IMAGES),
    "vqgan nested": fault(content("tokenizer/vqgan.yaml", b"[" * 700), "vqgan.yaml", IMAGES),
    "vqgan junk": fault(content(CODEC, JUNK["text"]), "vqgan.safetensors", IMAGES),
    "tokenizer gone": fault(gone(TOKENIZER), "text_tokenizer.json", TEXT),
    "tokenizer junk": fault(
        content(TOKENIZER, JUNK["text"]), "text_tokenizer.json is not a tokenizer file", TEXT
    ),
}


@pytest.mark.parametrize("name", thinned(CASES))
def test_inspect_foretells_what_generate_images_says(name, folder, capsys) -> None:
    damage, words, (row,) = CASES[name]
    damage(folder)
    code, report = inspected(capsys, folder)
    assert code == 1 and faults(report).keys() == {row}
    said = refused(capsys, folder)
    assert re.search(words, faults(report)[row]["text"]) and re.search(words, said), said
    works_without = row[0] == "drafter"
    assert (generated(capsys, folder, "--method=ar")[0] == 0) is works_without


def test_all_differences_of_both_networks_are_listed(folder, capsys) -> None:
    def change(state: State) -> None:
        state["model.norm.weight"] = state["model.norm.weight"][:31].clone()
        for number in range(30):
            state[f"stranger.{number}"] = state["model.norm.weight"].clone()
        del state["model.layers.1.mlp.up_proj.weight"]

    weights(change)(folder)
    weights(lambda state: state.pop("fc.bias"), "drafter/model.safetensors")(folder)
    wrong = faults(inspected(capsys, folder)[1])
    assert set(wrong) == {("target", "keys"), ("drafter", "keys")}
    details = wrong["target", "keys"]["details"]
    assert len(details) == 32 and wrong["drafter", "keys"]["details"] == ("missing key fc.bias",)
    assert "model.norm.weight has shape (31,), expected (32,)" in details


def test_one_damaged_shard_of_two(folder, capsys) -> None:
    names = write_shards(folder, "safetensors")
    cut(names[0], 10)(folder)
    report = inspected(capsys, folder)[1]
    assert set(faults(report)) == {("target", names[0])}
    assert "file not fully covered" in faults(report)["target", names[0]]["text"]
    assert "15 keys are in files that cannot be read" in rows(report)["target", "keys"]["text"]
    assert {"image tokenizer", "drafter weights"} <= report["memory"].keys()
    gone(names[0])(folder)
    report = inspected(capsys, folder, "--model=anole")[1]
    assert "missing; source: `hf download leloy/" in faults(report)["target", names[0]]["text"]


@pytest.mark.parametrize("index", [65535, 24])
def test_a_table_of_nearest_codes_that_names_no_code(index, folder, capsys) -> None:
    path = table_path(folder, 24)
    assert main.main(["vq_distances", f"--model_path={folder}"]) == 0
    assert inspected(capsys, folder)[0] == 0
    table = np.load(path)
    table[3, 2] = index
    np.save(path, table)
    words = f"{path}: expected codes from 0 to 23, got the code {index}"
    assert [row["text"] for row in faults(inspected(capsys, folder)[1]).values()] == [words]
    assert words in refused(capsys, folder, "--verifier=lantern", "--lantern_k=5")
    assert generated(capsys, folder)[0] == 0


def test_a_place_that_takes_no_table(folder, capsys) -> None:
    (folder / "vq_distances").write_text("a file")
    assert main.main(["vq_distances", f"--model_path={folder}"]) == 1
    said = capsys.readouterr().err
    assert said == f"error: {folder / 'vq_distances'}: File exists\n"


def test_folders_that_are_not_there_are_rows_of_the_report(tmp_path, capsys) -> None:
    words = [f"--drafter_path={tmp_path}/none", f"--tokenizer_path={tmp_path}/no"]
    report = inspected(capsys, tmp_path / "nowhere", "--model=anole", *words)[1]
    assert not report["memory"]
    texts = {part: row["text"] for (part, _), row in faults(report).items()}
    assert texts.keys() == {"target", "drafter", "text tokenizer", "image tokenizer"}
    assert "source: `hf download leloy/" in texts["target"]
    assert "source: `hf download jadohu/anole_drafter" in texts["drafter"]
    assert "--tokenizer_path" in texts["text tokenizer"]


def test_every_fault_of_a_llamagen_checkpoint_is_named(llamagen, capsys) -> None:
    key = "model.cls_embedding.uncond_embedding"
    weights(lambda state: state.pop(key))(llamagen)
    content("../vq_ds16_t2i.pt", b"nonsense")(llamagen)
    gone("../t5")(llamagen)
    wrong = faults(inspected(capsys, llamagen, "--model=llamagen")[1])
    assert wrong["target", "keys"]["details"] == (f"missing key {key}",)
    assert "source: `hf download peizesun/llamagen_t2i vq_ds16" in wrong[IMAGES]["text"]
    assert "--text_encoder_path" in wrong[ENCODER]["text"]
    assert "`hf download google/flan-t5-xl" in wrong[ENCODER]["text"]


T5 = "../t5/flan-t5-xl"
ENCODER, PICTURES = ("text encoder", "files"), ("image codec", "files")
CONFIG, SINGLE = "config.json", "model.safetensors"
ALL = (CONFIG, SINGLE, "tokenizer.json", "drafter/config.json")
MISSING = {("target", CONFIG), ("target", "weights"), TEXT, ("drafter", CONFIG)}
NO_KEY = JUNK["pickle of nothing"]
NO_CODEC = r"no image codec among the weights \(keys model\.vqmodel\.\*\)"
BOTH = {  # of two families
    "bias": BIAS,
    "config": fault(gone(CONFIG), CONFIG, ("target", CONFIG)),
    "everything": fault(gone(*ALL), CONFIG, *MISSING),
    "code": fault(with_code("."), "more than tensors", ("target", "pytorch_model.bin")),
    "code in the drafter": fault(
        with_code("drafter"), "more than tensors", ("drafter", "pytorch_model.bin")
    ),
}
FAMILY_CASES = {
    **{(model, name): BOTH[name] for name in BOTH for model in ("janus_pro", "emu3")},
    ("janus_pro", "no codec"): fault(tensors(without="model.vqmodel."), NO_CODEC, PICTURES),
    ("emu3", "no codec"): fault(
        tensors(without="vqmodel."), "no image codec among the weights", PICTURES
    ),
    ("janus_pro", "tokens"): fault(
        renamed("<｜▁pad▁｜>", "<begin_of_image>"),
        "has no token '<｜▁pad▁｜>', '<begin_of_image>'",
        TEXT,
    ),
    ("emu3", "tokens"): fault(
        renamed("<|extra_203|>", "<|image start|>"),
        r"has no token '<\|extra_203\|>', '<\|image start\|>'",
        TEXT,
    ),
    **{
        ("llamagen", name): fault(
            entries(**{name: HUGE}), f"{name} is {HUGE}, the", ("target", CONFIG)
        )
        for name in ("caption_dim", "cls_token_num")
    },
    ("llamagen", "block_size"): fault(
        entries(block_size=None), "block_size: expected", ("target", CONFIG)
    ),
    ("llamagen", "rope_base"): fault(
        entries(rope_base="x"), "rope_base: expected numbers", ("target", CONFIG)
    ),
    ("llamagen", "T5 layers"): fault(
        entries(file=f"{T5}/{CONFIG}", num_layers=100000),
        "num_layers is 100000, the weights hold",
        ENCODER,
    ),
    ("llamagen", "T5 junk"): fault(
        pickled(T5, NO_KEY), "--text_encoder_path: .*cannot read", ENCODER
    ),
    ("llamagen", "T5 cut"): fault(cut(f"{T5}/{SINGLE}", 500), SINGLE, ENCODER),
    ("llamagen", "T5 tokenizer"): fault(
        content(f"{T5}/tokenizer.json", b"{}"),
        "--text_encoder_path: .*cannot be read as a tokenizer",
        ENCODER,
    ),
    ("llamagen", "T5 without tokenizer"): fault(
        gone(f"{T5}/tokenizer.json"), "tokenizer.json", ENCODER
    ),
    ("llamagen", "codes"): fault(
        content("../vq_ds16_t2i.pt", NO_KEY), r"vq_ds16_t2i\.pt: damaged", IMAGES
    ),
}


@pytest.mark.parametrize("case", thinned(FAMILY_CASES), ids=", ".join)
def test_every_fault_is_told_once(case, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setitem(FAMILIES, "llamagen", LlamaGen(4))
    model, (damage, words, wanted) = case[0], FAMILY_CASES[case]
    folder, given = SMALL[model].write(tmp_path), [f"--model={model}", *size_flag(model)]
    assert inspected(capsys, folder, *given)[0] == 0
    damage(folder)
    wrong = faults(inspected(capsys, folder, *given)[1])
    assert wrong.keys() == wanted
    assert re.search(words, refused(capsys, folder, *given))
    assert any(re.search(words, row["text"]) for row in wrong.values())
    assert not (folder.parent / "ran").exists()


PAIRS = list(permutations(("janus_pro", "emu3", "tiny"), 2))[:4]


@pytest.mark.parametrize(("model", "other"), thinned(PAIRS))
def test_the_folder_or_drafter_of_another_family(model, other, tmp_path, capsys) -> None:
    folders = {name: SMALL[name].write(tmp_path / name) for name in (model, other)}
    given = [f"--model={model}", *size_flag(model)]
    wrong = faults(inspected(capsys, folders[other], *given)[1])
    told = {row: fault["text"] for row, fault in wrong.items() if "model_type" in fault["text"]}
    assert told.keys() == {("target", CONFIG)}
    words = f" for --model {model}, got "
    assert words in told["target", CONFIG]
    assert re.search(f"{words}|use --model {other}", refused(capsys, folders[other], *given))
    assert all(len(fault["text"]) < 600 for fault in wrong.values())
    given += [f"--drafter_path={folders[other]}/drafter"]
    (((part, item), fault),) = faults(inspected(capsys, folders[model], *given)[1]).items()
    said = refused(capsys, folders[model], *given)
    assert part == "drafter"
    if item == "keys":  # as many ids of the same width: Chameleon's norms are told
        assert "unexpected key layers.0.self_attn.q_norm" in said
    else:
        assert "expected the target's" in fault["text"] and fault["text"] in said


def test_a_folder_that_is_not_loaded_for_its_faults(folder, capsys) -> None:
    name = write_shards(folder, "safetensors")[0]
    gone(name)(folder)
    assert main.main(["inspect", "--run", "--device=cpu", f"--model_path={folder}"]) == 1
    said = capsys.readouterr()
    assert "logits" not in said.out and f"at fault: target ({name})" in said.err
