"""`train_drafter` on small checkpoints: what it learns, writes and refuses; resumption.

One line names damaged files and full disks, and nothing is lost.
"""

import json
import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from browser import only_in_all
from damage import Damage, a_folder, content, cut, fill_disk
from fakes import codes
from families import SMALL
from ran import torchrun, without_progress
from safetensors.torch import load_file, save_file
from small import Sizes, small_settings, write_checkpoint
from small_llamagen import put_llamagen

import main
from commands.train_drafter import train_settings
from configs.fields import SettingsError
from configs.methods import MethodSettings
from decoding.images import Job
from drafters.training.features import cached
from drafters.training.heads import embedding_scale, export
from drafters.training.shards import Example, ShardWriter
from models.transformer import run_by_torch
from runs.session import open_session, open_target
from runs.training.train import Training, read_tokens
from support.durable import lock
from support.json_files import numbered_lines
from support.processes import ALONE, Processes
from support.progress import Progress
from support.provenance import checkpoint_id

CAPTIONS = ["a cat", "two red dogs on the mat", "a dog", "three cats and a blue mat"]


def write_tokens(
    folder: Path, model: str, checkpoint: Path, grid: tuple[int, int], images: int = 24
) -> Path:
    """Random codes for captions of different lengths."""
    about = {"model": model, "checkpoint": checkpoint_id(checkpoint), "rows": grid[0],
             "columns": grid[1], "vocab": 24, "width": 0, "height": 0, "origin": "own",
             "law": None, "settings": {}}  # fmt: skip
    writer = ShardWriter(folder, about, size=7)
    generator = torch.Generator().manual_seed(0)
    for number in range(images):
        codes = torch.randint(24, (grid[0] * grid[1],), generator=generator)
        caption = f"{CAPTIONS[number % 4]} {number // 4}"
        writer.add(Example(f"{number:03d}", caption, codes.int(), number))
    writer.close()
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("train")
    write_checkpoint(root / "model")
    write_tokens(root / "tokens", "tiny", root / "model", (4, 4))
    return root


def flags(folders: Path, out: Path, **more: object) -> dict[str, str]:
    base = {"model_path": folders / "model", "tokens": folders / "tokens", "output_dir": out,
            "device": "cpu", "steps": 6, "batch_size": 4, "holdout": 4, "eval_images": 0,
            "log_every": 1}  # fmt: skip
    return {name: str(value) for name, value in (base | more).items()}


def words(folders: Path, out: Path, **more: object) -> list[str]:
    given = flags(folders, out, **more).items()
    return ["train_drafter", *(f"--{name}={value}" for name, value in given)]


def open_training(
    folders: Path, out: Path, processes: Processes = ALONE, **more: object
) -> Training:
    settings = train_settings(flags(folders, out, **more))
    tokens, progress = read_tokens(settings), Progress("training")
    return Training(settings, open_target(settings.engine), tokens, processes, progress)


def run(folders: Path, out: Path, **more: object) -> list[dict]:
    """Train; the lines of the log without what differs between two runs."""
    assert main.main(words(folders, out, **more)) == 0
    return curve(out)


def curve(out: Path) -> list[dict]:
    """The lines of the log that losses are in, without times."""
    kept = ("step", "loss", "regression", "cross_entropy", "lr")
    lines = (line for _, line in numbered_lines(out / "log.jsonl", "step"))
    return [{name: line[name] for name in kept} for line in lines if "loss" in line]


def evaluation(out: Path) -> dict:
    return json.loads((out / "evaluation.json").read_text())


@pytest.mark.parametrize(
    ("weights", "part", "share"),
    [({}, 0, 0.6), ({"agreement_weight": 20, "ce_weight": 0}, 2, 0.9)],
    ids=["regression", "disagreement"],
)
def test_one_batch_is_learnt(weights, part, share, folders, tmp_path) -> None:
    """Eight images, the same in every batch."""
    more = {"steps": 40, "lr": 1e-2, "feature_noise": 0, "batch_size": 8, "holdout": 16} | weights
    training = open_training(folders, tmp_path, **more)
    losses = [training.trainer.update()[:, part].mean().item() for _ in range(40)]
    assert losses[-1] < share * losses[0]


