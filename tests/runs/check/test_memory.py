"""The memory that `inspect` names is what an engine allocates, in families with and without row
ends, and it says whether prompts find room.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from families import SMALL

import main
from configs.method_table import METHODS
from configs.methods import MethodSettings
from configs.model import EngineSettings
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
    taken = {"target keys and values": engine.images.cache.nbytes}
    drafter = engine.speculation.drafter
    parts = (drafter.near, drafter.far) if isinstance(drafter, MixedDrafter) else (drafter,)
    for part in parts:
        if hasattr(part, "cache"):
            taken["drafter keys and values"] = part.cache.nbytes
    return taken


@pytest.mark.parametrize("images", [1, 3])
def test_the_memory_is_that_of_the_engines(images, session, capsys) -> None:
    """No method takes more, and of every part one takes as much."""
    code, report = inspected(capsys, session.settings, f"--batch_size={images}")
    assert code == 0
    engines = [allocated(opened(session, name, images)) for name in DRAFTING]
    for part in ("target keys and values", "drafter keys and values"):
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


def test_images_have_the_size_of_the_flag(tmp_path, capsys) -> None:
    settings = SMALL["emu3"].settings(SMALL["emu3"].write(tmp_path), "fp32")
    _, report = inspected(capsys, replace(settings, target_size="72x64"))
    assert "72 image tokens and 8 row ends of 260 positions" in sequence(report)["text"]


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
