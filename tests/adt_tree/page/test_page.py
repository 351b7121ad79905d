"""What the page shows, without a browser: turns, panels, verdicts, refusals."""

import json
import shutil
import socket
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import main
from adt_tree import Pipeline
from adt_tree.page.app import fast_methods
from adt_tree.page.drawing import Pace, Painter, Wish, race
from adt_tree.page.stage import Finish, verdict
from adt_tree.weights import completed
from configs.fields import SettingsError
from configs.method_table import METHODS
from models.base import ImageGrid
from runs.commands import page_settings


@pytest.fixture(scope="module")
def painter(checkpoint: Path, tmp_path_factory) -> Painter:
    pipe = Pipeline.from_pretrained(
        checkpoint, method="adt", torch_dtype="fp64", device="cpu", progress_bar=False
    )
    return Painter(pipe)


def wish(**own) -> Wish:
    usual = {"prompt": "a cat", "method": "adt", "seed": 3, "temperature": 1.0}
    return Wish(**usual | {"guidance_scale": 2.0, "top_k": 0, "tokens": 0, "slow": False} | own)


def rounds(seconds: float, number: int):
    return iter([SimpleNamespace(seconds=seconds * (n + 1)) for n in range(number)])


def test_who_has_decoded_less_goes_next():
    order = [number for number, _ in race([rounds(1.0, 8), rounds(2.0, 3)])]
    assert order == [0, 1, 0, 0, 1, 0, 0, 1, 0, 0, 0]
    assert list(race([iter(())])) == []


def test_rounds_are_shown_a_few_per_second_or_all_of_them(monkeypatch):
    clock = count(10)
    monkeypatch.setattr("time.perf_counter", lambda: next(clock) / 16)
    pace = Pace(0.0, interval=0.125)
    assert [pace.shows(False) for _ in range(5)] == [True, False, True, False, True]
    assert pace.shows(True)
    slept = []
    monkeypatch.setattr("time.sleep", slept.append)
    assert all(Pace(0.5).shows(False) for _ in range(3)) and slept == [0.5] * 3


def test_a_drawing_ends_with_the_same_image_twice(painter):
    values = [json.loads(json.dumps(value)) for value in painter.draw(wish())]
    assert [value["state"] for value in values[:-1]] == ["drawing"] * (len(values) - 1)
    last = values[-1]
    assert last["state"] == "done" and last["verdict"]["same"] is True
    assert (last["rows"], last["columns"]) == painter.pipe.grid
    plain, fast = last["panels"]
    assert (plain["method"], fast["method"]) == ("ar", "adt")
    assert plain["image"] == fast["image"] and plain["image"].startswith("data:image/png")
    assert plain["forwards"] == 16 > fast["forwards"] and plain["heat"] == [0] * 16
    assert len(fast["heat"]) == 16 and max(fast["heat"]) > 0 and fast["draft"] is None
    assert painter.blank["state"] == "idle" and painter.blank["panels"][1]["decided"] == 0


def test_every_round_is_shown_if_asked(painter, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    values = list(painter.draw(wish(slow=True)))
    fast = [value["panels"][1] for value in values]
    shown = {own["rounds"] for own in fast if own["decided"]}
    assert shown == set(range(1, fast[-1]["rounds"] + 1))
    drafts = [own["draft"] for own in fast if own.get("draft")]
    assert any(len(draft["parents"]) > 3 for draft in drafts)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"prompt": " "}, "prompt: .*got ' '"),
        ({"prompt": "word " * 300}, "the model takes"),
        ({"method": "static", "tokens": 9}, "draft tokens: expected 0 with static.*got 9"),
        ({"temperature": 1e-5}, "temperature: .*got 1e-05"),
    ],
)
def test_what_cannot_be_drawn_is_refused(painter, own, message):
    with pytest.raises(SettingsError, match=message):
        list(painter.draw(wish(**own)))


def test_draft_tokens_limit_the_tree_or_the_window(painter):
    assert painter._fast(wish(tokens=3)).settings.method.nodes == 3
    assert painter._fast(wish(method="jacobi", tokens=3)).settings.method.window == 3


def test_a_verdict_compares_tokens():
    def step(last: int, seconds: float, forwards: int) -> SimpleNamespace:
        tokens = torch.tensor([1, 2, 3, last])
        return SimpleNamespace(tokens=tokens, total=4, seconds=seconds, forwards=forwards)

    def found(fast: SimpleNamespace, equal: bool = True, timed: bool = True) -> dict:
        return verdict(Finish(step(4, 2.0, 4), fast, "adt", equal, timed))

    same = found(step(4, 1.0, 2))
    assert same["same"] and same["text"].startswith("All 4 tokens are equal. adt took 2 forward")
    assert "2.00 times faster" in same["text"]
    assert "times" not in found(step(4, 1.0, 2), timed=False)["text"]
    other = found(step(5, 4.0, 2))
    assert not other["same"] and "1 of 4 tokens differ, the first is number 3." in other["text"]
    assert "rounding" in other["text"] and "2.00 times slower" in other["text"]
    assert "acceptance rule" in found(step(5, 4.0, 2), equal=False)["text"]


def test_an_image_is_completed_by_its_mirror():
    grid = ImageGrid(4, 3)
    assert completed(torch.arange(5), grid).tolist() == [0, 1, 2, 3, 4, 2, 3, 4, 2, 0, 1, 2]
    assert completed(torch.arange(2), grid).tolist() == [0, 1, 1] * 4
    assert completed(torch.arange(12), grid).tolist() == list(range(12))


def test_the_page_begins_with_a_method_that_the_files_allow(checkpoint, tmp_path):
    assert page_settings({"model_path": str(checkpoint)}).engine.method.method == "adt"
    bare = shutil.copytree(checkpoint, tmp_path / "bare")
    shutil.rmtree(bare / "drafter")
    without = page_settings({"model_path": str(bare)})
    assert without.engine.method.method == "jacobi" and not without.drafted
    plain = page_settings({"model_path": str(checkpoint), "method": "jacobi"})
    assert plain.drafted  # other methods can be chosen
    settings = page_settings({"model_path": str(checkpoint), "method": "adt", "port": "80"})
    assert (settings.engine.method.method, settings.port, settings.share_on) == (
        "adt",
        80,
        "127.0.0.1",
    )
    with pytest.raises(SettingsError, match="--port: .*got 0"):
        page_settings({"port": "0"})


def test_every_method_that_the_files_allow_can_be_chosen():
    assert {*fast_methods(True)} == METHODS.keys() - {"ar"}
    assert {*fast_methods(False)} == {
        n for n, m in METHODS.items() if m.speculative and not m.drafted
    }


def test_a_taken_port_and_a_folder_that_cannot_be_written_are_named(
    checkpoint, tmp_path, capsys, monkeypatch
):
    for name in ("MPLCONFIGDIR", "GRADIO_TEMP_DIR", "GRADIO_ANALYTICS_ENABLED"):
        monkeypatch.setenv(name, "")  # the page's own are gone after the test
    model = [f"--model_path={checkpoint}", "--device=cpu", f"--output_dir={tmp_path / 'page'}"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert main.main(["demo", *model, f"--port={port}", "--method=jacobi"]) == 2
    assert f"--port: expected a free port of 127.0.0.1, got {port}" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main.main(["demo", *model[:2], f"--output_dir={tmp_path / 'file'}"]) == 2
    assert "--output_dir" in capsys.readouterr().err
