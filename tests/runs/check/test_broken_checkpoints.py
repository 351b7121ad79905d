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
from small_llamagen import put_llamagen

import main
from models.codecs.codebook import table_path

HUGE = 10**18  # of which no tensor can be made, not even without memory
DEEP = b"[" * 100_000
NO_KEY = b"\x80\x02}q\x00h\x05."  # a pickle that reads what was never stored: a KeyError
JUNK = (b"", b"not found\n" * 100, NO_KEY, b"\x80\x02", b"PK\x03\x04" + b"x" * 100)
# headers of safetensors: of bytes, a list, without shapes
HEADERS = (b"\xff" * 100, b"\x02\0\0\0\0\0\0\0[]", b"\x09\0\0\0\0\0\0\0" + b'{"a": {}}')
CONFIG, SINGLE = "config.json", "model.safetensors"
Row = tuple[str, str]  # part and item
Fault = tuple[Damage, str]  # and what both commands say of it


def network(place: str) -> dict[str, list[Fault]]:
    """Files of the target or its drafter, by item: missing, junk, or contradicting each other."""
    file, single = f"{place}/{CONFIG}", f"{place}/{SINGLE}"
    sizes = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
    fitting = {"num_attention_heads": "divisors of 32", "num_key_value_heads": "divisors of 2"}
    fitting |= {"max_position_embeddings": "whole numbers up to", "swin_norm": "False or True"}
    return {
        CONFIG: [
            *(
                (
                    entries(file=file, **{name: size}),
                    rf"config\.json: {name} is {size}, the weights hold \d+$",
                )
                for name in sizes
                for size in (100000, HUGE)
            ),
            *(
                (
                    entries(file=file, **{name: HUGE}),
                    rf"config\.json: {name}: expected {words}.*, got {HUGE}",
                )
                for name, words in fitting.items()
            ),
            (gone(file), r"config\.json"),
            (a_folder(file), r"config\.json"),
            (content(file, DEEP), r"config\.json: .* got no JSON"),
        ],
        "pytorch_model.bin": [(pickled(place, junk), r"pytorch_model\.bin") for junk in JUNK],
        SINGLE: [(content(single, junk), r"model\.safetensors") for junk in (*JUNK, *HEADERS)],
        "weights": [(damage(single), r"model\.safetensors") for damage in (gone, a_folder)],
    }


T5 = "../t5/flan-t5-xl"
CODEC, TOKENIZER = "tokenizer/vqgan.safetensors", "tokenizer/text_tokenizer.json"
TEXT, IMAGES = ("text tokenizer", "files"), ("image tokenizer", "files")
ENCODER, PICTURES = ("text encoder", "files"), ("image codec", "files")
TARGET, DRAFTER = ("target", CONFIG), ("drafter", CONFIG)
ALL = (CONFIG, SINGLE, "tokenizer.json", f"drafter/{CONFIG}")
VQGAN = {"num_res_blocks": 100000, "n_embed": HUGE, "embed_dim": HUGE, "z_channels": HUGE}
VQGAN |= {"ch": HUGE, "ch_mult": [1] * 200}
NO_CODEC = r"no image codec among the weights \(keys model\.vqmodel\.\*\)"
NO_TOKENIZER = "--text_encoder_path: .*cannot be read as a tokenizer"
LAYERS = "num_layers is 100000, the weights hold"
POSITIONS = "max_position_embeddings is 8; an image of 4 x 4 tokens takes 16"
NAMES = {"janus_pro": ("<｜▁pad▁｜>", "<begin_of_image>")}
NAMES |= {"emu3": ("<|extra_203|>", "<|image start|>")}
BIAS = "drafter/config.json: bias: expected true or false, got 'no'"
FAULTS: list[tuple[str, set[Row], list[Fault]]] = [  # of a model: the report's rows, and damages
    *(("tiny", {("target", item)}, found) for item, found in network(".").items()),
    *(("tiny", {("drafter", item)}, found) for item, found in network("drafter").items()),
    ("tiny", {("parts", "together")}, [(entries(max_position_embeddings=8), POSITIONS)]),
    ("tiny", {IMAGES}, [
        *(
            (vqgan(name, size), rf"vqgan\.safetensors: .*{name} is .*, the weights hold")
            for name, size in VQGAN.items()
        ),
        (gone("tokenizer/vqgan.yaml"), "vqgan.yaml"),
        (content("tokenizer/vqgan.yaml", b"[" * 700), "vqgan.yaml"),
        (content(CODEC, JUNK[1]), "vqgan.safetensors"),
    ]),
    ("tiny", {TEXT}, [
        (gone(TOKENIZER), "text_tokenizer.json"),
        (content(TOKENIZER, JUNK[1]), "text_tokenizer.json is not a tokenizer file"),
    ]),
    *(
        (model, {DRAFTER}, [(entries(file=f"drafter/{CONFIG}", bias="no"), BIAS)])
        for model in ("tiny", "janus_pro", "emu3")
    ),
    *(
        (model, *fault)
        for model in ("janus_pro", "emu3")
        for fault in (
            ({TARGET}, [(gone(CONFIG), CONFIG)]),
            ({TARGET, ("target", "weights"), TEXT, DRAFTER}, [(gone(*ALL), CONFIG)]),
            ({("target", "pytorch_model.bin")}, [(with_code("."), "more than tensors")]),
            ({("drafter", "pytorch_model.bin")}, [(with_code("drafter"), "more than tensors")]),
        )
    ),
    ("janus_pro", {PICTURES}, [(tensors(without="model.vqmodel."), NO_CODEC)]),
    ("emu3", {PICTURES}, [(tensors(without="vqmodel."), "no image codec among the weights")]),
    *(
        (model, {TEXT}, [(renamed(*names), re.escape("has no token {!r}, {!r}".format(*names)))])
        for model, names in NAMES.items()
    ),
    ("llamagen", {TARGET}, [
        (entries(caption_dim=HUGE), f"caption_dim is {HUGE}, the"),
        (entries(cls_token_num=HUGE), f"cls_token_num is {HUGE}, the"),
        (entries(block_size=None), "block_size: expected"),
        (entries(rope_base="x"), "rope_base: expected numbers"),
    ]),
    ("llamagen", {ENCODER}, [
        (entries(file=f"{T5}/{CONFIG}", num_layers=100000), LAYERS),
        (pickled(T5, NO_KEY), "--text_encoder_path: .*cannot read"),
        (cut(f"{T5}/{SINGLE}", 500), SINGLE),
        (content(f"{T5}/tokenizer.json", b"{}"), NO_TOKENIZER),
        (gone(f"{T5}/tokenizer.json"), "tokenizer.json"),
    ]),
    ("llamagen", {IMAGES}, [(content("../vq_ds16_t2i.pt", NO_KEY), r"vq_ds16_t2i\.pt: damaged")]),
]  # fmt: skip
CASES = [(model, rows, *fault) for model, rows, found in FAULTS for fault in found]


