"""`inspect`: every fault once, as `generate_images` tells it; notes, room for prompts, memory."""

import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from browser import ALL as WHOLE
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
from safetensors.torch import load_file
from small import LUMINA, store_weights, write_shards
from small_llamagen import put_llamagen

import main
from configs.methods import MethodSettings
from decoding.cache import KVCache
from decoding.images import Job
from models.codecs.codebook import table_path
from runs.check import files as files_module
from runs.check import memory
from runs.session import Session, open_session
from scripts.checkpoints.chameleon import write_checkpoint

HUGE = 10**18  # of which no tensor can be made, not even without memory
NO_KEY = b"\x80\x02}q\x00h\x05."  # a pickle that reads what was never stored: a KeyError
JUNK = (b"", b"not found\n" * 100, NO_KEY, b"PK\x03\x04" + b"x" * 100)
# headers of safetensors: of bytes, a list, without shapes
HEADERS = (b"\xff" * 100, b"\x02\0\0\0\0\0\0\0[]", b"\x09\0\0\0\0\0\0\0" + b'{"a": {}}')
CONFIG, SINGLE = "config.json", "model.safetensors"
TEXT, IMAGES = "text tokenizer", "image tokenizer"
TOGETHER = ("parts", "together")
Fault = tuple[Damage, str]  # and what both commands say of it


def network(place: str) -> list[Fault]:
    """Files of the target or its drafter: missing, junk, or contradicting each other."""
    file, single = f"{place}/{CONFIG}", f"{place}/{SINGLE}"
    sizes = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size")
    fitting = {"num_attention_heads": "divisors of 32", "num_key_value_heads": "divisors of 2"}
    fitting |= {"max_position_embeddings": "whole numbers up to", "swin_norm": "False or True"}
    wrong = ((entries(file=file, **{name: 100_000}), f"{name} is 100000, the w") for name in sizes)
    huge = (
        (
            entries(file=file, **{name: HUGE}),
            rf"config\.json: {name}: expected {words}.*, got {HUGE}",
        )
        for name, words in fitting.items()
    )
    return [
        *wrong,
        *huge,
        (gone(file), r"config\.json"),
        (a_folder(file), r"config\.json"),
        (content(file, b"[" * 100_000), r"config\.json: .* got no JSON"),
        *((pickled(place, junk), r"pytorch_model\.bin") for junk in JUNK),
        *((content(single, junk), r"model\.safetensors") for junk in (JUNK[1], *HEADERS)),
        *((damage(single), r"model\.safetensors") for damage in (gone, a_folder)),
    ]


