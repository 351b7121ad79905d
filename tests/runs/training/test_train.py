"""`train_drafter` on small checkpoints: what it learns, writes and refuses."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import huggingface_hub
import pytest
import torch
from browser import ALL, only_in_all
from families import SMALL
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError
from program import train_settings
from ran import torchrun
from safetensors.torch import load_file, save_file
from small_llamagen import put_llamagen
from trainings import (
    BLOCK,
    LAYOUTS,
    assert_drafts_exactly,
    curve,
    evaluation,
    flags,
    open_training,
    run,
    stopped,
    words,
    write_tokens,
)

import main
from configs.fields import SettingsError
from drafters.block import BlockHead
from drafters.training.heads import embedding_scale, export
from drafters.training.rounds import Keep
from drafters.training.windows import EPOCHS
from models.transformer import run_by_torch
from runs.made_of import made_of
from runs.training.evaluation import Evaluation
from scripts.checkpoints.chameleon import Sizes, write_checkpoint
from support.border import Failure
from support.locks import lock


@pytest.mark.parametrize(
    ("weights", "part", "share"),
    [({}, 0, 0.6), ({"agreement_weight": 20, "ce_weight": 0}, 2, 0.7)],
    ids=["regression", "disagreement"],
)
def test_one_batch_is_learnt(weights, part, share, folders, tmp_path) -> None:
    """Eight images, the same in every batch."""
    more = {"steps": 12, "lr": 1e-2, "feature_noise": 0, "batch_size": 8, "holdout": 16} | weights
    training = open_training(folders, tmp_path, **more)
    losses = [training.trainer.update()[:, part].mean().item() for _ in range(12)]
    assert losses[-1] < share * losses[0]


def test_the_learning_rate_may_rise_to_the_end(folders, tmp_path) -> None:
    more = {"warmup": 1, "steps": 2, "lr": 1e-3}
    assert [line["lr"] for line in run(folders, tmp_path, **more)] == [5e-4, 1e-3]


@only_in_all  # ten seconds
def test_a_block_head_learns_in_rounds_of_its_own(folders, tmp_path) -> None:
    """Three captions, which it draws anew for every update."""
    more = {"steps": 16, "lr": 1e-2, "ema": 0, "batch_size": 3, "holdout": 21}
    training = open_training(folders, tmp_path, **BLOCK, **more)
    losses = [training.trainer.update() for _ in range(16)]
    first, last = (torch.stack(part).mean((0, 1)) for part in (losses[:3], losses[-3:]))
    assert (last < torch.tensor([0.8, 0.98, 0.98]) * first).all()


def test_a_block_drafter_is_resumed_written_and_drafts(folders, tmp_path) -> None:
    """From an EAGLE head; its folder drafts what ar draws, alone and in eagle_recall."""
    start = folders / "model" / "drafter"
    more = {**BLOCK, "steps": 2, "holdout": 1, "batch_size": 1, "start_from": start}
    whole = run(folders, tmp_path / "whole", **more)
    stopped(folders, tmp_path / "part", **more)
    assert run(folders, tmp_path / "part", **more)[-1] == whole[-1]
    losses = {evaluation(tmp_path / name)["held_out_loss"] for name in ("whole", "part")}
    assert len(losses) == 1 and min(losses) > 0
    drafter, levels = tmp_path / "whole" / "drafter", evaluation(tmp_path / "whole")["levels"]
    assert json.loads((drafter / "config.json").read_text())["drafter"] == "block"
    assert len(levels) > 4 and all(0 <= line["total_variation"] <= 1 for line in levels)
    assert_drafts_exactly(folders / "model", drafter, "block", "eagle_recall")


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_parts_of_a_batch_add_up(optimizer, folders, tmp_path) -> None:
    whole = open_training(folders, tmp_path, batch_size=8, optimizer=optimizer)
    parts = open_training(folders, tmp_path, batch_size=8, accumulate=4, optimizer=optimizer)
    for _ in range(3):
        pair = whole.trainer.update(), parts.trainer.update()
        torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("save_every", "said"), [(1, "weights are .* step 3"), (2, "loss is .* 4")]
)
def test_a_training_that_diverges_says_what_is_left(save_every, said, folders, tmp_path) -> None:
    training = open_training(folders, tmp_path, steps=9, save_every=save_every)
    update, state = training.trainer.update, tmp_path / "checkpoint/state.pt"

    def diverged() -> torch.Tensor:
        parts = update()
        if training.trainer.step == 3:
            training.trainer.trained["fc.weight"].data.fill_(torch.nan)
        return parts

    training.trainer.update = diverged
    tried = "of step 2. Try a smaller --lr or --clip, .* in another --output_dir"
    with pytest.raises(Failure, match=f"{said}; the last good checkpoint, {state}, is {tried}"):
        training.run()
    weights = torch.load(state)["weights"]
    assert all(weight.isfinite().all() for weight in weights.values())


def test_parts_of_a_batch_read_the_same_rounds(folders, tmp_path) -> None:
    """As two processes do. The rounds are numbers here: rounding may change real ones."""

    def rounds(images: list[int], keep: Keep) -> list[SimpleNamespace]:
        passes = ([(image, number) for number in range(40)] for image in images)
        return [SimpleNamespace(passes=keep(place, each)) for place, each in enumerate(passes)]

    read: dict[int, list[list[tuple[int, int]]]] = {1: [], 4: []}
    for accumulate, picked in read.items():
        more = {"batch_size": 8, "accumulate": accumulate}
        training = open_training(folders, tmp_path, **more, **BLOCK)
        trainer = training.trainer

        def loss(head: BlockHead, images: list, picks: list, to: list = picked) -> tuple:
            to.extend(picks)
            return 0 * head.share.sum(), torch.zeros(1, 3)

        trainer.lessons = replace(
            trainer.lessons,
            rounds=Mock(side_effect=rounds, head=trainer.head),
            loss=Mock(side_effect=loss, target=training.target),
        )
        trainer.update()
    assert len(read[1]) == 8 * EPOCHS and read[1] == read[4]


@only_in_all  # processes that wait for each other are slow on two cores
def test_two_processes_train_as_one(folders, tmp_path) -> None:
    one = run(folders, tmp_path / "one", batch_size=8, steps=4)
    torchrun(*words(folders, tmp_path / "two", batch_size=8, steps=4))
    two = curve(tmp_path / "two")
    assert [line["lr"] for line in two] == [line["lr"] for line in one]
    for name in ("regression", "cross_entropy"):
        for a, b in zip(one, two, strict=True):
            assert a[name] == pytest.approx(b[name], rel=1e-4)


def test_several_folders_of_tokens_are_one(folders, tmp_path) -> None:
    more = write_tokens(tmp_path / "more", "tiny", folders / "model", (4, 4), 12)
    training = open_training(folders, tmp_path / "out", tokens=f"{folders / 'tokens'},{more}")
    assert len(training.trainer.images) + len(training.evaluation.held) == 36
    training.trainer.update()
    other = write_tokens(tmp_path / "other", "llamagen", folders / "model", (4, 4), 12)
    with pytest.raises(SettingsError, match="--tokens.*other: its model is 'llamagen'"):
        open_training(folders, tmp_path / "out", tokens=f"{folders / 'tokens'},{other}")


def test_folders_that_were_sampled_otherwise_are_noted(folders, tmp_path, capsys) -> None:
    plain, other = (tmp_path / name for name in ("plain", "other"))
    for folder, law in ((plain, {"cfg": 3.0}), (other, {"cfg": 5.0, "top_k": 7})):
        write_tokens(folder, "tiny", folders / "model", (4, 4), 8)
        about = json.loads((folder / "about.json").read_text())
        (folder / "about.json").write_text(json.dumps(about | {"law": law}))
    joined = ",".join(map(str, (folders / "tokens", plain, other)))
    run(folders, tmp_path / "out", tokens=joined, steps=1, cfg=3, top_k=9)
    said = capsys.readouterr().err
    assert f"note: {other} was sampled with --cfg 5.0, not 3.0, --top_k 7, not 9" in said
    assert said.count("was sampled with") == 1


@pytest.mark.parametrize("model", LAYOUTS if ALL else ["tiny", "janus_pro"])
def test_an_exported_drafter_decodes_what_ar_decodes(model, tmp_path, monkeypatch) -> None:
    put_llamagen(monkeypatch, "llamagen", 4)
    folder = SMALL[model].write(tmp_path)
    grid = (4, 6) if model == "lumina_mgpt" else (4, 4)
    write_tokens(tmp_path / "tokens", model, folder, grid, 8)
    out, layers = tmp_path / "out", 1 + (model == "tiny")
    more = {"layers": layers, "steps": 2, "holdout": 2, "eval_images": 1} | LAYOUTS[model]
    run(tmp_path, out, model=model, model_path=folder, **more)
    decoding, levels = evaluation(out)["decoding"], evaluation(out)["levels"]
    assert decoding["identical"] == decoding["images"] == 1 and decoding["tau"] >= 1
    config = json.loads((out / "drafter/config.json").read_text())
    assert (config["num_hidden_layers"], config["attention_dropout"]) == (layers, 0.0)
    assert len(levels) == 8
    for level in levels:
        assert 0 < level["total_variation"] < 1
        assert level["topk"]["hit_1"] <= level["topk"]["hit_10"]
    if model == "tiny":
        assert_drafts_exactly(folder, out / "drafter", "adt")


def test_a_start_begins_with_its_weights_and_layers(folders, tmp_path) -> None:
    start = folders / "model" / "drafter"
    stored = load_file(start / "model.safetensors")
    for enlarged in (True, False):
        more = {"start_from": start, "enlarge_embeddings": enlarged}
        training = open_training(folders, tmp_path / "a", **more)
        scale = embedding_scale(training.settings, training.target, training.embedding)
        export(training.trainer.head, {}, tmp_path / "written", training.embedding, scale)
        for name, weights in load_file(tmp_path / "written" / "model.safetensors").items():
            torch.testing.assert_close(weights.float(), stored[name].float(), rtol=2e-3, atol=1e-6)
    losses = [open_training(folders, tmp_path / "b", **more).trainer.update()[0, 0].item()
              for more in ({}, {"start_from": start})]  # fmt: skip
    assert losses[1] < losses[0], "the fixture's drafter is its target's kin"
    with pytest.raises(SettingsError, match="--layers: expected 1, as --start_from has, got 2"):
        open_training(folders, tmp_path / "c", start_from=start, layers=2)


def test_a_start_keeps_its_own_embedding(folders, tmp_path) -> None:
    """So does a resume. This one is the opposite of the original, and is read as that is."""
    own = Path(shutil.copytree(folders / "model" / "drafter", tmp_path / "own"))
    held = load_file(own / "model.safetensors")
    held["fc.weight"][:, : len(held["fc.weight"])] *= -1
    opposite = held | {"embed_tokens.weight": -held["embed_tokens.weight"]}
    save_file(opposite, own / "model.safetensors", {"format": "pt"})
    starts = folders / "model" / "drafter", own
    one, other = (open_training(folders, tmp_path, start_from=start) for start in starts)
    assert torch.equal(one.trainer.update(), other.trainer.update())
    run(folders, tmp_path, start_from=own)
    written = load_file(tmp_path / "drafter" / "model.safetensors")["embed_tokens.weight"]
    assert torch.equal(written, opposite["embed_tokens.weight"].half())
    run(folders, tmp_path, start_from=own)
    save_file(held, own / "model.safetensors", {"format": "pt"})
    with pytest.raises(SettingsError, match="--start_from: expected a drafter with the embedding"):
        open_training(folders, tmp_path, start_from=own).run()


def test_flags_change_what_is_learnt(folders, tmp_path) -> None:
    changes = [{}, {"depths": 1}, {"alignment": "shifted"}, {"feature_noise": 0}, {"cfg": 1},
               {"guidance_aware": False}, {"seed": 1}, {"enlarge_embeddings": False}]  # fmt: skip
    runs = (open_training(folders, tmp_path, steps=1, **more) for more in changes)
    losses = {run.trainer.update().mean().item() for run in runs}
    assert len(losses) == len(changes)
    assert open_training(folders, tmp_path, depths=3).trainer.update().shape == (3, 3)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"depths": 9}, "--depths: expected a whole number from 1 to 8, got 9"),
        ({"accumulate": 3}, "--accumulate: expected a divisor of --batch_size, which is 4, got"),
        ({"holdout": 24}, "--holdout: found 24 images"),
        ({"train_images": 24}, "--train_images: found 24 images"),
        ({"eval_method": "ar"}, "--eval_method: expected a method that has a drafter, got 'ar'"),
        ({"eval_method": "best"}, "recipe.yaml, got 'best'"),
        ({"start_from": "nowhere"}, "or owner/name, got a path that does not exist"),
        ({"tokens": "nowhere"}, "--tokens: expected a folder with about.json, which extract"),
        ({"target_size": "64"}, "--target_size: '64' works only with --model lumina"),
        ({"alignment": "both"}, "--alignment: expected inference or shifted, got 'both'"),
        ({"target_layers": "2,1"}, "--target_layers: expected numbers of layers from 1"),
        ({"target_layers": "a"}, "--target_layers: expected numbers of layers from 1"),
        ({"target_layers": "1,2"}, "target_layers: expected numbers from 1 to 1, rising, got"),
        ({**BLOCK, "guidance_aware": False}, "--guidance_aware: expected on with --drafter block"),
        ({**BLOCK, "alignment": "shifted"}, "--alignment: expected inference with --drafter block"),
        ({**BLOCK, "agreement": "overlap"}, "--agreement: expected noise with --drafter block"),
        ({**BLOCK, "cache_features": "x"}, "--cache_features: expected off with --drafter block"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_used(changed, message, folders, tmp_path, capsys) -> None:
    assert main.main(words(folders, tmp_path / "out", **changed)) == 2
    assert message in capsys.readouterr().err


def test_tokens_of_another_model_checkpoint_or_grid_are_refused(folders, tmp_path, capsys) -> None:
    other = write_checkpoint(tmp_path / "other", seed=5)
    cases = [("tiny", other, (4, 4), "the checkpoint"),
             ("anole", folders / "model", (4, 4), "the model 'tiny'"),
             ("tiny", folders / "model", (5, 4), "the rows 4; these have 5")]  # fmt: skip
    for number, (model, checkpoint, grid, message) in enumerate(cases):
        tokens = write_tokens(tmp_path / f"tokens{number}", model, checkpoint, grid, 8)
        assert main.main(words(folders, tmp_path / "out", tokens=tokens)) == 2
        error = capsys.readouterr().err.splitlines()[-1]
        assert error.startswith("error: --tokens: ") and message in error


def test_tokens_of_another_codec_are_refused(folders, tmp_path, capsys) -> None:
    """Those of pictures: the target's own samples are codes of its codec."""
    tokens, out = tmp_path / "tokens", tmp_path / "out"
    shutil.copytree(folders / "tokens", tokens)
    about = json.loads((tokens / "about.json").read_text())
    files = {"model_path": "sha256:1", "tokenizer_path": "sha256:2"}  # as of another folder
    for origin, code in (("own", 0), ("images", 2)):
        about |= {"origin": origin, "settings": files}
        (tokens / "about.json").write_text(json.dumps(about))
        assert main.main([*words(folders, out, tokens=tokens), "--dry_run"]) == code
    assert "--tokens: expected codes of the model's own image codec" in capsys.readouterr().err