def test_a_resumed_run_is_the_uninterrupted_one(folders, tmp_path, monkeypatch) -> None:
    """Interrupted between two lines of the log, after a line that is made again."""
    whole = run(folders, tmp_path / "whole", save_every=2, log_every=3)
    training = open_training(folders, tmp_path / "part", save_every=2, log_every=3)

    def stop() -> None:
        if training.trainer.step == 4:
            raise KeyboardInterrupt

    save = training._save
    monkeypatch.setattr(training, "_save", lambda: (save(), stop()))
    with pytest.raises(KeyboardInterrupt):
        training.run()
    with (tmp_path / "part" / "log.jsonl").open("a") as log:
        log.write('{"step": 5, "loss": 0}\n')
    assert run(folders, tmp_path / "part", save_every=2, log_every=3) == whole and len(whole) == 2
    resumed, expected = (
        (tmp_path / name / "drafter/model.safetensors").read_bytes() for name in ("part", "whole")
    )
    assert resumed == expected


def test_the_log_counts_updates_over_their_own_time(folders, tmp_path, monkeypatch) -> None:
    """Four images a second: not those of an earlier command, and no evaluation's time."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr("runs.training.train.time.perf_counter", lambda: clock.now)

    def pass_time(seconds: float) -> None:
        clock.now += seconds

    def open_timed() -> Training:
        more = {"steps": 6, "log_every": 4, "save_every": 2, "eval_every": 3}
        training = open_training(folders, tmp_path, **more)
        update, evaluate = training.trainer.update, training._evaluate
        monkeypatch.setattr(training.trainer, "update", lambda: (update(), pass_time(1))[0])
        monkeypatch.setattr(training, "_evaluate", lambda: (evaluate(), pass_time(100)))
        return training

    training = open_timed()
    training.recent = [training.trainer.update() for _ in range(2)]
    training._save()
    open_timed().run()
    lines = [line for _, line in numbered_lines(tmp_path / "log.jsonl", "step") if "loss" in line]
    figures = [[line[name] for name in ("images_per_second", "seconds_left")] for line in lines]
    assert figures == [[4, 2], [4, 0]]


def test_the_learning_rate_may_rise_to_the_end(folders, tmp_path) -> None:
    more = {"warmup": 1, "steps": 2, "lr": 1e-3}
    assert [line["lr"] for line in run(folders, tmp_path, **more)] == [5e-4, 1e-3]


BLOCK = {"drafter": "block", "ce_weight": 0.5, "agreement_weight": 1}


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
    more = {**BLOCK, "steps": 2, "holdout": 2, "batch_size": 2, "start_from": start}
    whole = run(folders, tmp_path / "whole", **more)
    training = open_training(folders, tmp_path / "part", **more)
    training.trainer.update()
    training._save()
    assert run(folders, tmp_path / "part", **more)[-1] == whole[-1]
    drafter, levels = tmp_path / "whole" / "drafter", evaluation(tmp_path / "whole")["levels"]
    assert json.loads((drafter / "config.json").read_text())["drafter"] == "block"
    assert len(levels) > 4 and all(0 <= line["total_variation"] <= 1 for line in levels)
    assert_drafts_exactly(folders / "model", drafter, "block", "eagle_recall")


def assert_drafts_exactly(model: Path, drafter: Path, *methods: str) -> None:
    """A user loads the drafter, and images are those of `ar`."""
    settings = replace(small_settings(model), drafter_path=str(drafter))
    session = open_session(settings.with_method(MethodSettings(methods[0])))
    jobs = [Job(str(n), text, n + 3) for n, text in enumerate(CAPTIONS[:3])]
    plain = codes(session.open_engine(MethodSettings("ar"), images=2), jobs)
    for name in methods:
        assert codes(session.open_engine(MethodSettings(name), images=2), jobs) == plain


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_parts_of_a_batch_add_up(optimizer, folders, tmp_path) -> None:
    whole = open_training(folders, tmp_path, batch_size=8, optimizer=optimizer)
    parts = open_training(folders, tmp_path, batch_size=8, accumulate=4, optimizer=optimizer)
    for _ in range(3):
        pair = whole.trainer.update(), parts.trainer.update()
        torch.testing.assert_close(*pair, rtol=1e-4, atol=1e-6)


def test_parts_of_a_batch_read_the_same_rounds(folders, tmp_path) -> None:
    """As two processes do. The rounds are numbers here: rounding may change real ones."""
    read = []
    for accumulate in (1, 4):
        trainer = open_training(
            folders, tmp_path, batch_size=8, accumulate=accumulate, **BLOCK
        ).trainer
        trainer.rows = lambda images, keep: [
            SimpleNamespace(passes=keep(place, [(image, number) for number in range(40)]))
            for place, image in enumerate(images)
        ]
        picked: list[list[tuple[int, int]]] = []
        trainer.loss = lambda _, rows, picks, to=picked: to.extend(picks)
        for indices in trainer._shares():
            trainer._loss(indices, 0)
        read.append(picked)
    assert len(read[0]) == 8 and read[0] == read[1]


@only_in_all  # processes that wait for each other are slow on two cores
def test_two_processes_train_as_one(folders, tmp_path) -> None:
    one = run(folders, tmp_path / "one", batch_size=8, steps=4)
    torchrun(*words(folders, tmp_path / "two", batch_size=8, steps=4))
    two = curve(tmp_path / "two")
    assert [line["lr"] for line in two] == [line["lr"] for line in one]
    for name in ("regression", "cross_entropy"):
        for a, b in zip(one, two, strict=True):
            assert a[name] == pytest.approx(b[name], rel=1e-4)


def test_processes_that_do_not_share_a_folder_are_refused(folders, tmp_path) -> None:
    """As those on several machines, each with a disk of its own; so are those of other tokens."""

    def beside(seen: object, rank: int = 1) -> Processes:
        return Processes(rank, 2, gather=lambda own: [
            own, seen if type(own) is type(seen) else own])  # fmt: skip

    cache = tmp_path / "cache"
    with pytest.raises(SettingsError, match="--tokens: expected the same tokens in all processes"):
        open_training(folders, tmp_path / "out", beside("other"), cache_features=cache)
    assert not cache.exists(), "features of other tokens would stay in it"
    training = open_training(folders, tmp_path / "out", beside((2, False)))
    with pytest.raises(SettingsError, match="--output_dir: expected a folder that all processes"):
        training._resume()

    def fill(processes: Processes, **source: str) -> None:
        cached(training.trainer.rows, [0], cache, source, processes, training.progress)

    for processes in (beside(True), beside([0, 1], 0)):
        with pytest.raises(SettingsError, match="--cache_features: expected a folder that all pr"):
            fill(processes)
    with pytest.raises(SettingsError, match="--cache_features: .*this one is of tokens None"):
        fill(beside(None), tokens="other")


def test_cached_features_give_the_same_losses(folders, tmp_path) -> None:
    cache = tmp_path / "features"
    fresh = run(folders, tmp_path / "fresh", steps=3)
    kept = run(folders, tmp_path / "kept", steps=3, cache_features=cache)
    for a, b in zip(fresh, kept, strict=True):
        expected = a["regression"] + a["cross_entropy"]
        assert b["regression"] + b["cross_entropy"] == pytest.approx(expected, rel=2e-3)
    times = {path: path.stat().st_mtime_ns for path in cache.glob("[!.]*")}
    assert run(folders, tmp_path / "again", steps=3, cache_features=cache) == kept
    assert len(times) == 3, "about.json and two shards"
    again = {path: path.stat().st_mtime_ns for path in cache.glob("[!.]*")}
    assert again == times, "nothing is computed again"


def test_a_cache_holds_the_images_that_are_used(folders, tmp_path, capsys) -> None:
    """Others are added later, to the same files, and none is computed again."""
    cache = {"cache_features": tmp_path / "cache"}
    few = run(folders, tmp_path / "few", train_images=4, **cache)
    said = capsys.readouterr().err
    assert "training a drafter on 4 images of " in said and "features of 8 images into " in said
    run(folders, tmp_path / "all", **cache)
    assert "features of 16 images into " in capsys.readouterr().err
    assert run(folders, tmp_path / "again", train_images=4, **cache) == few
    assert "features of" not in capsys.readouterr().err
    held = [name for path in cache["cache_features"].glob("rows-*") for name in load_file(path)]
    assert {f"{image}.features" for image in range(24)} <= {*held} and len(held) == 24 * 4


def test_a_cache_without_room_or_of_other_tokens_is_refused(
    folders, tmp_path, monkeypatch, capsys
) -> None:
    usage = "drafters.training.features.shutil.disk_usage"
    monkeypatch.setattr(usage, lambda _: SimpleNamespace(free=1000))
    with pytest.raises(SettingsError, match="--cache_features.*bytes free"):
        open_training(folders, tmp_path / "out", cache_features=tmp_path / "cache")
    prompts = [len(f"{CAPTIONS[n % 4]} {n // 4}") + 3 for n in range(24)]
    assert f"{2 * 2 * 32 * sum(n + 15 for n in prompts):,} bytes" in capsys.readouterr().err
    monkeypatch.undo()
    other = write_tokens(tmp_path / "tokens", "tiny", folders / "model", (4, 4), 12)
    open_training(folders, tmp_path / "out", cache_features=tmp_path / "cache")
    cases = [
        ({"tokens": other}, "of tokens"),
        ({"precision": "bf16"}, "of precision 'fp32', not 'bf16'"),
        ({"target_layers": "1"}, r"of layers None, not \[1\]"),
    ]
    for changed, message in cases:
        with pytest.raises(SettingsError, match=f"--cache_features.*{message}"):
            open_training(folders, tmp_path / "out", cache_features=tmp_path / "cache", **changed)


def test_a_cache_of_another_negative_prompt_is_refused(tmp_path) -> None:
    """Emu3's unconditional row holds it, so features differ."""
    folder = SMALL["emu3"].write(tmp_path)
    write_tokens(tmp_path / "tokens", "emu3", folder, (4, 4), 8)
    more = {"model": "emu3", "model_path": folder, "cache_features": tmp_path / "cache"}
    more |= {"holdout": 2, "batch_size": 2} | LAYOUTS["emu3"]
    open_training(tmp_path, tmp_path / "out", **more, negative_prompt="blurry")
    with pytest.raises(SettingsError, match="negative_prompt 'blurry', not 'dark'"):
        open_training(tmp_path, tmp_path / "out", **more, negative_prompt="dark")


