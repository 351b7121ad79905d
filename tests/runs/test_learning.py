"""`generate_images --learn`: the same images, a head that learns, and when it stops."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small import Sizes, write_checkpoint

from configs.command_line import read_words
from configs.fields import SettingsError
from configs.methods import MethodSettings
from configs.schema import RunSettings
from drafters.loading import load_drafter
from runs import learning
from runs.commands import run_settings
from runs.generate import generate_images, open_real_session
from runs.learning import Learner, average_heads
from support.json_files import read_lines

GRAFT = MethodSettings(method="graft", size="fixed", nodes=6, window=4)
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("learn") / "model", Sizes(side=4))


@pytest.fixture
def settings(folder, tmp_path, monkeypatch) -> Callable[..., RunSettings]:
    monkeypatch.setattr(learning, "WINDOW", 4)
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"a {n} cat\n" for n in range(16)))

    def build(name: str, **flags) -> RunSettings:
        base = {"prompt": str(prompts), "model_path": str(folder), "dtype": "fp64", "device": "cpu",
                "method": GRAFT, "batch_size": 3, "output_dir": str(tmp_path / name)}  # fmt: skip
        return RunSettings(**base | flags)

    return build


def tokens(settings: RunSettings) -> dict[str, str]:
    lines = read_lines(Path(settings.output_dir) / "records.jsonl")
    return {line["id"]: line["tokens_sha256"] for line in lines}


def log_of(settings: RunSettings) -> list[dict]:
    text = (Path(settings.output_dir) / "learned/log.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("drafter_path", [None, "new"])
def test_images_are_those_of_plain_decoding(drafter_path, settings, capsys) -> None:
    plain = settings("plain", method=MethodSettings("ar"))
    learnt = settings("learnt", learn=True, learn_share=0.9, drafter_path=drafter_path)
    for each in (plain, learnt):
        generate_images(each)
    assert len(tokens(plain)) == 16 and tokens(learnt) == tokens(plain)
    log = log_of(learnt)
    assert log[0]["updates"] == 0 < log[-1]["updates"]
    assert all(line["images"] >= 4 and line["tau"] > 1 for line in log)
    assert "learned: tau " in capsys.readouterr().err


def test_the_log_counts_the_tokens_of_all_rounds(settings, monkeypatch) -> None:
    """Images in flight, too: a span's first and last rounds are those of unfinished images."""
    monkeypatch.setattr(learning, "WINDOW", 16)
    run = settings("counted", learn=True)
    generate_images(run)
    lines = read_lines(Path(run.output_dir) / "records.jsonl")
    rounds = sum(line["target_forwards"] - 1 for line in lines)
    assert [line["tau"] for line in log_of(run)] == [pytest.approx(16 * 15 / rounds)]


def test_the_folder_keeps_the_head_and_a_resumed_run_goes_on_with_it(settings) -> None:
    first = settings("run", learn=True, learn_share=0.9, slice="0-12")
    generate_images(first)
    kept = Path(first.output_dir) / "learned/drafter"
    before = (kept / "model.safetensors").read_bytes()
    session = open_real_session(replace(first, learn=None, learn_share=None))
    head = load_drafter(str(kept), session.target).network
    shipped = session.drafter.network
    assert not torch.equal(head.fc.weight, shipped.fc.weight)
    resumed = replace(first, slice=None)
    learner = Learner(resumed, session.target, 4)
    for name, weight in learner.network.named_parameters():
        if name != "embedding.weight":  # the target's, which the file holds in 16 bits
            torch.testing.assert_close(
                weight, dict(head.named_parameters())[name], rtol=1e-5, atol=0
            )
    generate_images(resumed)
    assert len(tokens(resumed)) == 16
    assert (kept / "model.safetensors").read_bytes() != before or learner.lessons.step == 0
    anew = Learner(replace(resumed, overwrite=True), session.target, 4)
    torch.testing.assert_close(anew.network.fc.weight, shipped.fc.weight)


def test_the_drafting_head_is_renewed_once_a_round(settings, monkeypatch) -> None:
    """However many updates the round's share of the time allows."""
    run = settings("renewed", learn=True, learn_share=0.9, drafter_path="new")
    session, learner = learning.open_learner(run, 16, 0, open_real_session)
    from runs.drawing import draw
    from runs.prompts import prompt_items

    published, updates = [], []
    publish = learner._publish
    monkeypatch.setattr(learner, "_publish", lambda: (published.append(1), publish()))
    for step in draw(session, prompt_items(run), 0):
        before, count = learner.lessons.step, len(published)
        learner.after(step)
        updates.append(learner.lessons.step - before)
        assert len(published) - count == (updates[-1] > 0)
    assert max(updates) > 1