def test_a_codec_is_the_same_by_its_flag_and_beside_the_model(folders, tmp_path) -> None:
    home = tmp_path / "home"
    shutil.copytree(folders, home)
    codec = shutil.copytree(home / "model" / "tokenizer", home / "chameleon" / "tokenizer")
    path = home / "tokens" / "about.json"
    given = {"model": "tiny", "model_path": home / "model", "tokenizer_path": codec}
    images = {"origin": "images", "settings": made_of(given).files}
    path.write_text(json.dumps(json.loads(path.read_text()) | images))
    for there, code in (("chameleon", 0), ("elsewhere", 2)):
        (home / "chameleon").rename(home / there)
        assert main.main([*words(home, tmp_path / "out"), "--dry_run"]) == code


def test_precision_is_the_drafters_own(folders, tmp_path) -> None:
    """bf16 rounds the target's products, too."""
    settings = train_settings(flags(folders, tmp_path, precision="bf16"))
    assert (settings.precision, settings.engine.dtype) == ("bf16", "fp32")
    rounded, exact = (
        open_training(folders, tmp_path, precision=name).trainer for name in ("bf16", "fp32")
    )
    features, expected = (trainer.lessons.rows([0, 1]).features for trainer in (rounded, exact))
    difference = (features - expected).abs().max() / expected.abs().max()
    assert features.dtype == torch.float32 and 1e-5 < difference < 0.05
    parts, expected = rounded.update(), exact.update()
    assert not torch.equal(parts, expected)
    torch.testing.assert_close(parts, expected, rtol=0.05, atol=0.01)


