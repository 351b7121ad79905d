"""The memory that `inspect` names is what an engine allocates, in families with and without row
ends, and it says whether prompts find room.
"""

import json
from dataclasses import replace

import pytest
from families import SMALL
from small import small_settings

import main
from configs.method_table import METHODS
from configs.methods import MethodSettings
from configs.model import EngineSettings
from decoding import noise
from decoding.engine import Engine
from decoding.images import Job
from drafters.mixed import MixedDrafter
from runs.session import Session, open_session

MODELS = ("tiny", "janus_pro", "emu3", "emu3_5", "liquid", "lumina_mgpt2", "glm_image")
DRAFTING = [name for name, entry in METHODS.items() if entry.speculative]


@pytest.fixture(scope="module", params=MODELS)
def session(request, tmp_path_factory) -> Session:
    small = SMALL[request.param]
    return open_session(small.settings(small.write(tmp_path_factory.mktemp("memory")), "fp32"))


def inspected(capsys, settings: EngineSettings, *words: str) -> tuple[int, dict]:
    """Exit code and report of `inspect` with the settings of a session."""
    given = [f"--model={settings.model}", f"--model_path={settings.model_path}"]
    given += [
        f"--{name}={value}"
        for name in ("target_size", "negative_prompt")
        if (value := getattr(settings, name)) is not None
    ]
    code = main.main(["inspect", "--json", *given, *words])
    return code, json.loads(capsys.readouterr().out)


def longest(session: Session) -> str:
    """The longest text that finds room."""
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
    size = {"size": "fixed"} if "size" in METHODS[name].defaults else {}
    engine = session.open_engine(MethodSettings(name, **size), images=images)
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
    code, report = inspected(capsys, session.settings, f"--batch_size={images}")
    assert code == 0
    engines = [allocated(opened(session, name, images)) for name in DRAFTING]
    parts = {name for engine in engines for name in engine}
    assert parts == {
        "target keys and values",
        "drafter keys and values",
        "noise",
        "stale predictions",
        "recalled predictions",
    }
    for part in parts:
        most = max(engine.get(part, 0) for engine in engines)
        assert report["memory"][part] == most > 0, part


def sequence(report: dict) -> dict:
    """The line about the positions."""
    lines = report["findings"]
    return next(line for line in lines if (line["part"], line["item"]) == ("target", "sequence"))


def test_a_missing_folder_has_no_memory(tmp_path, capsys) -> None:
    assert main.main(["inspect", f"--model_path={tmp_path / 'nowhere'}"]) != 0
    assert "memory" not in capsys.readouterr().out


def test_the_room_for_prompts_is_that_of_the_target(session, capsys) -> None:
    room = session.target.length(longest(session))
    line = sequence(inspected(capsys, session.settings)[1])
    assert line["state"] != "FAULT" and f": prompts of up to {room} tokens; " in line["text"]
    ends = session.target.grid.row_end is not None
    assert (" row ends of " in line["text"]) is ends


def test_larger_images_of_the_flag_take_more(tmp_path, capsys) -> None:
    settings = SMALL["emu3"].settings(SMALL["emu3"].write(tmp_path), "fp32")
    small, large = (
        inspected(capsys, replace(settings, target_size=size))[1] for size in ("40x32", "72x64")
    )
    assert small["memory"]["noise"] * 72 == large["memory"]["noise"] * 20
    assert "72 image tokens and 8 row ends of 260 positions" in sequence(large)["text"]


@pytest.mark.parametrize("model", MODELS)
def test_a_sequence_that_exceeds_the_positions_is_a_fault(model, tmp_path, capsys) -> None:
    folder = SMALL[model].write(tmp_path)
    session = open_session(SMALL[model].settings(folder))
    grid = session.target.grid
    image, shortest = grid.slots(grid.tokens), session.target.length("")
    for positions in (image + shortest, image + shortest - 1, image):
        config = json.loads((folder / "config.json").read_text())
        config.get("text_config", config)["max_position_embeddings"] = positions
        (folder / "config.json").write_text(json.dumps(config))
        code, report = inspected(capsys, session.settings)
        faults = [line for line in report["findings"] if line["state"] == "FAULT"]
        if positions == image + shortest:
            assert code == 0 and not faults
        elif positions > image:
            assert code == 1 and faults == [sequence(report)]
            assert f"the shortest has {shortest}" in faults[0]["text"]
        else:
            assert code == 1 and f"max_position_embeddings is {image}" in faults[0]["text"]


def test_tables_are_in_the_type_of_the_distribution(checkpoint, capsys) -> None:
    settings = small_settings(checkpoint)
    memory = {
        dtype: inspected(capsys, settings, f"--dtype={dtype}")[1]["memory"]
        for dtype in ("fp32", "fp64", "bf16")
    }
    for part in ("noise", "stale predictions"):
        assert memory["fp64"][part] == 2 * memory["fp32"][part] == 2 * memory["bf16"][part]