T5, TOKENIZER = "../t5/flan-t5-xl", "tokenizer/text_tokenizer.json"
ALL = (CONFIG, SINGLE, "tokenizer.json", f"drafter/{CONFIG}")
VQGAN = {"num_res_blocks": 100000, "n_embed": HUGE, "ch": HUGE, "ch_mult": [1] * 200}
NO_TOKENIZER = "--text_encoder_path: .*cannot be read as a tokenizer"
POSITIONS = "max_position_embeddings is 8; an image of 4 x 4 tokens takes 16"
NAMES = ("<｜▁pad▁｜>", "<begin_of_image>")
BIAS = "drafter/config.json: bias: expected true or false, got 'no'"
FAULTS: list[tuple[str, set[str], list[Fault]]] = [  # of a model: the report's parts, and damages
    ("tiny", {"target"}, network(".")),
    ("tiny", {"drafter"}, network("drafter")),
    ("tiny", {"parts"}, [(entries(max_position_embeddings=8), POSITIONS)]),
    ("tiny", {IMAGES}, [
        *(
            (vqgan(name, size), rf"vqgan\.safetensors: .*{name} is .*, the weights hold")
            for name, size in VQGAN.items()
        ),
        (gone("tokenizer/vqgan.yaml"), "vqgan.yaml"),
        (content("tokenizer/vqgan.yaml", b"[\n" * 700), "vqgan.yaml"),
        (content("tokenizer/vqgan.safetensors", JUNK[1]), "vqgan.safetensors"),
    ]),
    ("tiny", {TEXT}, [
        (gone(TOKENIZER), "text_tokenizer.json"),
        (content(TOKENIZER, JUNK[1]), "text_tokenizer.json is not a tokenizer file"),
    ]),
    ("emu3", {"drafter"}, [
        (entries(file=f"drafter/{CONFIG}", bias="no"), BIAS),
        (with_code("drafter"), "more than tensors"),
    ]),
    ("emu3_5", {"image codec"}, [
        (gone("../Emu3.5-VisionTokenizer/model.ckpt"), "no config.yaml and model.ckpt .*hf down"),
    ]),
    ("emu3_5", {TEXT}, [
        (gone("../tokenizer_emu3_ibq/emu3.tiktoken"), "no emu3.tiktoken in .*baaivision/Emu3.5"),
    ]),
    ("lumina_mgpt2", {"image codec"}, [
        (gone("../movqgan_270M.ckpt"), "hf download ai-forever/MoVQGAN movqgan_270M.ckpt"),
    ]),
    ("janus_pro", {"target", TEXT, "image codec"}, [(gone(*ALL), CONFIG)]),
    ("janus_pro", {"target"}, [(with_code("."), "more than tensors")]),
    ("janus_pro", {"image codec"}, [
        (tensors(without="model.vqmodel."), r"no image codec among the weights \(keys model\."),
    ]),
    ("emu3", {"image codec"}, [(tensors(without="vqmodel."), "no image codec among the weights")]),
    ("janus_pro", {TEXT}, [
        (renamed(*NAMES), re.escape("has no token {!r}, {!r}".format(*NAMES))),
    ]),
    ("llamagen", {"target"}, [
        (entries(caption_dim=HUGE), f"caption_dim is {HUGE}, the"),
        (entries(block_size=None), "block_size: expected"),
        (entries(rope_base="x"), "rope_base: expected numbers"),
    ]),
    ("llamagen", {"text encoder"}, [
        (entries(file=f"{T5}/{CONFIG}", num_layers=100000), "num_layers is 100000, the weights"),
        (pickled(T5, NO_KEY), "--text_encoder_path: .*cannot read"),
        (cut(f"{T5}/{SINGLE}", 500), SINGLE),
        (content(f"{T5}/tokenizer.json", b"{}"), NO_TOKENIZER),
        (gone(f"{T5}/tokenizer.json"), "tokenizer.json"),
    ]),
    ("llamagen", {IMAGES}, [(content("../vq_ds16_t2i.pt", NO_KEY), r"vq_ds16_t2i\.pt: damaged")]),
]  # fmt: skip
# in `make test` at least one fault of every part of three families
STEP, FAMILIES = (1, SMALL) if WHOLE else (12, ("tiny", "janus_pro", "llamagen"))
CASES = [
    (model, parts, *fault)
    for model, parts, found in FAULTS if model in FAMILIES
    for fault in found[::STEP]
]  # fmt: skip


@pytest.fixture(scope="module")
def copied(tmp_path_factory) -> Callable[[str, Path], Path]:
    """Copy the small checkpoint of a model, which is written once, to a place."""
    written: dict[str, Path] = {}

    def copy(model: str, place: Path) -> Path:
        if model not in written:
            written[model] = SMALL[model].write(tmp_path_factory.mktemp("written"))
        shutil.copytree(written[model].parent, place, dirs_exist_ok=True)
        return place / written[model].name

    return copy


@pytest.mark.parametrize(
    ("model", "wanted", "damage", "words"),
    CASES,
    ids=[f"{model}: {words}" for model, _, _, words in CASES],
)
def test_inspect_foretells_what_generate_images_says(
    model, wanted, damage, words, copied, tmp_path, monkeypatch, capsys
) -> None:
    """Every fault is told once."""
    put_llamagen(monkeypatch, "llamagen", 4)
    folder, given = copied(model, tmp_path), [f"--model={model}", *size_flag(model)]
    damage(folder)
    code, report = inspected(capsys, folder, *given)
    wrong, said = faults(report), refused(capsys, folder, *given)
    assert code == 1 and not report["memory"] and {part for part, _ in wrong} == wanted
    assert any(re.search(words, row["text"]) for row in wrong.values())
    assert re.search(words, said), said
    assert (generated(capsys, folder, *given, "--method=ar")[0] == 0) is (wanted == {"drafter"})
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
    gone(names[0])(folder)
    (row,) = faults(inspected(capsys, folder, "--model=anole")[1]).values()
    assert f"shards that are missing: {folder / names[0]}" in row["text"]
    assert "source: `hf download leloy/" in row["text"]
    assert main.main(["inspect", "--run", "--device=cpu", f"--model_path={folder}"]) == 1
    assert "logits" not in capsys.readouterr().out


def test_a_table_of_nearest_codes_that_cannot_be_used(folder, capsys) -> None:
    path = table_path(folder, 24)
    assert main.main(["vq_distances", f"--model_path={folder}"]) == 0
    assert inspected(capsys, folder)[0] == 0
    table = np.load(path)
    for index in (65535, 24, None):
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
    texts = {part: row["text"] for (part, _), row in faults(report).items()}
    assert texts.keys() == {"target", "text tokenizer"}
    assert "Get it: `hf download leloy/" in texts["target"]
    assert "--tokenizer_path" in texts["text tokenizer"]