@pytest.mark.parametrize(
    ("model", "wanted", "damage", "words"),
    thinned(CASES),
    ids=thinned(f"{model}: {words}" for model, _, _, words in CASES),
)
def test_inspect_foretells_what_generate_images_says(
    model, wanted, damage, words, tmp_path, monkeypatch, capsys
) -> None:
    """Every fault is told once."""
    put_llamagen(monkeypatch, "llamagen", 4)
    folder, given = SMALL[model].write(tmp_path), [f"--model={model}", *size_flag(model)]
    damage(folder)
    code, report = inspected(capsys, folder, *given)
    wrong, said = faults(report), refused(capsys, folder, *given)
    assert code == 1 and wrong.keys() == wanted
    assert any(re.search(words, row["text"]) for row in wrong.values())
    assert re.search(words, said), said
    works_without = {part for part, _ in wanted} == {"drafter"}
    assert (generated(capsys, folder, *given, "--method=ar")[0] == 0) is works_without
    assert not (folder.parent / "ran").exists()


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


@pytest.mark.parametrize("index", [65535, 24, None])
def test_a_table_of_nearest_codes_that_cannot_be_used(index, folder, capsys) -> None:
    path = table_path(folder, 24)
    assert main.main(["vq_distances", f"--model_path={folder}"]) == 0
    assert inspected(capsys, folder)[0] == 0
    table = np.load(path)
    if index is None:
        path.write_bytes(b"\x93NUMPY")
        words = f"{path}: cannot be read"
    else:
        table[3, 2] = index
        np.save(path, table)
        words = f"{path}: expected codes from 0 to 23, got the code {index}"
    (row,) = faults(inspected(capsys, folder)[1]).values()
    said = refused(capsys, folder, "--verifier=lantern", "--lantern_k=5")
    assert row["text"].startswith(words) and f"--verifier lantern: {words}" in said
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


PAIRS = list(permutations(("janus_pro", "emu3", "tiny"), 2))[:4]


@pytest.mark.parametrize(("model", "other"), thinned(PAIRS))
def test_the_folder_or_drafter_of_another_family(model, other, tmp_path, capsys) -> None:
    folders = {name: SMALL[name].write(tmp_path / name) for name in (model, other)}
    given = [f"--model={model}", *size_flag(model)]
    wrong = faults(inspected(capsys, folders[other], *given)[1])
    words = f" for --model {model}, got |use --model {other}"
    assert re.search(words, wrong[TARGET]["text"])
    assert re.search(words, refused(capsys, folders[other], *given))
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