def test_a_training_goes_on_with_its_own_images_only(folders, tmp_path) -> None:
    """More images change which are held out, and the order of all others."""
    tokens = write_tokens(tmp_path / "tokens", "tiny", folders / "model", (4, 4), 12)
    more = {"tokens": tokens, "holdout": 2, "batch_size": 2}
    training = open_training(folders, tmp_path / "out", **more)
    training.trainer.update()
    training._save()
    open_training(folders, tmp_path / "out", **more)._resume()
    shutil.rmtree(tokens)
    write_tokens(tokens, "tiny", folders / "model", (4, 4), 24)
    with pytest.raises(SettingsError, match="--tokens: expected the images .* --start_from"):
        open_training(folders, tmp_path / "out", **more)._resume()


def test_a_training_goes_on_with_the_same_files_at_other_places(folders, tmp_path) -> None:
    """Not with other files at the same places, but a start may have changed since."""
    out, old, new = (tmp_path / name for name in ("out", "old", "new"))

    def resume(root: Path, start: str | Path) -> Training:
        more = {"start_from": start, "tokenizer_path": root / "model" / "tokenizer"}
        training = open_training(root, out, **more)
        training._resume()
        return training

    shutil.copytree(folders, old)
    drafter = old / "model" / "drafter"
    resume(old, drafter)._save()
    weights = drafter / "model.safetensors"
    save_file(load_file(weights), weights, {"format": "another"})
    resume(old, drafter)
    shutil.rmtree(old)
    shutil.copytree(folders, new)
    drafter = new / "model" / "drafter"
    training = resume(new, drafter)
    with pytest.raises(SettingsError, match="--start_from: expected the files that the checkpoint"):
        resume(new, write_checkpoint(tmp_path / "other", seed=5) / "drafter")
    state = torch.load(training.checkpoint)
    changed = state | {"files": state["files"] | {"tokenizer_path": "0"}}
    torch.save(changed, training.checkpoint)
    with pytest.raises(SettingsError, match="--tokenizer_path: expected the files that .* others"):
        resume(new, drafter)
    torch.save(state, training.checkpoint)
    resume(new, os.path.relpath(drafter))


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