def test_every_fault_of_a_llamagen_checkpoint_is_named(llamagen, capsys) -> None:
    key = "model.cls_embedding.uncond_embedding"
    weights(lambda state: state.pop(key))(llamagen)
    content("../vq_ds16_t2i.pt", b"nonsense")(llamagen)
    gone("../t5")(llamagen)
    wrong = faults(inspected(capsys, llamagen, "--model=llamagen")[1])
    assert wrong["target", "keys"]["details"] == (f"missing key {key}",)
    assert "source: `hf download peizesun/llamagen_t2i vq_ds16" in wrong[IMAGES, "files"]["text"]
    assert "--text_encoder_path" in wrong["text encoder", "files"]["text"]
    assert "`hf download google/flan-t5-xl" in wrong["text encoder", "files"]["text"]


@pytest.mark.parametrize(("model", "other"), thinned([("janus_pro", "emu3"), ("emu3", "tiny")]))
def test_the_folder_or_drafter_of_another_family(model, other, copied, tmp_path, capsys) -> None:
    folders = {name: copied(name, tmp_path / name) for name in (model, other)}
    given = [f"--model={model}", *size_flag(model)]
    wrong = faults(inspected(capsys, folders[other], *given)[1])
    words = f" for --model {model}, got |use --model {other}"
    assert re.search(words, wrong["target", "files"]["text"])
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


@pytest.mark.parametrize("sizes", thinned([None, {}]))
def test_config_json_need_not_tell_the_codecs_sizes(sizes, folder, capsys) -> None:
    entries(vq_config=sizes)(folder)
    assert inspected(capsys, folder)[0] == 0


def test_old_bin_files(folder, capsys) -> None:
    path = store_weights(folder, "old bin")
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
    assert here or (
        "needs torchao" in row["text"] and "pip install -e '.[quantize]'" in row["text"]
    )


def test_a_checkpoint_without_a_drafter_says_so(folder, capsys) -> None:
    gone("drafter")(folder)
    code, document = inspected(capsys, folder)
    row = rows(document)["drafter", "folder"]
    assert code == 0 and row["state"] == "note"
    assert "only --method ar, jacobi or" in row["text"] and "works; source: " in row["text"]


@pytest.mark.parametrize(
    ("size", "changes", "fault", "words"),
    thinned([
        ("96", {}, None, ""),
        ("192", {}, ("parts", "together"), "no token for a side of 192 pixels, '<reserved08806>'"),
        ("128", {"positions": 60}, ("parts", "together"), "max_position_embeddings is 60"),
        ("96", {"positions": 60}, TOGETHER, "6 row ends of 60 positions and leaves 18 for prompts"),
        ("64", {"words": ()}, ("text tokenizer", "files"), "<reserved08799>"),  # at row ends
    ]),
)  # fmt: skip
def test_lumina_is_inspected_at_the_size_of_the_flag(
    size, changes, fault, words, tmp_path, capsys
) -> None:
    """The small tokenizer names sizes up to 128 pixels; 8 rows of 8 tokens take 72 positions."""
    folder = write_checkpoint(tmp_path / "lumina", replace(LUMINA, **changes))
    code, document = inspected(capsys, folder, "--model=lumina_mgpt", f"--target_size={size}")
    wrong = faults(document)
    assert code == (fault is not None) and wrong.keys() == ({fault} if code else set())
    assert not code or words in wrong[fault]["text"]


def test_a_whole_llamagen_checkpoint_fits_only_its_stage(llamagen, capsys) -> None:
    code, document = inspected(capsys, llamagen, "--model", "llamagen")
    assert code == 0, faults(document)
    assert "T5 of width" in rows(document)["text encoder", "files"]["text"]
    encoder = load_file(llamagen.parent / "t5" / "flan-t5-xl" / "model.safetensors")
    used = [value for key, value in encoder.items() if key.startswith(("encoder.", "shared."))]
    assert document["memory"]["text encoder"][0] == 2 * sum(value.numel() for value in used) > 0
    code, document = inspected(capsys, llamagen, "--model", "llamagen2")
    text = faults(document)["target", "config.json"]["text"]
    assert code == 1 and "block_size is 16, expected 1024" in text


@pytest.fixture(
    scope="module", params=thinned(["tiny", "emu3", "liquid", "lumina_mgpt2", "glm_image"])
)
def session(request, tmp_path_factory) -> Session:
    small = SMALL[request.param]
    return open_session(small.settings(small.write(tmp_path_factory.mktemp("memory")), "fp32"))


def flags_of(session: Session) -> list[str]:
    names, settings = ("model", "target_size", "negative_prompt"), session.settings
    return [f"--{name}={value}" for name in names if (value := getattr(settings, name)) is not None]


