"""`inspect` names the memory that an engine allocates, and the room for prompts."""

import pytest
from damage import entries, faults, inspected, rows
from families import SMALL

from configs.method_table import METHODS
from configs.methods import MethodSettings
from configs.model import EngineSettings
from decoding import noise
from decoding.engine import Engine
from decoding.images import Job
from drafters.mixed import MixedDrafter
from runs.session import Session, open_session

MODELS = ("tiny", "janus_pro", "emu3", "emu3_5", "liquid", "lumina_mgpt2", "glm_image")
SEQUENCE = ("target", "sequence")  # the row about the positions
DRAFTING = [name for name, entry in METHODS.items() if entry.speculative]


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
    parts = (drafter.near, drafter.far) if isinstance(drafter, MixedDrafter) else (drafter,)
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
    room = session.target.length(longest(session))
    line = rows(report_on(capsys, session.settings)[1])[SEQUENCE]
    assert line["state"] != "FAULT" and f": prompts of up to {room} tokens; " in line["text"]
    ends = session.target.grid.row_end is not None
    assert (" row ends of " in line["text"]) is ends


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