LAYOUTS = {"tiny": {}, "lumina_mgpt": {"target_size": "96x64"}, "llamagen": {}, "janus_pro": {},
           "emu3": {"target_size": "32x32"}, "emu3_5": {"target_size": "64"}, "liquid": {},
           "lumina_mgpt2": {"target_size": "32"}}  # fmt: skip


@pytest.mark.parametrize("model", LAYOUTS)
def test_an_exported_drafter_decodes_what_ar_decodes(model, tmp_path, monkeypatch) -> None:
    put_llamagen(monkeypatch, "llamagen", 4)
    folder = SMALL[model].write(tmp_path)
    grid = (4, 6) if model == "lumina_mgpt" else (4, 4)
    write_tokens(tmp_path / "tokens", model, folder, grid, 8)
    out, layers = tmp_path / "out", 1 + (model == "tiny")
    more = {"layers": layers, "steps": 3, "holdout": 2, "eval_images": 2} | LAYOUTS[model]
    run(tmp_path, out, model=model, model_path=folder, **more)
    decoding, levels = evaluation(out)["decoding"], evaluation(out)["levels"]
    assert decoding["identical"] == decoding["images"] == 2 and decoding["tau"] >= 1
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
    other._save()
    other._evaluate()
    written = load_file(tmp_path / "drafter" / "model.safetensors")["embed_tokens.weight"]
    assert torch.equal(written, opposite["embed_tokens.weight"].half())
    open_training(folders, tmp_path, start_from=own)._resume()
    save_file(held, own / "model.safetensors", {"format": "pt"})
    with pytest.raises(SettingsError, match="--start_from: expected a drafter with the embedding"):
        open_training(folders, tmp_path, start_from=own)._resume()