def test_learning_lowers_the_loss(settings) -> None:
    """Of the same images, from random weights; the drafting head has the weights that it says."""
    run = settings("loss", learn=True, learn_share=0.9, drafter_path="new")
    session, learner = learning.open_learner(run, 16, 0, open_real_session)
    from runs.drawing import draw
    from runs.prompts import prompt_items

    before = learner.network.fc.weight.clone()
    for step in draw(session, prompt_items(run), 0):
        learner.after(step)
    rows = learner.notes(range(len(learner.notes)))
    rows = rows.to(session.target.device, torch.float32)

    def loss() -> float:
        with torch.no_grad():
            return float(learner.lessons.loss(learner.lessons.head, rows, None)[0])

    assert learner.lessons.step > 0 and not torch.equal(before, learner.network.fc.weight)
    start = loss()
    for _ in range(60):
        learner._update()
    learner._publish()
    assert loss() < 0.97 * start
    with learner.lessons.averaged() as head:
        scaled = head.fc.weight.detach().clone()
    scaled[:, : len(scaled)] *= learner.scale
    torch.testing.assert_close(learner.network.fc.weight, scaled.double())
    x, fc = scaled[:3].double(), learner.network.fc
    torch.testing.assert_close(fc(x), x @ fc.weight.T + fc.bias)  # by the copy of these weights


def test_processes_average_their_heads_through_files(settings) -> None:
    run = settings("two", learn=True)
    target = open_real_session(run).target
    learners = [Learner(run, target, 8, rank) for rank in (0, 1)]
    for factor, learner in zip((1.0, 3.0), learners, strict=True):
        with torch.no_grad():
            for weights in (learner.lessons.trained, learner.lessons.average):
                for name, value in weights.items():
                    weights[name].copy_(value * factor)
        learner.began -= 10  # files have the time of a coarse clock
    mine = learners[0].lessons.trained["fc.weight"].clone()
    learners[1].save()
    learners[0].save()
    mean = learners[0].lessons.trained["fc.weight"]
    torch.testing.assert_close(mean, 2 * mine, rtol=2e-3, atol=1e-4)
    learners[0].save()  # the same file does not count twice
    assert torch.equal(mean, learners[0].lessons.trained["fc.weight"])
    kept = {path.name for path in (Path(run.output_dir) / "learned").iterdir()}
    assert kept == {"drafter", "drafter.1"}


def test_heads_are_averaged_with_equal_weights(settings) -> None:
    run = settings("mean", learn=True)
    target = open_real_session(run).target
    own, *others = (Learner(run, target, 8, rank) for rank in range(3))
    start = own.lessons.trained["fc.weight"].clone()
    heads = [each.lessons.head for each in others]
    with torch.no_grad():
        heads[0].fc.weight += 3.0
    average_heads(own.lessons, heads)
    torch.testing.assert_close(own.lessons.trained["fc.weight"], start + 1.0)
    torch.testing.assert_close(own.lessons.average["fc.weight"], start + 1.0)


def test_a_run_that_gains_nothing_says_so(settings, monkeypatch, capsys) -> None:
    monkeypatch.setattr(learning, "pays", lambda spans, left: len(spans) < 2)
    run = settings("idle", learn=True, learn_share=0.9)
    generate_images(run)
    said = capsys.readouterr().err
    assert said.count("note: --learn stops, since more would take longer than it saves: tau ") == 1
    updates = [line["updates"] for line in log_of(run)]
    assert updates[0] == 0 < updates[1] == updates[-1] and len(updates) > 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--learn", "--verifier", "rejection"], "--learn: found True; allowed: only with --ver"),
        (["--learn", "--method", "jacobi"], "--learn: found True; allowed: only with a method"),
        (["--learn", "--compile", "on"], "--compile: found 'on'; allowed: off or auto with --le"),
        (["--learn_share", "0.2"], "--learn_share: found 0.2; allowed: only with --learn"),
        (["--drafter_path", "new"], "--drafter_path: found 'new'; allowed: only with --learn"),
        (["--learn", "--learn_share", "0"], "--learn_share: found 0.0; allowed: a number above 0"),
    ],
)
def test_what_does_not_go_with_it_is_refused_in_one_line(words, message, folder) -> None:
    words = ["--prompt", "a cat", "--model_path", str(folder), *words]
    with pytest.raises(SettingsError) as error:
        run_settings(read_words("generate_images", words))
    assert str(error.value).startswith(message) and "\n" not in str(error.value)


def test_learning_is_no_part_of_what_an_image_is(settings) -> None:
    run = settings("same")
    learnt = replace(run, learn=True)
    assert learnt.identity() == run.identity()
    assert not {"learn", "learn_share"} & run.identity().keys()
