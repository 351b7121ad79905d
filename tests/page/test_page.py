"""What the page shows, without a browser: turns, panels, verdicts, refusals."""

import json
import shutil
import socket
from collections import deque
from dataclasses import astuple
from pathlib import Path
from types import ModuleType, SimpleNamespace
from urllib.parse import parse_qsl

import pytest
import torch
from browser import only_in_all
from PIL import Image, ImageChops
from program import page_settings

import main
from adt_tree import Pipeline
from adt_tree.weights import completed
from configs.fields import SettingsError
from configs.methods import METHODS
from models.base import ImageGrid
from page.server import NO_PROXY
from page.stage import HERE, WORDS, Wish, example, stages, verdict, words
from scripts.tools.page_example import page_example
from support.json_files import read_object


@pytest.fixture(scope="module")
def pipe(checkpoint: Path) -> Pipeline:
    options = {"torch_dtype": "fp64", "device": "cpu", "progress_bar": False}
    return Pipeline.from_pretrained(checkpoint, method="adt", **options)


@pytest.fixture(scope="module")
def app() -> ModuleType:
    """The page's program; all processes collect tests, and importing gradio takes five seconds."""
    import page.app

    return page.app


def wish(**own) -> Wish:
    usual = {"prompt": "a cat", "method": "adt", "seed": 3, "temperature": 1.0}
    return Wish(**usual | {"guidance_scale": 2.0, "top_k": 0, "tokens": 0, "slow": False} | own)


def test_a_drawing_ends_with_the_same_image_twice(pipe):
    values = [json.loads(json.dumps(value)) for value in stages(pipe, wish())]
    assert [value["state"] for value in values[:-1]] == ["drawing"] * (len(values) - 1)
    last = values[-1]
    assert last["state"] == "done" and last["verdict"]["same"] is True
    assert (last["rows"], last["columns"]) == pipe.grid
    plain, fast = last["panels"]
    assert (plain["method"], fast["method"]) == ("ar", "adt")
    assert plain["image"] == fast["image"] and plain["image"].startswith("data:image/png")
    assert plain["forwards"] == 16 > fast["forwards"]
    # the first token comes with the prompt's pass: no round, no figure of one
    assert plain["heat"] == [None] + [0] * 15 and fast["heat"][0] is None
    assert len(fast["heat"]) == 16 and max(fast["heat"][1:]) > 0 and fast["draft"] is None
    assert plain["per_pass"] == 1.0 and fast["per_pass"] == 16 / fast["forwards"]
    assert (plain["words"], fast["words"]) == ("Plain decoding", "Adaptive draft tree")
    assert {own["decided"] for own in values[0]["panels"]} >= {0}
    waiting = next(own for own in values[0]["panels"] if not own["decided"])
    assert waiting.keys() == {"method", "words", "decided"}  # no figure before the first round


def test_every_round_is_shown_if_asked(pipe, monkeypatch):
    monkeypatch.setattr("time.sleep", lambda seconds: None)
    values = list(stages(pipe, wish(slow=True)))
    fast = [value["panels"][1] for value in values]
    shown = {own["rounds"] for own in fast if own["decided"]}
    assert shown == set(range(1, fast[-1]["rounds"] + 1))
    drafts = [own["draft"] for own in fast if own.get("draft")]
    assert any(len(draft["parents"]) > 3 for draft in drafts)
    pairs = [value["panels"] for value in values]
    both = [(a, b) for a, b in pairs if a["decided"] and b["decided"] and not b["done"]]
    assert both and all(abs(a["forwards"] - b["forwards"]) <= 1 for a, b in both)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"prompt": " "}, "prompt: .*got ' '"),
        (
            {"prompt": "word " * 300},
            "prompt: the prompt is [0-9]+ tokens long, .* at most [0-9]+ fit",
        ),
        ({"method": "static", "tokens": 9}, "A draft tree of fixed shape cannot have another size"),
        ({"temperature": 1e-5}, "temperature: .*got 1e-05"),
    ],
)
def test_what_cannot_be_drawn_is_refused(pipe, own, message):
    with pytest.raises(SettingsError, match=message):
        list(stages(pipe, wish(**own)))