def test_flags_change_what_is_learnt(folders, tmp_path) -> None:
    changes = [{}, {"depths": 1}, {"alignment": "shifted"}, {"feature_noise": 0}, {"cfg": 1},
               {"guidance_aware": False}, {"seed": 1}, {"enlarge_embeddings": False}]  # fmt: skip
    runs = (open_training(folders, tmp_path, steps=1, **more) for more in changes)
    losses = {run.trainer.update().mean().item() for run in runs}
    assert len(losses) == len(changes)
    assert open_training(folders, tmp_path, depths=3).trainer.update().shape == (3, 3)


def test_other_flags_on_resume_are_refused_by_name(folders, tmp_path, capsys) -> None:
    out = tmp_path / "my run"
    run(folders, out, steps=1)
    others = {"depths": 3, "batch_size": 8, "lr": 0.5, "alignment": "shifted", "cfg": 2.0}
    for flag, value in (others | {"steps": 3}).items():
        assert main.main(words(folders, out, **{"steps": 1, flag: value})) == 2
        said = capsys.readouterr().err
        assert f"--{flag}: expected " in said
        assert f", as the checkpoint in {out} has, got {value!r}." in said
    assert f"To train on, use --start_from '{out}/drafter'" in said


def test_a_training_that_needs_less_memory_goes_on(folders, tmp_path, monkeypatch, capsys) -> None:
    open_training(folders, tmp_path)._save()
    monkeypatch.setattr("drafters.training.trainer.Trainer.update", full := Mock())
    full.side_effect = torch.OutOfMemoryError("CUDA out of memory.")
    assert main.main(words(folders, tmp_path)) == 1
    said = capsys.readouterr().err
    assert "such as a larger --accumulate" in said and "--vq_device" not in said
    open_training(folders, tmp_path, accumulate=4)._resume()
    with pytest.raises(SettingsError, match="--batch_size: .* got 2. For less .*, --accumulate"):
        open_training(folders, tmp_path, batch_size=2)._resume()


