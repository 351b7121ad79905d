"""`inspect`: what fits, notes and flags; the memory that an engine allocates, room for prompts."""

from dataclasses import replace

import pytest
import torch
from damage import cut, entries, faults, gone, inspected, rows
from families import SMALL
from safetensors.torch import load_file
from small import LUMINA, loaded, store_weights, write_checkpoint
from small_llamagen import LlamaGenSizes, write_llamagen

import main
from configs.methods import METHODS, MethodSettings
from configs.model import EngineSettings
from decoding import noise
from decoding.cache import CacheShape, KVCache
from decoding.engine import Engine
from decoding.images import Job
from drafters.eagle_recall import EagleRecallDrafter
from drafters.loading import load_drafter
from models.cpu.linear import Linear
from runs.check import files as files_module
from runs.session import DTYPES, Session, open_session

MODELS = ("tiny", "janus_pro", "emu3", "emu3_5", "liquid", "lumina_mgpt2", "glm_image")
SEQUENCE = ("target", "sequence")  # the row about the positions
DRAFTING = [name for name, entry in METHODS.items() if entry.speculative]


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
    [
        ("96", {}, None, ""),
        ("192", {}, ("parts", "together"), "no token for a side of 192 pixels, '<reserved08806>'"),
        ("128", {"positions": 60}, ("parts", "together"), "max_position_embeddings is 60"),
        ("96", {"positions": 60}, SEQUENCE, "6 row ends of 60 positions leave 18 for prompts"),
        ("64", {"words": ()}, ("text tokenizer", "files"), "<reserved08799>"),  # at row ends
    ],
)
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


def test_a_text_encoder_may_leave_its_width_to_the_default(llamagen, tmp_path, capsys) -> None:
    """That is 512, in transformers' T5Config."""
    folder = write_llamagen(tmp_path / "wide", LlamaGenSizes(width=512))
    entries(file="../t5/flan-t5-xl/config.json", d_model=None)(folder)
    code, document = inspected(capsys, folder, "--model", "llamagen")
    assert code == 0 and "T5 of width 512" in rows(document)["text encoder", "files"]["text"]


@pytest.fixture(scope="module", params=MODELS)
def session(request, tmp_path_factory) -> Session:
    small = SMALL[request.param]
    return open_session(small.settings(small.write(tmp_path_factory.mktemp("memory")), "fp32"))


def report_on(capsys, settings: EngineSettings, *words: str) -> tuple[int, dict]:
    flags = ("model", "target_size", "negative_prompt")
    given = {name: value for name in flags if (value := getattr(settings, name)) is not None}
    words += tuple(f"--{name}={value}" for name, value in given.items())
    return inspected(capsys, settings.model_path, *words)


def longest(session: Session) -> str:
    text = "a" * session.target.spec.max_positions
    while text:
        try:
            session.target.length(text)
            return text
        except ValueError:
            text = text[1:]
    return text


def opened(session: Session, name: str, images: int) -> Engine:
    """An engine of a method at its default size with images in flight, of the longest prompt."""
    engine = session.open_engine(MethodSettings(name), images=images)
    jobs = [Job(str(number), longest(session), number) for number in range(images)]
    engine._open(jobs)
    engine.images.admit(iter(jobs))
    return engine


def allocated(engine: Engine) -> dict[str, int]:
    """Bytes by what takes them, by the names of the report."""
    taken = {
        "target keys and values": engine.images.cache.nbytes,
        "noise": engine.images.noise.table.nbytes,
    }
    drafter = engine.speculation.drafter
    parts = (
        (drafter.head, drafter.recall) if isinstance(drafter, EagleRecallDrafter) else (drafter,)
    )
    for part in parts:
        if hasattr(part, "cache"):
            taken["drafter keys and values"] = part.cache.nbytes
        elif hasattr(part, "log_p"):
            taken["stale predictions"] = part.log_p.nbytes
        if hasattr(part, "predictions"):
            taken["recalled predictions"] = part.predictions.nbytes
    return taken


@pytest.mark.parametrize(("window", "images"), [(False, 1), (True, 3)])
def test_the_memory_is_that_of_the_engines(window, images, session, monkeypatch, capsys) -> None:
    """No method takes more, and of every part one takes as much; also if noise is a window."""
    if window:
        monkeypatch.setattr(noise, "_TABLE_BYTES", 0)
        monkeypatch.setattr(noise, "_AHEAD", 1)
    code, report = report_on(capsys, session.settings, f"--batch_size={images}")
    assert code == 0
    engines = [allocated(opened(session, name, images)) for name in DRAFTING]
    parts = {name for engine in engines for name in engine}
    tables = {"noise", "stale predictions", "recalled predictions"}
    assert parts == {"target keys and values", "drafter keys and values"} | tables
    for part in parts:
        most = max(engine.get(part, 0) for engine in engines)
        assert report["memory"][part] == most > 0, part


def test_the_room_for_prompts_is_that_of_the_target(session, capsys) -> None:
    text = longest(session)
    room = session.target.length(text)
    line = rows(report_on(capsys, session.settings)[1])[SEQUENCE]
    assert line["state"] != "FAULT" and f": prompts of up to {room} tokens; " in line["text"]
    ends = session.target.grid.row_end is not None
    assert (" row ends of " in line["text"]) is ends
    message = rf"the prompt has {room + 1} tokens .* takes {room}: 'aaaa"
    with pytest.raises(ValueError, match=message):
        session.target.prompt(f"{text}a", 1)


@pytest.mark.parametrize("model", MODELS)
def test_a_sequence_that_exceeds_the_positions_is_a_fault(model, tmp_path, capsys) -> None:
    folder = SMALL[model].write(tmp_path)
    session = open_session(SMALL[model].settings(folder))
    grid = session.target.grid
    image, shortest = grid.slots(grid.tokens), session.target.length("")
    for positions in (image + shortest, image + shortest - 1, image):
        part = "text_config" if "text_config" in (folder / "config.json").read_text() else ""
        entries(part, max_position_embeddings=positions)(folder)
        code, report = report_on(capsys, session.settings)
        wrong, fits = faults(report), positions == image + shortest
        assert code == (not fits) and len(wrong) == code
        if image < positions < image + shortest:
            assert f"the shortest has {shortest}" in wrong[SEQUENCE]["text"]
        elif not fits:
            (row,) = wrong.values()
            assert f"max_position_embeddings is {image}" in row["text"]


def test_tables_are_in_the_type_of_the_distribution(checkpoint, capsys) -> None:
    fp32, fp64, bf16 = (
        inspected(capsys, checkpoint, f"--dtype={dtype}")[1]["memory"]
        for dtype in ("fp32", "fp64", "bf16")
    )
    for part in ("noise", "stale predictions"):
        assert fp64[part] == 2 * fp32[part] == 2 * bf16[part]