def longest(session: Session) -> str:
    text = "a" * session.target.spec.max_positions
    while text:
        try:
            session.target.length(text)
            return text
        except ValueError:
            text = text[1:]
    return text


@pytest.mark.parametrize("method", thinned(["ar", "jacobi", "adt", "eagle_recall"]))
def test_the_memory_is_what_an_engine_takes(method, session, monkeypatch) -> None:
    """Two images of the longest prompt, opened where tensors have memory."""
    settings, entry = session.settings, MethodSettings(method)
    report = files_module.Examination(replace(settings, batch_size=2), [entry])
    told = {name: most for name, (_, most) in report.memory.items()}
    made, begin = [], KVCache.__init__
    monkeypatch.setattr(KVCache, "__init__", lambda self, *a: made.append(self) or begin(self, *a))
    engine = session.with_settings(settings.with_method(entry)).open_engine(images=2)
    engine._open([Job(str(number), longest(session), number) for number in range(2)])
    assert told["keys and values"] == sum(cache.nbytes for cache in made)
    assert told["noise"] == engine.images.noise.table.nbytes
    weights = sum(weight.nbytes for weight in session.target.transformer.parameters())
    assert told["target weights"] >= weights


def test_memory_depends_on_type_rows_batch_and_device(checkpoint, capsys) -> None:
    def told(*words: str) -> dict[str, list[int]]:
        return inspected(capsys, checkpoint, "--device=cpu", *words)[1]["memory"]

    plain, half, three, alone = (
        told(),
        told("--dtype=bf16"),
        told("--batch_size=3"),
        told("--cfg=1"),
    )
    cache = "keys and values"
    assert half["target weights"][0] * 2 == plain["target weights"][0]
    assert half[cache] == plain[cache]  # CPUs keep those of bf16 in fp32
    assert three[cache][0] == 3 * plain[cache][0] == 6 * alone[cache][0]
    assert plain[cache][0] < plain[cache][1] and plain["target packed copies"][0] > 0
    assert told("--dtype=fp64")["noise"][0] == 2 * plain["noise"][0] == 2 * half["noise"][0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "pick_device", lambda _: torch.device("cuda"))
        gpu = told("--dtype=bf16")
    assert "target packed copies" not in gpu and 2 * gpu[cache][0] == half[cache][0]


def test_the_table_is_for_readers(checkpoint, capsys) -> None:
    words = ["--model_path", str(checkpoint), "--dtype=bf16", "--device=cpu"]
    for sizes, told in (("3 2", "3 images x 2 guidance rows"), ("1 1", "1 image x 1 guidance row")):
        images, cfg = sizes.split()
        assert main.main(["inspect", *words, f"--batch_size={images}", f"--cfg={cfg}"]) == 0
        out = capsys.readouterr().out
        assert f"memory, cpu, bf16, {told}, without activations" in out
    assert "longest prompt" in out and "drafter          config.json   ok    1 layer, hid" in out
    assert "FAULT" not in out and max(map(len, out.splitlines())) < 400


def test_the_room_for_prompts_is_that_of_the_target(session, capsys) -> None:
    text = longest(session)
    room = session.target.length(text)
    path = session.settings.model_path
    line = rows(inspected(capsys, path, *flags_of(session))[1])[TOGETHER]
    assert line["state"] != "FAULT" and f": prompts of up to {room} tokens" in line["text"]
    ends = session.target.grid.row_end is not None
    assert (" row ends of " in line["text"]) is ends
    message = rf"the prompt is {room + 1} tokens long, .*; at most {room} fit: 'aaaa"
    with pytest.raises(ValueError, match=message):
        session.target.prompt(f"{text}a", 1)


@pytest.mark.parametrize("model", thinned(["tiny", "emu3"]))
def test_a_sequence_that_exceeds_the_positions_is_a_fault(model, tmp_path, capsys) -> None:
    folder = SMALL[model].write(tmp_path)
    session = open_session(SMALL[model].settings(folder))
    image, shortest = (
        session.target.grid.slots(session.target.grid.tokens),
        session.target.length(""),
    )
    part = "text_config" if "text_config" in (folder / "config.json").read_text() else ""
    for positions in (image + shortest, image + shortest - 1, image):
        entries(part, max_position_embeddings=positions)(folder)
        code, report = inspected(capsys, folder, *flags_of(session))
        wrong, fits = faults(report), positions == image + shortest
        assert code == (not fits) and len(wrong) == code
        if image < positions < image + shortest:
            assert f"the shortest has {shortest}" in wrong[TOGETHER]["text"]
        elif not fits:
            (row,) = wrong.values()
            assert f"max_position_embeddings is {image}" in row["text"]