def test_the_best_drafter_is_kept(folders, tmp_path, capsys) -> None:
    run(folders, tmp_path, steps=2)
    path, weights = tmp_path / "best" / "evaluation.json", "drafter/model.safetensors"
    first = (tmp_path / weights).read_bytes()
    assert (tmp_path / "best" / weights).read_bytes() == first
    figures = json.loads(path.read_text())
    figures["levels"][0]["total_variation"] = 0.0  # none comes nearer
    path.write_text(json.dumps(figures | {"step": 1}))
    (tmp_path / "evaluation.json").unlink()
    capsys.readouterr()
    run(folders, tmp_path, steps=2)
    assert json.loads(path.read_text()) == figures | {"step": 1}
    said = f"nearer to the target was the drafter of step 1, in {tmp_path / 'best'}"
    assert said in capsys.readouterr().out
    (tmp_path / "checkpoint" / "state.pt").unlink()
    run(folders, tmp_path, steps=2, lr=1e-2)
    assert json.loads(path.read_text())["step"] == 2, "of the new training"


@pytest.fixture
def kept(tmp_path) -> Evaluation:
    """An evaluation whose best drafter is there, with a file of the user's beside it."""
    drafter = tmp_path / "best" / "drafter"
    drafter.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "../notes.txt"):
        (drafter / name).write_text("old")
    figures = {"step": 1, "levels": [{"total_variation": 0.5}]}
    (tmp_path / "best" / "evaluation.json").write_text(json.dumps(figures))
    return Evaluation(SimpleNamespace(folder=tmp_path), Mock(), Mock(), Mock(), [])


