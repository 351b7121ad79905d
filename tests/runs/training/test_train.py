"""`train_drafter` on small checkpoints: what it learns, writes and refuses; resumption."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from browser import only_in_all
from safetensors.torch import load_file
from small import LUMINA, Sizes, write_checkpoint
from small_emu3 import write_emu3
from small_janus import write_janus
from small_liquid import write_liquid
from small_llamagen import llamagen_settings, open_llamagen, write_llamagen

import main
from configs.fields import SettingsError
from configs.methods import MethodSettings
from configs.schema import ROOT, RunSettings
from decoding.images import Job
from decoding.sampling import SamplingDistribution
from drafters.calibrations import Calibrations
from drafters.training.features import Cached
from drafters.training.heads import embedding_scale, export
from drafters.training.shard_writer import ShardWriter
from drafters.training.shards import Example
from runs.commands import train_settings
from runs.measure import measure
from runs.session import Session, open_session, open_target
from runs.training.train import Training, read_tokens
from support.crew import Crew
from support.durable import lock
from support.provenance import checkpoint_id

CAPTIONS = ["a cat", "two red dogs on the mat", "a dog", "three cats and a blue mat"]
CPU = torch.device("cpu")
pytestmark = pytest.mark.usefixtures("one_thread")


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
        writer.add(
            Example(f"{number:03d}", f"{CAPTIONS[number % 4]} {number // 4}", codes.int(), number)
        )
    writer.close()
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> Path:
    """A small tiny checkpoint `model` with `tokens`."""
    root = tmp_path_factory.mktemp("train")
    write_checkpoint(root / "model")
    write_tokens(root / "tokens", "tiny", root / "model", (4, 4))
    return root


def flags(folders: Path, out: Path, **more: object) -> dict[str, str]:
    base = {"model_path": folders / "model", "tokens": folders / "tokens", "output_dir": out,
            "device": "cpu", "steps": 6, "batch_size": 4, "holdout": 4, "eval_images": 0,
            "log_every": 1}  # fmt: skip
    return {name: str(value) for name, value in (base | more).items()}


def open_training(folders: Path, out: Path, **more: object) -> Training:
    settings = train_settings(flags(folders, out, **more))
    return Training(settings, open_target(settings.plain), read_tokens(settings), Crew(CPU))


def run(folders: Path, out: Path, **more: object) -> list[dict]:
    """Train; the lines of the log without what differs between two runs."""
    words = [f"--{name}={value}" for name, value in flags(folders, out, **more).items()]
    assert main.main(["train_drafter", *words]) == 0
    return curve(out)


def curve(out: Path) -> list[dict]:
    lines = map(json.loads, (out / "log.jsonl").read_text().splitlines())
    kept = ("step", "loss", "regression", "cross_entropy", "lr")
    return [{name: line[name] for name in kept} for line in lines if "loss" in line]


def test_one_batch_is_learnt(folders, tmp_path) -> None:
    """Twenty images, the same in every batch."""
    training = open_training(folders, tmp_path, steps=60, lr=1e-2, feature_noise=0, batch_size=20)
    losses = [training.lessons.update()[:, 0].mean().item() for _ in range(60)]
    assert losses[-1] < 0.6 * losses[0]


def test_choices_that_differ_are_a_loss_of_their_own(folders, tmp_path) -> None:
    """It falls when it alone is learnt, and is in the log when it has a weight."""
    training = open_training(
        folders, tmp_path / "a", steps=60, lr=1e-2, batch_size=20, agreement_weight=20, ce_weight=0
    )
    losses = [training.lessons.update()[:, 2].mean().item() for _ in range(60)]
    assert losses[-1] < 0.9 * losses[0]
    run(folders, tmp_path / "with", steps=1, agreement_weight=1)
    run(folders, tmp_path / "without", steps=1)
    lines = [
        json.loads((tmp_path / name / "log.jsonl").read_text().splitlines()[0])
        for name in ("with", "without")
    ]
    whole = (
        lines[0]["regression"][0] + 0.1 * lines[0]["cross_entropy"][0] + lines[0]["disagreement"][0]
    )
    assert "disagreement" not in lines[1] and whole == pytest.approx(lines[0]["loss"], rel=0.1)


def test_a_resumed_run_is_the_uninterrupted_one(folders, tmp_path, monkeypatch) -> None:
    """Interrupted between two lines of the log, after a line that is made again."""
    whole = run(folders, tmp_path / "whole", save_every=2, log_every=3)
    training = open_training(folders, tmp_path / "part", save_every=2, log_every=3)

    def stop() -> None:
        if training.lessons.step == 4:
            raise KeyboardInterrupt

    save = training._save
    monkeypatch.setattr(training, "_save", lambda: (save(), stop()))
    with pytest.raises(KeyboardInterrupt):
        training.run()
    with (tmp_path / "part" / "log.jsonl").open("a") as log:
        log.write('{"step": 5, "loss": 0}\n')
    assert run(folders, tmp_path / "part", save_every=2, log_every=3) == whole and len(whole) == 2
    found, expected = (
        load_file(tmp_path / name / "drafter/model.safetensors") for name in ("part", "whole")
    )
    assert all(torch.equal(found[key], expected[key]) for key in expected)


BLOCK = {"drafter": "block", "ce_weight": 0.5, "agreement_weight": 1}


def test_a_block_head_learns_in_rounds_of_its_own(folders, tmp_path) -> None:
    """Three captions, which it draws anew for every update."""
    more = {"steps": 25, "lr": 1e-2, "ema": 0, "batch_size": 3, "holdout": 21}
    training = open_training(folders, tmp_path, **BLOCK, **more)
    losses = [training.lessons.update() for _ in range(25)]
    first, last = (torch.stack(part).mean((0, 1)) for part in (losses[:4], losses[-4:]))
    assert (last < torch.tensor([0.7, 0.95, 0.95]) * first).all()


def test_a_block_drafter_is_resumed_written_and_drafts(folders, tmp_path) -> None:
    """From an EAGLE head; its folder drafts what ar draws, alone and as graft."""
    start = folders / "model" / "drafter"
    more = {**BLOCK, "steps": 2, "holdout": 2, "batch_size": 2, "start_from": start}
    whole = run(folders, tmp_path / "whole", **more)
    training = open_training(folders, tmp_path / "part", **more)
    training.lessons.update()
    training._save()
    assert run(folders, tmp_path / "part", **more)[-1] == whole[-1]
    found = json.loads((tmp_path / "whole" / "drafter" / "config.json").read_text())
    assert found["drafter"] == "block"
    levels = json.loads((tmp_path / "whole" / "evaluation.json").read_text())["levels"]
    assert len(levels) > 4 and all(0 <= line["total_variation"] <= 1 for line in levels)
    settings = RunSettings(
        prompt="-", model_path=str(folders / "model"), drafter_path=str(tmp_path / "whole/drafter"),
        device="cpu", dtype="fp64", method=MethodSettings(method="block", nodes=7),
    )  # fmt: skip
    session, jobs = open_session(settings), [Job("0", "a cat", 3), Job("1", "two dogs", 4)]
    graft = MethodSettings(method="eagle_recall", nodes=7)
    plain, *drafted = (
        measure(session.open_engine(method), jobs)
        for method in (MethodSettings(method="ar"), settings.method, graft)
    )
    for images in drafted:
        pairs = zip(plain.images, images.images, strict=True)
        assert all(torch.equal(a.codes, b.codes) for a, b in pairs)


def test_a_block_head_reads_both_guidance_rows(folders, tmp_path) -> None:
    with pytest.raises(SettingsError, match="--guidance_aware: found False; allowed: on with"):
        train_settings(flags(folders, tmp_path, drafter="block", guidance_aware=False))
    with pytest.raises(SettingsError, match="--alignment: found 'shifted'"):
        train_settings(flags(folders, tmp_path, drafter="block", alignment="shifted"))
    with pytest.raises(SettingsError, match="--cache_features: found '.*'; allowed: off with"):
        train_settings(flags(folders, tmp_path, drafter="block", cache_features=tmp_path))


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_parts_of_a_batch_add_up(optimizer, folders, tmp_path) -> None:
    whole = open_training(folders, tmp_path, batch_size=8, optimizer=optimizer)
    parts = open_training(folders, tmp_path, batch_size=8, accumulate=4, optimizer=optimizer)
    for _ in range(3):
        torch.testing.assert_close(
            whole.lessons.update(), parts.lessons.update(), rtol=1e-4, atol=1e-6
        )


@only_in_all  # processes that wait for each other are slow on two cores
def test_two_processes_train_as_one(folders, tmp_path) -> None:
    one = run(folders, tmp_path / "one", batch_size=8, steps=4)
    words = [
        f"--{name}={value}"
        for name, value in flags(folders, tmp_path / "two", batch_size=8, steps=4).items()
    ]
    launcher = [
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        "main.py",
        "train_drafter",
    ]
    done = subprocess.run(
        [sys.executable, *launcher, *words], cwd=ROOT, env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    two = curve(tmp_path / "two")
    assert [line["lr"] for line in two] == [line["lr"] for line in one]
    for name in ("regression", "cross_entropy"):
        for a, b in zip(one, two, strict=True):
            assert a[name] == pytest.approx(b[name], rel=1e-4)


def test_cached_features_give_the_same_losses(folders, tmp_path) -> None:
    cache = tmp_path / "features"
    fresh = run(folders, tmp_path / "fresh", steps=3)
    kept = run(folders, tmp_path / "kept", steps=3, cache_features=cache)
    for a, b in zip(fresh, kept, strict=True):
        assert a["regression"] + a["cross_entropy"] == pytest.approx(
            b["regression"] + b["cross_entropy"], rel=2e-3
        )
    times = {path: path.stat().st_mtime_ns for path in cache.iterdir()}
    assert (
        len(times) == 3 and run(folders, tmp_path / "again", steps=3, cache_features=cache) == kept
    )
    assert {path: path.stat().st_mtime_ns for path in cache.iterdir()} == times, (
        "nothing is computed again"
    )


def test_a_cache_without_room_or_of_other_tokens_is_refused(
    folders, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.setattr(
        "drafters.training.features.shutil.disk_usage", lambda _: type("Free", (), {"free": 1000})
    )
    with pytest.raises(SettingsError, match="--cache_features.*bytes free"):
        open_training(folders, tmp_path / "out", cache_features=tmp_path / "cache")
    prompts = [len(f"{CAPTIONS[n % 4]} {n // 4}") + 3 for n in range(24)]
    assert f"{2 * 2 * 32 * sum(n + 15 for n in prompts):,} bytes" in capsys.readouterr().out
    monkeypatch.undo()
    other = write_tokens(tmp_path / "tokens", "tiny", folders / "model", (4, 4), 12)
    open_training(folders, tmp_path / "out", cache_features=tmp_path / "cache")
    with pytest.raises(SettingsError, match="--cache_features.*of tokens"):
        open_training(folders, tmp_path / "out", cache_features=tmp_path / "cache", tokens=other)
    with pytest.raises(SettingsError, match="--cache_features.*of precision 'fp32', not 'bf16'"):
        open_training(
            folders, tmp_path / "out", cache_features=tmp_path / "cache", precision="bf16"
        )


@pytest.mark.parametrize("guided", [True, False])
def test_cached_rows_are_the_computed_ones(guided, folders, tmp_path) -> None:
    settings = {"guidance_aware": guided, "batch_size": 16}
    computed = open_training(folders, tmp_path / "a", **settings)
    cached = open_training(folders, tmp_path / "b", cache_features=tmp_path / "cache", **settings)
    assert isinstance(cached.lessons.rows, Cached)
    for _ in range(2):
        torch.testing.assert_close(
            computed.lessons.update(), cached.lessons.update(), rtol=2e-3, atol=1e-4
        )


def test_bf16_rounds_the_targets_products_in_training(folders, tmp_path) -> None:
    exact, rounded = (
        open_training(folders, tmp_path / name, precision=name) for name in ("fp32", "bf16")
    )
    wanted, found = (training.lessons.rows([0, 1]) for training in (exact, rounded))
    difference = (found.features - wanted.features).abs().max()
    assert (
        found.features.dtype == torch.float32
        and 1e-4 < difference < 0.05 * wanted.features.abs().max()
    )


def test_several_folders_of_tokens_are_one(folders, tmp_path) -> None:
    more = write_tokens(tmp_path / "more", "tiny", folders / "model", (4, 4), 12)
    training = open_training(folders, tmp_path / "out", tokens=f"{folders / 'tokens'},{more}")
    assert len(training.lessons.images) + len(training.evaluation.held) == 36
    training.lessons.update()
    other = write_tokens(tmp_path / "other", "llamagen", folders / "model", (4, 4), 12)
    with pytest.raises(SettingsError, match="--tokens.*other: its model is 'llamagen'"):
        open_training(folders, tmp_path / "out", tokens=f"{folders / 'tokens'},{other}")


LAYOUTS = {"tiny": {}, "lumina_mgpt": {"target_size": "96x64"}, "llamagen": {}, "janus_pro": {},
           "emu3": {"target_size": "32x32"}, "liquid": {}}  # fmt: skip

WRITERS = {"janus_pro": write_janus, "emu3": write_emu3, "liquid": write_liquid}


@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize("model", LAYOUTS)
def test_an_exported_drafter_decodes_what_ar_decodes(model, layers, tmp_path, monkeypatch) -> None:
    if model == "llamagen":
        folder = write_llamagen(tmp_path)
        target = open_llamagen(llamagen_settings(folder, "fp32")).target
        monkeypatch.setattr("runs.training.train.open_target", lambda run: target)
    elif model in WRITERS:
        folder = WRITERS[model](tmp_path / "model")
    else:
        folder = write_checkpoint(tmp_path / "model", LUMINA if model == "lumina_mgpt" else Sizes())
    grid = (4, 6) if model == "lumina_mgpt" else (4, 4)
    write_tokens(tmp_path / "tokens", model, folder, grid, 8)
    out = tmp_path / "out"
    more = {"layers": layers, "steps": 3, "holdout": 2, "eval_images": 2} | LAYOUTS[model]
    run(tmp_path, out, model=model, model_path=folder, **more)
    found = json.loads((out / "evaluation.json").read_text())
    assert (
        found["decoding"]["identical"] == found["decoding"]["images"] == 2
        and found["decoding"]["tau"] >= 1
    )
    config = json.loads((out / "drafter/config.json").read_text())
    assert (config["num_hidden_layers"], config["attention_dropout"]) == (layers, 0.0)
    calibrations = Calibrations.read(out / "drafter")
    assert (
        len(calibrations.of(SamplingDistribution(), "coupled").factors) == len(found["levels"]) == 8
    )
    for level in found["levels"]:
        assert (
            0 < level["total_variation"] < 1 and level["topk"]["hit_1"] <= level["topk"]["hit_10"]
        )


def test_a_user_loads_the_drafter(folders, tmp_path) -> None:
    run(folders, tmp_path / "out", steps=2)
    job, drafter = [Job("0", "a cat", 3)], str(tmp_path / "out" / "drafter")
    images = []
    for method in (MethodSettings(method="ar"), MethodSettings(method="adt")):
        path = drafter if method.drafted else None
        settings = RunSettings(
            prompt="x",
            model_path=str(folders / "model"),
            method=method,
            drafter_path=path,
            device="cpu",
            dtype="fp64",
        )
        images.append(measure(open_session(settings).open_engine(), job).images[0].codes)
    assert torch.equal(*images)


def test_the_embedding_is_the_targets_of_the_features_size_and_stays(folders, tmp_path) -> None:
    training = open_training(folders, tmp_path)
    head, target = training.lessons.head, training.target
    before, enlarged = (
        target.embedding().clone(),
        target.embedding() * embedding_scale(training.settings, target),
    )
    training.lessons.update()
    assert torch.equal(target.embedding(), before) and torch.equal(head.embedding.weight, enlarged)
    tokens = head.embedding.weight[target.vocab.first_id :][:24]
    features = training.lessons.rows([0, 1]).features
    sizes = [x.square().mean().sqrt().item() for x in (tokens, features)]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.1)
    trained = {id(p) for p in head.parameters() if p.requires_grad}
    assert trained == {
        id(p) for group in training.lessons.optimizers[0].param_groups for p in group["params"]
    }


def test_a_start_begins_with_its_weights_and_layers(folders, tmp_path) -> None:
    start = folders / "model" / "drafter"
    stored = load_file(start / "model.safetensors")
    for enlarged in (True, False):
        training = open_training(
            folders, tmp_path / "a", start_from=start, enlarge_embeddings=enlarged
        )
        scale = embedding_scale(training.settings, training.target)
        export(training.lessons.head, {}, tmp_path / "written", training.target, scale)
        for name, weights in load_file(tmp_path / "written" / "model.safetensors").items():
            torch.testing.assert_close(weights.float(), stored[name].float(), rtol=2e-3, atol=1e-6)
    losses = [open_training(folders, tmp_path / "b", **more).lessons.update()[0, 0].item()
              for more in ({}, {"start_from": start})]  # fmt: skip
    assert losses[1] < losses[0], "the fixture's drafter is its target's kin"
    with pytest.raises(SettingsError, match="--layers: found 2; allowed: 1, as --start_from has"):
        open_training(folders, tmp_path / "c", start_from=start, layers=2)


def test_the_average_is_exported(folders, tmp_path) -> None:
    training = open_training(folders, tmp_path, ema=0.9)
    for _ in range(3):
        training.lessons.update()
    own = training.lessons.head.fc.weight.detach().clone()
    with training.lessons.averaged() as head:
        assert torch.equal(head.fc.weight, training.lessons.average["fc.weight"])
        assert not torch.equal(head.fc.weight, own)
    assert torch.equal(training.lessons.head.fc.weight, own)


def test_flags_change_what_is_learnt(folders, tmp_path) -> None:
    base = {"steps": 1, "batch_size": 8}
    changes = [
        {},
        {"depths": 1},
        {"alignment": "shifted"},
        {"feature_noise": 0},
        {"guidance_aware": False},
        {"cfg": 1},
    ]
    changes += [{"seed": 1}, {"enlarge_embeddings": False}]
    found = [
        open_training(folders, tmp_path, **base | change).lessons.update().mean().item()
        for change in changes
    ]
    assert len(set(found)) == len(found)
    assert open_training(folders, tmp_path, depths=3).lessons.update().shape == (3, 3)


@pytest.mark.parametrize(
    ("flag", "value"),
    [("depths", 3), ("batch_size", 8), ("lr", 0.5), ("alignment", "shifted"), ("cfg", 2.0)],
)
def test_other_flags_on_resume_are_refused_by_name(
    flag, value, folders, tmp_path_factory, capsys
) -> None:
    out = tmp_path_factory.getbasetemp() / "resumed"
    if not (out / "checkpoint").exists():
        run(folders, out, steps=1)
    words = [
        f"--{name}={v}" for name, v in flags(folders, out, **{"steps": 1, flag: value}).items()
    ]
    assert main.main(["train_drafter", *words]) == 2
    assert f"--{flag}: found {value!r}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"depths": 9}, "--depths: found 9"),
        (
            {"accumulate": 3},
            "--accumulate: found 3; allowed: a divisor of --batch_size, which is 4",
        ),
        ({"holdout": 24}, "--holdout: found 24 images"),
        ({"train_images": 24}, "--train_images: found 24 images"),
        ({"eval_method": "ar"}, "--eval_method: found 'ar'"),
        ({"eval_method": "best"}, "--eval_method: found 'best'"),
        ({"start_from": "nowhere"}, "--start_from nowhere: found no such folder"),
        ({"tokens": "nowhere"}, "--tokens: found 'nowhere'"),
        (
            {"target_size": "64"},
            "--target_size: found '64'; allowed: only with --model lumina_mgpt",
        ),
        ({"alignment": "both"}, "--alignment: found 'both'; allowed: inference, shifted"),
    ],
)
def test_settings_that_cannot_be_used(changed, words, folders, tmp_path, capsys) -> None:
    given = [
        f"--{name}={value}" for name, value in flags(folders, tmp_path / "out", **changed).items()
    ]
    assert main.main(["train_drafter", *given]) == 2
    assert words in capsys.readouterr().err


def test_tokens_of_another_model_checkpoint_or_grid_are_refused(folders, tmp_path, capsys) -> None:
    other = write_checkpoint(tmp_path / "other", seed=5)
    cases = [("tiny", other, (4, 4), "the checkpoint"),
             ("anole", folders / "model", (4, 4), "the model 'tiny'"),
             ("tiny", folders / "model", (5, 4), "4 rows; these have 5")]  # fmt: skip
    for number, (model, checkpoint, grid, words) in enumerate(cases):
        tokens = write_tokens(tmp_path / f"tokens{number}", model, checkpoint, grid, 8)
        given = flags(folders, tmp_path / "out", tokens=tokens)
        assert (
            main.main(["train_drafter", *(f"--{name}={value}" for name, value in given.items())])
            == 2
        )
        error = capsys.readouterr().err
        assert error.startswith("error: --tokens: found") and words in error


def test_precision_is_the_drafters_own(folders, tmp_path) -> None:
    """Elsewhere --precision is another name of --dtype."""
    settings = train_settings(flags(folders, tmp_path, precision="bf16"))
    assert (settings.precision, settings.dtype) == ("bf16", "fp32")
    parts = open_training(folders, tmp_path, precision="bf16").lessons.update()
    expected = open_training(folders, tmp_path).lessons.update()
    assert not torch.equal(parts, expected)
    torch.testing.assert_close(parts, expected, rtol=0.05, atol=0.01)


def test_a_target_in_bf16(folders, tmp_path) -> None:
    """Its features are cached as they are, and its head takes the drafter's."""
    cache = {"cache_features": tmp_path / "cache"}
    first, second = (open_training(folders, tmp_path, dtype="bf16", **more) for more in ({}, cache))
    torch.testing.assert_close(
        first.lessons.update(), second.lessons.update(), rtol=0.02, atol=0.01
    )
    assert second.lessons.rows([0]).features.dtype == torch.bfloat16
    assert second.lessons.head.fc.weight.dtype == torch.float32