def test_flags_that_a_resume_leaves_out_are_missed(folders, tmp_path) -> None:
    for flag, value in {"train_images": 4, "agreement": "overlap", "drafter": "block"}.items():
        open_training(folders, tmp_path / flag, **{flag: value})._save()
        with pytest.raises(SettingsError, match=f"--{flag}: expected {value!r}, as the checkpoint"):
            open_training(folders, tmp_path / flag)._resume()


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


def test_precision_is_the_drafters_own(folders, tmp_path) -> None:
    """bf16 rounds the target's products, too."""
    settings = train_settings(flags(folders, tmp_path, precision="bf16"))
    assert (settings.precision, settings.engine.dtype) == ("bf16", "fp32")
    rounded, exact = (
        open_training(folders, tmp_path, precision=name).trainer for name in ("bf16", "fp32")
    )
    features, expected = (trainer.rows([0, 1]).features for trainer in (rounded, exact))
    difference = (features - expected).abs().max() / expected.abs().max()
    assert features.dtype == torch.float32 and 1e-5 < difference < 0.05
    parts, expected = rounded.update(), exact.update()
    assert not torch.equal(parts, expected)
    torch.testing.assert_close(parts, expected, rtol=0.05, atol=0.01)


def test_a_drafter_is_evaluated_once_unless_it_was_interrupted_or_begun_again(
    folders, tmp_path
) -> None:
    run(folders, tmp_path, steps=2)
    path, drafter = tmp_path / "evaluation.json", tmp_path / "drafter" / "model.safetensors"
    first, written = (path.stat().st_mtime_ns, path.read_text()), drafter.read_bytes()
    run(folders, tmp_path, steps=2)
    assert path.stat().st_mtime_ns == first[0], "nothing is left to do"
    path.unlink()
    run(folders, tmp_path, steps=2)
    assert path.read_text() == first[1]
    shutil.rmtree(drafter.parent)
    run(folders, tmp_path, steps=2)
    assert drafter.read_bytes() == written
    run(folders, tmp_path, steps=2, eval_images=1, eval_method="eagle2")
    assert evaluation(tmp_path)["decoding"]["method"] == "eagle2"
    (tmp_path / "checkpoint" / "state.pt").unlink()
    run(folders, tmp_path, steps=2, lr=1e-2)
    assert drafter.read_bytes() != written


def test_a_killed_evaluation_is_made_up_for(folders, tmp_path, monkeypatch) -> None:
    more = {"steps": 5, "save_every": 2, "eval_every": 2}
    for step in (2, 4, 5):
        training = open_training(folders, tmp_path, **more)

        def stop(step: int = step, training: Training = training) -> None:
            if training.trainer.step == step:
                raise KeyboardInterrupt
            Training._evaluate(training)

        monkeypatch.setattr(training, "_evaluate", stop)
        with pytest.raises(KeyboardInterrupt):
            training.run()
    run(folders, tmp_path, **more)
    run(folders, tmp_path, **more)
    lines = [line for _, line in numbered_lines(tmp_path / "log.jsonl", "step")]
    assert [line["step"] for line in lines if "levels" in line] == [2, 4, 5]
    assert training.evaluation.done(4), "of an earlier checkpoint, no evaluation is missing"


def test_the_last_line_says_what_the_drafter_reaches(folders, tmp_path, capsys) -> None:
    out = tmp_path / "my run"
    run(folders, out, steps=1, eval_images=1)
    drafter, path = out / "drafter", out / "evaluation.json"
    told = rf"the drafter is in {drafter}: tau \d\.\d\d, speed-up \d\.\d\d( \(!\))? with adt on "
    told += rf"1 image; use it with --drafter_path '{drafter}'"
    assert re.fullmatch(told, capsys.readouterr().out.splitlines()[-1])
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
    training, found = open_training(folders, tmp_path, eval_images=1), []

    def kernels(*networks: torch.nn.Module) -> None:
        networks[0].blocks.run = lambda *given: (found.append(networks), run_by_torch(*given))[1]

    monkeypatch.setattr("runs.training.evaluation.kernels_for", lambda _: kernels)
    training._evaluate()
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
    for steps in (1, 30):
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
    run(tmp_path, tmp_path / "out", **wide | {"steps": 15, "drafter": "eagle"})
    drafter = tmp_path / "out" / "drafter"
    assert json.loads((drafter / "config.json").read_text())["target_layers"] == [1, 2]
    weight = load_file(drafter / "model.safetensors")["states.weight"]
    assert weight.shape == (32, 64) and weight.abs().mean() > 1e-3
    assert_drafts_exactly(tmp_path / "model", drafter, "adt", "eagle2", "block", "eagle_recall")


