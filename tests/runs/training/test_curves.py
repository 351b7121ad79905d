"""What a training shows while it runs: held-out loss, a picture, TensorBoard's figures."""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace

import pytest
from trainings import evaluation, open_training, run, stopped, words, write_tokens

import main
from drafters.training.shards import Tokens
from runs.training.curves import draw_curves
from runs.training.train import _what
from support.training_state import JsonLog


def test_the_held_out_loss_is_that_of_an_update(folders, tmp_path) -> None:
    """In parts as at once; the first update has the same noise, on other images."""
    training = open_training(folders, tmp_path, holdout=8, batch_size=8)
    trainer, held = training.trainer, training.evaluation.held
    loss, _ = trainer.lessons(0, 0, held, [*range(8)])
    assert trainer.held_out(held) == pytest.approx(loss.item(), rel=1e-5)
    smaller = open_training(folders, tmp_path, holdout=8, batch_size=8, accumulate=4).trainer
    assert smaller.held_out(held) == pytest.approx(loss.item(), rel=1e-5)
    trainer.images = held
    assert trainer.lessons.loss.total(trainer.update()).item() == pytest.approx(loss.item(), 1e-3)
    assert smaller.held_out(held[:1]) != smaller.held_out(held)


def test_evaluations_tell_the_held_out_loss_and_change_no_update(
    folders, tmp_path, capsys, drawn
) -> None:
    whole = run(folders, tmp_path / "whole", steps=3)
    assert run(folders, tmp_path / "often", steps=3, eval_every=1) == whole
    lines = [line for line in JsonLog(tmp_path / "often" / "log.jsonl").lines if "levels" in line]
    assert lines[-1]["held_out_loss"] == evaluation(tmp_path / "often")["held_out_loss"]
    losses = [line["held_out_loss"] for line in lines]
    told = capsys.readouterr().out
    assert all(
        f"step {n}: held-out loss {loss:.4f}, TV" in told for n, loss in enumerate(losses, 1)
    )
    assert len(set(losses)) == 3 and losses[-1] < losses[0]
    assert [output.parent.name for _, output in drawn] == ["whole", *["often"] * 3]


def test_captions_in_another_spelling_are_counted(folders, tmp_path, capsys) -> None:
    tokens = write_tokens(tmp_path / "tokens", "tiny", folders / "model", (4, 4), 8)
    read = Tokens.read(tokens)
    read.captions = ["a cat", "A  cat.", "a cat", "a dog"]
    assert read.shared([0, 3], [1, 2]) == 1 and read.shared([3], [0, 1, 2]) == 0
    read.captions = ["a cat", "a cat", "a dog", "a dog"]
    settings = SimpleNamespace(holdout=1, train_images=0, tokens="tokens", folder="out")
    assert _what(settings, read) == "training a drafter on 2 images of tokens into out"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tokens, "shared", lambda *_: 1)
        run(folders, tmp_path / "out", steps=1)
    assert "note: 1 held-out caption also trained on" in capsys.readouterr().err


LOG = [
    {"step": 1, "loss": 2.0, "lr": 1e-3},
    {"step": 2, "loss": 1.5, "lr": 1e-3},
    *(
        {"step": step, "held_out_loss": 3 - 0.5 * step, "decoding": decoding,
         "levels": [{"total_variation": 0.5, "topk": {"hit_1": 0.25 * step}}, {}]}
        for step, decoding in ((1, {}), (2, {"tau": 2.5, "tau_jacobi": 2.0, "speedup": 1.0}))
    ),
]  # fmt: skip


def test_the_picture_has_the_curves_of_the_log(tmp_path, monkeypatch) -> None:
    saved = []
    monkeypatch.setattr("support.figures.save_figure", lambda *given: saved.append(given))
    draw_curves(LOG, tmp_path / "curves")
    ((figure, output),) = saved
    shown = {
        (panel.get_ylabel(), line.get_label()): (
            line.get_linestyle(),
            [*map(float, line.get_ydata())],
        )
        for panel in figure.axes
        for line in panel.lines
    }
    assert output == tmp_path / "curves" and shown == {
        ("loss", "training"): ("-", [2.0, 1.5]),
        ("loss", "held out"): ("-", [2.5, 2.0]),
        ("hit rate", "first level"): ("-", [0.25, 0.5]),
        ("tau", "drafter"): ("-", [2.5]),
        ("tau", "jacobi"): ("--", [2.0, 2.0]),
    }
    draw_curves(LOG[:3], tmp_path / "curves")
    assert len(saved[1][0].axes) == 2, "--eval_images 0 measures no tau"


def test_without_matplotlib_a_line_says_that_no_picture_is_made(
    folders, tmp_path, capsys, drawn, monkeypatch
) -> None:
    lacking = lambda name: None if name == "matplotlib" else find_spec(name)  # noqa: E731
    monkeypatch.setattr("runs.training.train.find_spec", lacking)
    run(folders, tmp_path, steps=1)
    said = "note: no picture of the curves without matplotlib: pip install -e '.[eval]'"
    assert capsys.readouterr().err.count(said) == 1 and not drawn


@pytest.fixture
def boards(monkeypatch) -> list[SimpleNamespace]:
    """What stand-ins of torch's writer got, one per command."""
    opened: list[SimpleNamespace] = []

    def writer(folder: str, purge_step: int) -> SimpleNamespace:
        assert purge_step == 0, "what earlier commands wrote is replaced"
        points: list[tuple] = []
        board = SimpleNamespace(points=points, add_scalar=lambda *p: points.append(p))
        board.flush = lambda: setattr(board, "flushed", len(points))
        opened.append(board)
        return board

    for name in ("tensorboard", "torch.utils.tensorboard"):
        module = ModuleType(name)
        module.__spec__, module.SummaryWriter = ModuleSpec(name, None), writer
        monkeypatch.setitem(sys.modules, name, module)
    return opened


def test_no_point_stands_twice_after_a_resume(folders, tmp_path, boards, drawn) -> None:
    """Step 3 was trained but not saved; that of step 2 is evaluated again, by another flag."""
    out, more = tmp_path / "out", {"tensorboard": tmp_path / "board", "eval_every": 2, "steps": 4}
    stopped(folders, out, after=3, save_every=2, **more)
    run(folders, out, **more, eval_images=1)
    before, after = (board.points for board in boards)
    places = [point[:1] + point[2:3] for point in after]
    assert len(set(places)) == len(places) and boards[1].flushed == len(after)
    steps = {name: [step for tag, step in places if tag == name] for name, _ in places}
    assert steps["loss/training"] == [1, 2, 3, 4] and steps["lr"] == [1, 2, 3, 4]
    assert steps["loss/held_out"] == steps["tau/drafter"] == steps["tau/jacobi"] == [2, 4]
    assert before[:4] == after[:4], "with the times of the log"
    lines, _ = drawn[-1]
    told = [(line["step"], "levels" in line) for line in lines]
    assert told == [(1, False), (2, False), (2, True), (3, False), (4, False), (4, True)]


def test_tensorboard_is_missed_before_anything_is_loaded(folders, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("commands.train_drafter.find_spec", lambda name: None)
    assert main.main(words(folders, tmp_path / "out", tensorboard="board")) == 2
    said = "error: --tensorboard: 'board' works only with the package tensorboard: pip install -e"
    assert capsys.readouterr().err.startswith(said) and not (tmp_path / "out").exists()