def test_a_new_training_removes_only_what_a_training_wrote(kept, tmp_path) -> None:
    drafter = tmp_path / "best" / "drafter"
    for left in ([], ["config.json"]):  # without figures the drafter is the user's
        kept.forget()
        files = [path.name for path in (tmp_path / "best").rglob("*") if path.is_file()]
        assert sorted(files) == [*left, "notes.txt"]
        (drafter / "config.json").write_text("own")


def test_a_dry_run_fetches_no_model(folders, tmp_path, monkeypatch, capsys) -> None:
    def snapshot(path: str, local_files_only: bool, ignore_patterns: list[str]) -> str:
        assert local_files_only
        raise LocalEntryNotFoundError("x")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    assert main.main([*words(folders, tmp_path, model_path="me/none"), "--dry_run"]) == 2
    assert "`hf download me/none` fetches it" in capsys.readouterr().err


def test_a_training_does_not_replace_a_drafter_of_another_place(folders, tmp_path, capsys) -> None:
    """As with the model's own folder for its output."""
    shutil.copytree(folders / "model" / "drafter", tmp_path / "drafter")
    before = (tmp_path / "drafter" / "model.safetensors").read_bytes()
    assert main.main(words(folders, tmp_path, steps=1)) == 2
    assert "--output_dir: expected a folder without another drafter" in capsys.readouterr().err
    assert (tmp_path / "drafter" / "model.safetensors").read_bytes() == before