def test_an_evaluation_that_was_interrupted_is_made(folders, tmp_path) -> None:
    run(folders, tmp_path, steps=1)
    path = tmp_path / "evaluation.json"
    first = path.stat().st_mtime_ns, path.read_text()
    run(folders, tmp_path, steps=1)
    assert path.stat().st_mtime_ns == first[0], "nothing is left to do"
    path.unlink()
    run(folders, tmp_path, steps=1)
    assert path.read_text() == first[1]


def test_a_folder_that_is_in_use_is_refused(folders, tmp_path, capsys) -> None:
    with lock(tmp_path / ".lock"):
        assert (
            main.main(
                ["train_drafter", *(f"--{n}={v}" for n, v in flags(folders, tmp_path).items())]
            )
            == 2
        )
    assert "--output_dir: found" in capsys.readouterr().err


def test_training_brings_the_distributions_together(folders, tmp_path) -> None:
    """Held-out images: training lowers the distance between the distributions."""
    settings = {"steps": 40, "lr": 1e-2, "batch_size": 20, "log_every": 40, "ema": 0.9}
    run(folders, tmp_path, eval_every=1, **settings | {"steps": 1})
    before = json.loads((tmp_path / "evaluation.json").read_text())["levels"][0]["total_variation"]
    run(folders, tmp_path / "more", **settings)
    after = json.loads((tmp_path / "more" / "evaluation.json").read_text())["levels"][0][
        "total_variation"
    ]
    assert after < before - 0.01