def test_a_verdict_compares_tokens():
    def step(last: int, seconds: float, forwards: int) -> SimpleNamespace:
        tokens = torch.tensor([1, 2, 3, last])
        return SimpleNamespace(tokens=tokens, total=4, seconds=seconds, forwards=forwards)

    def found(fast: SimpleNamespace, equal: bool = True, timed: bool = True) -> dict:
        return verdict(step(4, 2.0, 4), fast, equal, timed)

    same = found(step(4, 1.0, 2))
    assert same["same"] and same["title"] == "Identical image, 2.0 times faster"
    seconds = "2 forward passes instead of 4, 1.00 s instead of 2.00 s."
    assert same["text"] == f"{seconds} All 4 tokens are equal."
    assert found(step(4, 1.6, 2))["title"] == "Identical image, 25 % faster"
    assert found(step(4, 2.0, 2))["title"] == "Identical image, at the same speed"
    assert found(step(4, 2.5, 2))["title"] == "Identical image, 25 % slower on this machine"
    assert "Try fewer draft tokens" in found(step(4, 2.5, 2))["text"]
    doubtful = verdict(step(4, 2.0, 4), step(4, 1.0, 2), True, True, "It was busy.")
    assert doubtful["title"].endswith("2.0 times faster (!)")
    assert "(!) It was busy. All 4 tokens" in doubtful["text"]
    untimed = found(step(4, 1.0, 2), timed=False)
    assert untimed["title"] == "Identical image in 2 forward passes instead of 4"
    assert untimed["text"] == "All 4 tokens are equal."
    other = found(step(5, 4.0, 2))
    assert not other["same"]
    assert other["title"] == "A different image, 2.0 times slower on this machine"
    assert other["text"].startswith("1 of 4 tokens differ, the first is number 3.")
    assert "rounding" in other["text"]
    assert "acceptance rule" in found(step(5, 4.0, 2), equal=False)["text"]


def test_the_example_is_finished_and_has_no_seconds_of_another_machine():
    value = json.loads(json.dumps(example()))
    assert value["state"] == "example" and value["verdict"]["same"] and value["prompt"]
    for panel in value["panels"]:
        assert panel["decided"] == value["rows"] * value["columns"] == len(panel["heat"])
        assert panel["image"].startswith("data:image/png;base64,") and "seconds" not in panel
        assert panel["words"] == WORDS[panel["method"]]
    assert f"The example's fast method: {panel['words']}. Press" in value["verdict"]["text"]


@only_in_all
def test_the_example_is_what_the_included_model_generates(tmp_path):
    value = example()
    page_example(prompt=value["prompt"], seed=value["seed"], folder=str(tmp_path))
    new, kept = (read_object(folder / "example.json") for folder in (tmp_path, HERE))
    assert new == kept
    with Image.open(tmp_path / "example.png") as one, Image.open(HERE / "example.png") as other:
        # on another processor the codec rounds some pixels the other way; the tokens are the same
        assert max(most for _, most in ImageChops.difference(one, other).getextrema()) <= 1


def test_a_run_that_was_stopped_draws_no_further(app, pipe):
    stops = deque[str]()
    shown = json.loads(app.started(json.dumps(example())))
    assert shown["state"] == "waiting" and len(shown["run"]) == 32
    values = app.draw(pipe, stops, json.dumps(shown), *astuple(wish()))
    assert json.loads(next(values)) == shown
    first = json.loads(next(values))
    assert first["state"] == "drawing" and first["run"] == shown["run"]
    stopped = json.loads(app.stop_run(stops, json.dumps(first)))
    assert stopped["state"] == "stopped" and stopped["run"] == shown["run"]
    (last,) = map(json.loads, values)
    assert last["state"] == "stopped" and last["run"] == shown["run"]
    # also one whose Stop came before it began
    (only,) = map(json.loads, app.draw(pipe, stops, json.dumps(shown), *astuple(wish())))
    assert only == shown | {"state": "stopped"}
    finished = json.dumps(first | {"state": "done"})
    assert app.stop_run(stops, finished) == app.gr.skip()


def test_one_image_is_drawn_at_a_time_however_it_was_asked_for(app, pipe):
    page = app.build_page(pipe, drafted=True, visitors=4)
    (drawn,) = [f for f in page.fns.values() if getattr(f.fn, "func", None) is app.draw]
    assert drawn.concurrency_limit == "default" and page._queue.default_concurrency_limit == 1
    (begun,) = [f for f in page.fns.values() if f.fn is app.started]
    assert [event for _, event in begun.targets] == ["click", "submit"]


def test_both_images_have_one_seed_also_where_its_field_is_empty(app, pipe):
    shown = app.started(json.dumps(example()))
    *_, value = map(json.loads, app.draw(pipe, deque(), shown, *astuple(wish(seed=None))))
    assert value["verdict"]["same"] is True and "seed=None" not in value["link"]


def test_an_empty_prompt_is_asked_for(app, pipe):
    shown = app.started(json.dumps(example()))
    (value,) = map(json.loads, app.draw(pipe, deque(), shown, *astuple(wish(prompt="  "))))
    assert (value["state"], value["why"]) == ("refused", "Enter a prompt first.")