def test_a_kill_leaves_no_figures_of_other_weights(kept, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("runs.training.evaluation.shutil.copytree", Mock(side_effect=SystemExit))
    with pytest.raises(SystemExit):
        kept._keep_best(tmp_path, {"step": 2, "levels": [{"total_variation": 0.25}]})
    assert not (tmp_path / "best" / "evaluation.json").exists()


def test_the_last_line_says_what_the_drafter_reaches(folders, tmp_path, capsys) -> None:
    out = tmp_path / "my run"
    run(folders, out, steps=1, eval_images=1)
    drafter, path = out / "drafter", out / "evaluation.json"
    told = rf"the drafter is in {drafter}: tau \d\.\d\d, speed-up \d\.\d\d( \(!\))? with adt on "
    told += r"1 image \(jacobi, which needs no drafter: tau \d\.\d\d\); use it with "
    told += rf"--drafter_path '{drafter}'"
    *lines, last = capsys.readouterr().out.splitlines()  # with doubts on a busy machine
    assert re.fullmatch(told, last)
    words = (
        r"step 1: held-out loss \d\.\d{4}, TV 0\.\d{3}, hit 0\.\d\d, "
        r"tau \d\.\d\d \(jacobi \d\.\d\d\), speed-up \d\.\d\d.*"
    )
    assert any(re.fullmatch(words, line) for line in lines), "the raw figures are in the file"
    figures = json.loads(path.read_text())
    figures["decoding"] |= {"tau": 1.5, "speedup": 1.7, "doubts": ["it waited"]}
    path.write_text(json.dumps(figures))
    run(folders, out, steps=1, eval_images=1)
    *_, doubt, last = capsys.readouterr().out.splitlines()
    assert doubt == "(!) it waited" and ": tau 1.50, speed-up 1.70 (!) with adt" in last


def test_an_evaluation_decodes_by_the_kernels_of_a_benchmark(
    folders, tmp_path, monkeypatch
) -> None:
    """On the same weights; the updates after it run by torch's."""
    training, found = open_training(folders, tmp_path, steps=1, eval_images=1), []

    def kernels(*networks: torch.nn.Module) -> None:
        networks[0].blocks.run = lambda *given: (found.append(networks), run_by_torch(*given))[1]

    monkeypatch.setattr("runs.training.evaluation.kernels_for", lambda _: kernels)
    training.run()
    (decoded, head), own = found[0], training.target.transformer
    assert decoded.embedding.weight is own.embedding.weight and head is not training.trainer.head
    assert own.blocks.run is run_by_torch


@pytest.mark.parametrize("flag", ["output_dir", "cache_features"])
def test_a_folder_that_is_in_use_is_refused(flag, folders, tmp_path, capsys) -> None:
    with lock(tmp_path / ".lock"):
        assert main.main(words(folders, tmp_path / "out", **{flag: tmp_path})) == 2
    assert f"--{flag}: expected a folder that no other" in capsys.readouterr().err


def test_training_brings_the_distributions_together(folders, tmp_path) -> None:
    settings = {"lr": 1e-2, "batch_size": 10, "log_every": 40, "ema": 0.9}
    distances = []
    for steps in (1, 10):
        run(folders, tmp_path / str(steps), steps=steps, **settings)
        levels = evaluation(tmp_path / str(steps))["levels"]
        distances.append(levels[0]["total_variation"])
    assert distances[1] < distances[0] - 0.01


def test_a_head_learns_to_read_hidden_states(tmp_path) -> None:
    """At first it is the head that it began as; trained, it drafts in trees and windows."""
    write_checkpoint(tmp_path / "model", Sizes(layers=3))
    write_tokens(tmp_path / "tokens", "tiny", tmp_path / "model", (4, 4))
    more = {"start_from": tmp_path / "model" / "drafter", "lr": 3e-3}
    wide = more | {"target_layers": "1,2", "cache_features": tmp_path / "wide"}
    first, plain = (
        open_training(tmp_path, tmp_path / name, **each).trainer.update()
        for name, each in (("first", wide), ("plain", more))
    )
    torch.testing.assert_close(first, plain, rtol=1e-3, atol=1e-4)  # the cache has 16 bits
    run(tmp_path, tmp_path / "out", **wide | {"steps": 5, "drafter": "eagle"})
    drafter = tmp_path / "out" / "drafter"
    assert json.loads((drafter / "config.json").read_text())["target_layers"] == [1, 2]
    weight = load_file(drafter / "model.safetensors")["states.weight"]
    assert weight.shape == (32, 64) and weight.abs().mean() > 1e-3
    assert_drafts_exactly(tmp_path / "model", drafter, "adt", "block", "eagle_recall")