@pytest.fixture(scope="module")
def trained(folders, tmp_path_factory) -> Path:
    """A training of two steps with its cache of features."""
    out = tmp_path_factory.mktemp("trained")
    run(folders, out / "out", steps=2, save_every=1, cache_features=out / "cache")
    return out


@pytest.fixture
def copy(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "copy"))


def train(folders: Path, root: Path, capsys) -> tuple[int, str]:
    """Return the exit code and what was said on stderr, progress apart."""
    given = {"steps": 2, "save_every": 1, "cache_features": root / "cache"}
    code = main.main(words(folders, root / "out", **given))
    lines = without_progress(capsys.readouterr().err).splitlines()
    return code, "\n".join(line for line in lines if line.strip())


def state(**changed: object) -> Damage:
    def damage(root: Path) -> None:
        held = torch.load(root / STATE, weights_only=True) | changed
        held = {key: value for key, value in held.items() if value is not None}
        torch.save(held, root / STATE)

    return damage


STATE, LOG, EVALUATION = "out/checkpoint/state.pt", "out/log.jsonl", "out/evaluation.json"
CACHE = "cache/about.json"
FAULTS = {
    "a checkpoint of junk": (STATE, content(STATE, "junk")),
    "a checkpoint cut": (STATE, cut(STATE, 100)),
    "a checkpoint that is a list": (STATE, lambda root: torch.save([1], root / STATE)),
    "a checkpoint without settings": (STATE, state(settings=None)),
    "a checkpoint without weights": (STATE, state(weights=None)),
    "a checkpoint of other weights": (STATE, state(weights={"fc.weight": torch.ones(1)})),
    "a checkpoint of other optimizers": (STATE, state(optimizers=[])),
    "a log of text": (LOG, content(LOG, "hello\n{}\n\n")),
    "a log without steps": (LOG, content(LOG, '{"loss": 1}\n\n\n')),
    "a log in a folder": (LOG, a_folder(LOG)),
    "figures of junk": (EVALUATION, content(EVALUATION, "{")),
    "figures of another program": (EVALUATION, content(EVALUATION, '{"speed": []}')),
    "figures without settings": (EVALUATION, content(EVALUATION, '{"step": 2}')),
    "figures in a folder": (EVALUATION, a_folder(EVALUATION)),
    "a cache of another program": (CACHE, content(CACHE, "[]")),
    "a cache in a folder": (CACHE, a_folder(CACHE)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_damaged_files_are_named_in_one_line(folders, copy, capsys, fault):
    name, damage = FAULTS[fault]
    damage(copy)
    code, said = train(folders, copy, capsys)
    assert code == 2 and len(said.splitlines()) == 1
    assert said.startswith("error: ") and Path(name).name in said


@pytest.mark.parametrize("name", ["state.pt", "log.jsonl", "model.safetensors", "rows-00000"])
def test_a_full_disk_costs_at_most_the_steps_since_the_last_checkpoint(
    folders, trained, tmp_path, capsys, monkeypatch, name
):
    """The same command goes on, once there is space, to the same figures."""
    fill_disk(monkeypatch, name, turn=2 if name == "state.pt" else 1)
    code, said = train(folders, tmp_path, capsys)
    assert code == 1 and len(said.splitlines()) == 1
    assert said.startswith("error: ") and name in said and "No space left on device" in said
    monkeypatch.undo()
    assert train(folders, tmp_path, capsys)[0] == 0
    assert curve(tmp_path / "out") == curve(trained / "out")