def test_a_refusal_names_the_control(app, pipe):
    shown = app.started(json.dumps(example()))
    *_, value = map(json.loads, app.draw(pipe, deque(), shown, *astuple(wish(guidance_scale=-1))))
    assert value["why"].startswith("Guidance scale: expected 1 for no guidance")


def test_a_lack_of_memory_ends_the_stage(app, pipe, monkeypatch):
    def fail(pipe, wish):
        raise torch.OutOfMemoryError

    monkeypatch.setattr("page.app.stages", fail)
    shown = app.started(json.dumps(example()))
    *_, value = map(json.loads, app.draw(pipe, deque(), shown, *astuple(wish())))
    assert value["state"] == "refused" and "memory" in value["why"]


def test_a_link_sets_the_controls_and_what_does_not_fit_stays(app, pipe):
    page = app.build_page(pipe, drafted=True, visitors=4)
    labelled = {getattr(block, "label", None): block for block in page.blocks.values()}
    names = ["Prompt", "Fast method", "Seed", "Temperature", "Guidance scale", "Top-k, 0 = off"]
    names += ["Draft tokens per forward pass, 0 = default", "Slow: show every round"]
    values = app.linked([labelled[name] for name in names])

    def opened(query: str) -> list:
        return values(SimpleNamespace(query_params=dict(parse_qsl(query))))

    own = wish(prompt="a & b = “c”", method="jacobi", seed=2**62 + 1, tokens=5, slow=True)
    assert Wish(*opened(own.link)) == own
    kept = opened("method=ar&seed=-1&temperature=9&guidance_scale=x&top_k=1.5&tokens=inf")
    assert kept == [app.gr.skip()] * 8
    assert opened("seed=nan&slow=0")[-1] is False


def test_an_image_is_completed_by_its_rows():
    grid = ImageGrid(4, 3)
    assert completed(torch.arange(5), grid).tolist() == [0, 1, 2, 3, 4, 2, 0, 1, 2, 0, 1, 2]
    assert completed(torch.arange(2), grid).tolist() == [0] + [1] * 11
    assert completed(torch.arange(12), grid).tolist() == list(range(12))


def test_the_page_begins_with_a_method_that_the_files_allow(checkpoint, tmp_path, monkeypatch):
    cpu = {"model_path": str(checkpoint), "device": "cpu"}
    small = page_settings(cpu).engine.method  # on a CPU every draft token takes time
    assert (small.method, small.window) == ("jacobi", 6)
    assert page_settings(cpu | {"nodes": "9"}).engine.method.method == "adt"
    monkeypatch.setattr("commands.demo.on_gpu", lambda device: True)
    assert page_settings({"model_path": str(checkpoint)}).engine.method.method == "adt"
    bare = shutil.copytree(checkpoint, tmp_path / "bare")
    shutil.rmtree(bare / "drafter")
    without = page_settings({"model_path": str(bare)})
    assert without.engine.method.method == "jacobi" and not without.drafted
    plain = page_settings({"model_path": str(checkpoint), "method": "jacobi"})
    assert plain.drafted  # other methods can be chosen
    settings = page_settings({"model_path": str(checkpoint), "method": "adt", "port": "80"})
    assert settings.engine.method.method == "adt"
    assert (settings.port, settings.share_on) == (80, "127.0.0.1")


def test_every_method_has_words_and_can_be_chosen_if_the_files_allow_it(app):
    assert METHODS.keys() == WORDS.keys()
    assert words("method_of_a_plugin") == "method_of_a_plugin"
    assert {*app.fast_methods(True)} == METHODS.keys() - {"ar"}
    assert {*app.fast_methods(False)} == {n for n, m in METHODS.items() if not m.drafted} - {"ar"}


def test_a_taken_port_and_a_file_for_a_folder_are_named(checkpoint, tmp_path, capsys, monkeypatch):
    for name in ("MPLCONFIGDIR", "GRADIO_TEMP_DIR", "GRADIO_ANALYTICS_ENABLED", *NO_PROXY):
        monkeypatch.setenv(name, "")  # the page's own are gone after the test
    model = [f"--model_path={checkpoint}", "--device=cpu", f"--output_dir={tmp_path / 'page'}"]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with monkeypatch.context() as patch:
            patch.setattr("page.server.Pipeline", None)  # the model is not loaded before
            assert main.main(["demo", *model, f"--port={port}", "--method=jacobi"]) == 2
    expected = "expected a free port of 127.0.0.1, got one that another program uses. Choose"
    assert f"--port {port}: {expected}" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main.main(["demo", *model[:2], f"--output_dir={tmp_path / 'file'}"]) == 2
    assert "--output_dir" in capsys.readouterr().err