def session_with(model: Path, drafter: Path) -> Session:
    """A session in fp64 whose drafter lies in a folder."""
    method = MethodSettings(method="adt")
    settings = {"model_path": str(model), "drafter_path": str(drafter), "dtype": "fp64"}
    return open_session(RunSettings(prompt="a cat", device="cpu", method=method, **settings))


def test_a_head_learns_to_read_hidden_states(tmp_path) -> None:
    """At first it is the head that it began as; trained, it drafts from its folder, also in trees
    and windows, and its images are those of `ar`.
    """
    write_checkpoint(tmp_path / "model", Sizes(layers=3))
    write_tokens(tmp_path / "tokens", "tiny", tmp_path / "model", (4, 4))
    more = {"start_from": tmp_path / "model" / "drafter", "lr": 3e-3}
    wide = more | {"target_layers": "1,2", "cache_features": tmp_path / "wide"}
    first, plain = (
        open_training(tmp_path, tmp_path / name, **each).lessons.update()
        for name, each in (("first", wide), ("plain", more))
    )
    torch.testing.assert_close(first, plain, rtol=1e-3, atol=1e-4)  # the cache has 16 bits
    run(tmp_path, tmp_path / "out", **wide | {"steps": 30, "drafter": "eagle"})
    folder = tmp_path / "out" / "drafter"
    assert json.loads((folder / "config.json").read_text())["target_layers"] == [1, 2]
    weight = load_file(folder / "model.safetensors")["states.weight"]
    assert weight.shape == (32, 64) and weight.abs().mean() > 1e-3
    session = session_with(tmp_path / "model", folder)
    jobs = [Job(str(i), text, i) for i, text in enumerate(CAPTIONS)]
    methods = [MethodSettings(method=name) for name in ("ar", "eagle2", "block")]
    methods.append(MethodSettings(method="eagle_recall"))
    plain, *drafted = (measure(session.open_engine(each, images=3), jobs) for each in methods)
    for found in drafted:
        for one, other in zip(plain.images, found.images, strict=True):
            assert torch.equal(one.codes, other.codes)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("2,1", "--target_layers: found '2,1'; allowed: numbers of layers from 1 on, rising"),
        ("a", "--target_layers: found 'a'; allowed: numbers of layers from 1 on, rising"),
        ("1,2", r"--target_layers: target_layers is \[1, 2\]; allowed: numbers from 1 to 1"),
    ],
)
def test_layers_that_cannot_be_read(given, message, folders, tmp_path) -> None:
    with pytest.raises((SettingsError, ValueError), match=message):
        open_training(folders, tmp_path / "out", target_layers=given)


def test_a_cache_without_hidden_states(folders, tmp_path) -> None:
    cache = {"cache_features": tmp_path / "cache"}
    open_training(folders, tmp_path / "out", **cache)
    with pytest.raises(SettingsError, match=r"--cache_features.*of layers None, not \[1\]"):
        open_training(folders, tmp_path / "out", **cache, target_layers="1")
