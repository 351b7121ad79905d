"""`tune`: losers drop out, an interrupted command continues, and the file it writes is a recipe."""

import gc
import json
import re
import weakref
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import yaml
from browser import thinned
from program import benchmark_settings, inspect_settings, run_settings, tune_settings

import main
from adt_tree import Pipeline
from configs.benchmark import TuneSettings
from configs.fields import SettingsError, in_list, settings_dict
from configs.methods import MethodSettings
from configs.schema import ROOT, RunSettings
from decoding.images import FinishedImage, Job
from drafters.recall import RecallNumbers
from eval.bench import contest
from eval.bench import tune as module
from eval.bench.bench import Bench
from eval.bench.contest import MOST_TURNS, Contest, fastest, finalists, verdict
from eval.bench.measurements import Measurements
from eval.bench.tune import Batch, Search, busiest
from runs.measure import BASELINE
from runs.session import open_session
from support.json_lines import read_lines
from support.locks import claim
from support.output import remark
from support.progress import Progress

pytestmark = pytest.mark.usefixtures("read_once")
METHODS = [MethodSettings("jacobi", window=window) for window in range(1, 9)]


class Machine:
    """Methods take known times, four tokens per round; its clock stands still in between."""

    def __init__(self, seconds: dict[MethodSettings, float], path: Path | None = None):
        self.seconds, self.now = seconds, 0.0
        self.order: list[tuple[MethodSettings, str]] = []
        self.broken_after: int | None = None
        self.target = SimpleNamespace(device=torch.device("cpu"))
        self.settings = run_settings({"prompt": "a cat", "device": "cpu", "method": "ar"}).engine
        silent = Progress("measuring", shown=False)
        self.bench = Bench(self, Measurements(path, self.settings), silent, lambda _: None)

    def open_engine(self, method: MethodSettings) -> object:
        watch = SimpleNamespace(seconds={}, calls={})
        return SimpleNamespace(generate=partial(self.generate, method), watch=watch)

    def generate(self, method: MethodSettings, jobs: list[Job]) -> Iterator[SimpleNamespace]:
        if len(self.order) == self.broken_after:
            raise KeyboardInterrupt
        if self.seconds[method] is None:
            raise torch.OutOfMemoryError
        self.order.append((method, jobs[0].id))
        seconds = self.seconds[method] * (1 + 0.01 * (len(self.order) % 3))
        self.now += seconds
        costs = dict.fromkeys(
            ("mean_drafted_depth", "mean_verified_depth", "mean_nodes", "seconds_prefill"), 1.0
        )
        costs |= {"seconds_draft": 0.0, "seconds_verify": seconds, "seconds": seconds}
        images = [
            FinishedImage(job=job, codes=torch.arange(17), target_forwards=5, tau=4.0, **costs)
            for job in jobs
        ]
        yield SimpleNamespace(finished=images)

    def contest(self, seconds: float = 1e6) -> Contest:
        prompts = lambda turn: [Job(str(turn), "a cat", turn)]  # noqa: E731
        return Contest(self.bench, prompts, seconds, lambda: self.now)


def times() -> dict[MethodSettings, float]:
    """Plain decoding takes a second, the methods 0.4 to 1.1, the sixth the least."""
    seconds = {method: 0.4 + 0.1 * number for number, method in enumerate(METHODS)}
    return seconds | {BASELINE: 1.0, METHODS[5]: 0.3}


def test_losers_drop_out_and_the_fastest_is_left() -> None:
    machine = Machine(times())
    left = machine.contest().run(METHODS)
    assert left[0] == METHODS[5]
    counts = {method: sum(m == method for m, _ in machine.order) for method in METHODS}
    slow = [counts[METHODS[7]], counts[METHODS[6]]]
    assert max(slow) == 6, "an interval takes six images; then they are slower for certain"
    assert counts[METHODS[5]] == max(counts.values()) > MOST_TURNS
    assert METHODS[7] not in machine.bench.engines, "its cache makes room"
    paired = {image for method, image in machine.order if method == METHODS[5]}
    assert paired <= {image for method, image in machine.order if method == BASELINE}


def test_the_time_is_kept_and_shared_by_the_stages() -> None:
    for seconds in (4.0, 12.0, 30.0):
        machine = Machine(times())
        machine.contest(seconds).run(METHODS)
        assert machine.now < seconds + 1.2, "at most the measurement that was running"
        tried = len({method for method, _ in machine.order})
        assert tried == 9 or seconds == 4.0


def test_an_interrupted_contest_measures_no_turn_twice(tmp_path, capsys) -> None:
    whole, path = Machine(times()), tmp_path / "measurements.jsonl"
    whole.contest().run(METHODS)
    first = Machine(times(), path)
    first.broken_after = 20  # two turns of nine methods, and two of the third
    with pytest.raises(KeyboardInterrupt):
        first.contest().run(METHODS)
    path.write_text(path.read_text() + '{"id": "cut')
    rest = Machine(times(), path)
    rest.contest().run(METHODS)
    assert not {*first.order[:18]} & {*rest.order}
    assert {*first.order, *rest.order} == {*whole.order}
    lines = read_lines(path)
    path.write_text("".join(json.dumps(line | {"images": None}) + "\n" for line in lines))
    with pytest.raises(SettingsError, match="measurements.jsonl: .*got a damaged line"):
        Machine(times(), path).contest().run(METHODS)


def test_a_method_that_does_not_fit_into_memory_is_left_out(capsys) -> None:
    remark.cache_clear()
    machine = Machine(times() | {METHODS[5]: None})
    assert machine.contest().run(METHODS)[0] == METHODS[0]
    assert "jacobi, window=6: does not fit into memory" in capsys.readouterr().err
    with pytest.raises(torch.OutOfMemoryError):
        Machine(times() | {BASELINE: None}).contest().run(METHODS)


def row(method: str, speedup: float, low: float | None, high: float | None) -> dict:
    figures = {"speedup": speedup, "speedup_low": low, "speedup_high": high, "tau": 2.0}
    plain = settings_dict(MethodSettings(method)) | {"wrong": [], "doubts": []}
    plain |= {"images": 9, "temperature": 1.0}
    return plain | figures | {"ms_per_round": {"round": 2.0 / speedup}}


def test_what_dropped_out_is_not_chosen() -> None:
    """It may have been measured on a single image, and that an easy one."""
    rows = {BASELINE: row("ar", 1, 1, 1), METHODS[0]: row("jacobi", 2.0, None, None)}
    rows |= {METHODS[1]: row("jacobi", 1.5, 1.4, 1.6)}
    assert fastest(finalists(rows, [METHODS[1]])) is rows[METHODS[1]]
    rows[METHODS[1]] = row("jacobi", 1.3, 0.98, 1.6)
    assert fastest(finalists(rows, [METHODS[1]])) is rows[BASELINE], "one image is too few"
    rows[METHODS[2]] = row("jacobi", 1.25, 1.05, 1.4)
    best = fastest(finalists(rows, [METHODS[1]]))
    assert best is rows[METHODS[2]], "nothing that is left is faster for certain"


def test_an_engine_that_is_not_kept_frees_its_memory(checkpoint) -> None:
    words = {"prompt": "a cat", "model_path": str(checkpoint), "device": "cpu", "method": "ar"}
    session = open_session(run_settings(words).engine)
    silent = Progress("measuring", shown=False)
    bench = Bench(session, Measurements(None, session.settings), silent, lambda _: None)
    bench.turn((BASELINE, METHODS[0]), [Job("0", "a cat", 0)])
    gone = weakref.ref(bench.engines[METHODS[0]])
    bench.keep([BASELINE])
    gc.collect()
    assert gone() is None and [*bench.engines] == [BASELINE]


def test_a_doubtful_figure_without_an_interval_is_not_chosen() -> None:
    plain, fast = row("ar", 1.0, 1.0, 1.0), row("jacobi", 1.4, None, None)
    assert fastest([plain, fast]) is fast
    assert fastest([plain, fast | {"doubts": ["the process had to wait"]}]) is plain
    sure = row("jacobi", 1.4, 1.1, 1.5) | {"doubts": ["the process had to wait"]}
    assert fastest([plain, sure]) is sure


@pytest.mark.parametrize(
    ("rows", "best", "words"),
    [
        ([(1.3, 1.1, 1.5), (1.4, 0.9, 1.8)], 1, "Fastest: jacobi, 1.30 (1.10-1.50) times plain"),
        ([(0.9, 0.8, 1.1), (0.8, 0.7, 0.9)], 0, "The best, jacobi, reaches 0.90 (0.80"),
        ([(1.1, None, None)], 1, "Fastest: jacobi, 1.10 times plain decoding."),
    ],
)
def test_plain_decoding_wins_unless_a_method_is_faster_for_certain(rows, best, words) -> None:
    figures = zip(("ar", "jacobi", "recall"), [(1.0, 1.0, 1.0), *rows], strict=False)
    listed = [row(name, *speedups) for name, speedups in figures]
    assert fastest(listed) is listed[best]
    assert words in verdict(listed, listed[best], 10.0)


@pytest.mark.parametrize("flags", [{"num_images": 2}, {"batch_size": 3}])
def test_no_turn_repeats_an_image(flags) -> None:
    settings = RunSettings.of(prompt="a red cat", **flags)
    jobs = [job for turn in range(5) for job in module.jobs_of_turn(settings, turn)]
    assert len({job.seed for job in jobs}) == len({job.id for job in jobs}) == len(jobs)


@pytest.fixture
def tune(checkpoint, tmp_path, monkeypatch):
    """Run the command on the small checkpoint, for two turns; returns the exit code."""
    monkeypatch.setattr(contest, "MOST_TURNS", 1)  # ends it; the time would on a busy machine
    monkeypatch.setattr(contest, "LEAST_VALUES", 1)
    monkeypatch.setattr(module, "LEAST_VALUES", 1)
    (tmp_path / "prompts.txt").write_text("a cat\na dog\n")

    def run(**flags: object) -> int:
        given = {"model_path": checkpoint, "prompt": tmp_path / "prompts.txt", "device": "cpu"}
        given |= {"output": tmp_path / "tuned.yaml", "methods": "jacobi:window=2,adt"}
        given |= {"minutes": 60, "dtype": "fp64", "batch_sizes": 1} | flags
        named = {name: value for name, value in given.items() if value is not None}
        return main.main(["tune", *(f"--{name}={value}" for name, value in named.items())])

    return run


def settings_of(path, **flags: str):
    given = {"config": in_list(str(path)), "prompt": "a cat", "dtype": "fp64", "device": "cpu"}
    return run_settings(given | flags).engine


def test_table_and_recipe_say_what_was_measured_where(tune, checkpoint, tmp_path, capsys) -> None:
    path = tmp_path / "my, tuned.yaml"
    assert tune(output=path) == 0
    lines = capsys.readouterr().out.splitlines()
    head, *body = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    assert head[:5] == ["at once", "method", "nodes", "tau", "seconds per image"]
    methods, (best, _, fastest_one) = body[1:4], body[4:]
    assert [cells[1] for cells in methods] == ["ar (plain decoding)", "jacobi, window=2", "adt"]
    assert all(re.fullmatch(r"(\d+)/\1", cells[6]) for cells in methods), "the images of ar"
    assert best[:3] == ["at once", "fastest", "images per hour"] and fastest_one[0] == "1"
    content = yaml.safe_load(path.read_text())
    assert {"date", "revision", "conditions", "table"} <= content["tuned"].keys()
    assert [one["method"] for one in content["tuned"]["table"]] == [c[1] for c in methods]
    assert f"Use it: --config '\"{path}\"'; in Python " in lines[-1]
    settings = settings_of(path)
    assert settings.method.method == content["method"] and settings.model_path == str(checkpoint)
    assert "tuned under" not in capsys.readouterr().err
    content["tuned"]["conditions"] |= {"machine": "an abacus", "compile": "off"}
    path.write_text(yaml.safe_dump(content))
    settings_of(path, temperature="0.5")
    said = capsys.readouterr().err
    assert "machine: 'an abacus' there" in said and "temperature: 1.0 there, 0.5 now" in said
    assert "compile: off there, auto now" in said
    settings_of(path, quantize="int8", dtype="fp32")
    assert "quantize: none there, int8 now" in capsys.readouterr().err
    other = "recall" if content["method"] != "recall" else "ar"
    settings_of(path, method=other)
    assert "tuned" not in capsys.readouterr().err, "another method was asked for"
    content["tuned"] = "yesterday"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(SettingsError, match=r"tuned.yaml: tuned: expected what"):
        settings_of(path)


@pytest.mark.parametrize(("images", "few"), [(1, True), (6, False)])
def test_too_few_images_are_inconclusive(images, few) -> None:
    plain, best, other = row("ar", 1.0, 1.0, 1.0), *(row("jacobi", s, s, s) for s in (1.2, 0.9))
    rows = [plain, best | {"images": images}, other | {"images": 2}]
    words = "Inconclusive: in 10 minutes a method was compared with ar on 1 image; "
    words += "a 95 % interval needs at least 6."
    for chosen in rows[:2]:
        assert verdict(rows, chosen, 10.0).startswith(words) is few
    assert "compared with ar on 0 images" in verdict([plain], plain, 0.1)


def test_numbers_fitted_to_the_model_are_used_and_foreign_ones_are_named(
    tune, checkpoint, tmp_path, capsys, monkeypatch
) -> None:
    numbers = "0/1/0/1/0/1"
    monkeypatch.setattr(module, "fit_numbers", lambda *_: RecallNumbers.of((0, 1, 0, 1, 0, 1)))
    monkeypatch.setattr(module, "fastest", lambda rows: rows[-1])
    assert tune(methods="recall:nodes=4") == 0
    assert f"sharpness alone): {numbers}" in capsys.readouterr().out
    content = yaml.safe_load((tmp_path / "tuned.yaml").read_text())
    assert content["recall_numbers"] == numbers
    said = "recall numbers: fitted to tiny; `tune` fits them to yours"
    remark.cache_clear()
    assert settings_of(tmp_path / "tuned.yaml").method.recall_numbers == numbers
    assert said not in capsys.readouterr().err
    given, model = {"prompt": "a cat", "device": "cpu"}, {"model_path": str(checkpoint)}
    run_settings(given | {"method": "recall"})
    assert said not in capsys.readouterr().err, "the shipped model's own"
    run_settings(given | model | {"method": "recall"})
    assert said in capsys.readouterr().err
    run_settings(given | model | {"method": "eagle_recall"})
    assert "recall numbers: fitted to tiny\n" in capsys.readouterr().err
    remark.cache_clear()
    monkeypatch.setattr("runs.opening.ROOT", tmp_path)  # as if the included model were deleted
    run_settings(given | model | {"method": "recall"})
    assert said in capsys.readouterr().err
    remark.cache_clear()
    inspect_settings(model)
    run_settings(given | model | {"method": "jacobi"})
    tune_settings(given | model | {"methods": "recall"})
    assert said not in capsys.readouterr().err, "none is used, or tune fits them"
    benchmark_settings(given | model | {"methods": "ar,recall"})
    assert said in capsys.readouterr().err


def test_every_condition_has_its_recipe_and_a_pipeline_takes_it_whole(
    tune, checkpoint, tmp_path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    (model := tmp_path / "model").symlink_to(checkpoint)
    options = {"device": "cpu", "model": "anole"}
    with pytest.raises(SettingsError, match="method: 'auto' works only with a recipe of `tune`"):
        Pipeline.from_pretrained(model, method="auto", **options)
    given = {"model_path": model, "model": "anole", "output": None}
    assert tune(**given, temperature=0.5, cfg=2.0, top_k=7, dtype="bf16") == 0
    (first,) = Path("outputs/tuned").glob("*.yaml")
    assert re.fullmatch(r"[\w-]+-model_bf16_T0.5_cfg2_[0-9a-f]{8}", first.stem)
    content = first.read_text()
    assert tune(**given) == 0 and first.read_text() == content
    assert len([*Path("outputs/tuned").glob("*.yaml")]) == 2
    method = yaml.safe_load(content)["method"]
    copy = content.replace(f"method: {method}", "method: eagle2")
    first.with_name(f"{first.stem}.backup.yaml").write_text(copy)  # a user's, which is not read
    whole = Pipeline.from_pretrained(first).settings
    assert (whole.dtype, whole.sampling.top_k, whole.sampling.cfg) == ("bf16", 7, 2.0)
    same = {"temperature": 0.5, "cfg": 2.0, "top_k": 7, "dtype": "bf16"} | options
    for named in ({"method": "auto"}, {}):
        remark.cache_clear()
        assert Pipeline.from_pretrained(model, **named, **same).method == whole.method.method
        taken = f"method {method}: what `tune` chose for 1 image at once, by {first}; "
        assert taken in capsys.readouterr().err
    with pytest.raises(SettingsError, match="other conditions .*top_k: 7 there, 8 now"):
        Pipeline.from_pretrained(model, method="auto", **same | {"top_k": 8})
    remark.cache_clear()
    assert Pipeline.from_pretrained(model, **same | {"top_k": 8}).method == "adt"
    assert f"{first} is not used: conditions differ (top_k" in capsys.readouterr().err
    assert Pipeline.from_pretrained(model, method="recall", **same).method == "recall"
    with pytest.raises(
        SettingsError, match="method: .* with `tune`|Only generate_images and Python"
    ):
        MethodSettings.of(method="auto")


def test_every_batch_size_has_a_recipe(tune, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(module, "fastest", lambda rows: rows[-1])
    assert tune(batch_sizes="1,2", methods="jacobi:window=2") == 0
    tuned = yaml.safe_load((path := tmp_path / "tuned.yaml").read_text())["tuned"]
    assert [(one["batch_size"], one["window"]) for one in tuned["batches"]] == [(1, 2), (2, 2)]
    assert all(one["images_per_hour"] > 0 for one in tuned["batches"])
    measured = tmp_path / "tuned.measurements.jsonl"
    sizes = [len(line["images"]) for line in read_lines(measured)]
    assert {*sizes} == {1, 2} and sizes == sorted(sizes)
    assert tune(batch_sizes="2,1", methods="jacobi:window=2") == 0
    again = yaml.safe_load(path.read_text())["tuned"]["batches"]
    assert [one["batch_size"] for one in again] == [1, 2]
    assert "lose" not in capsys.readouterr().err
    assert tune(batch_sizes="2", methods="jacobi:window=2") == 0
    assert f"note: {path} has methods for --batch_sizes 1 that" in capsys.readouterr().err


def test_a_batch_size_that_is_undecided_is_in_no_recipe(tune, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(module, "LEAST_VALUES", 3)  # of two turns with one image, and with two
    path, last = tmp_path / "tuned.yaml", "run the same command with more --minutes"
    assert tune() == 0 and not path.exists()
    out = capsys.readouterr().out.splitlines()
    assert out[-1] == f"Undecided, so not written to {path}: 1 at once. To go on, {last}"
    assert not any("| fastest" in line or "--config" in line for line in out)
    assert tune(batch_sizes="1,2") == 0
    tuned = yaml.safe_load(text := path.read_text())["tuned"]
    assert [one["batch_size"] for one in tuned["batches"]] == [2]
    assert {one["batch_size"] for one in tuned["table"]} == {2}
    out = capsys.readouterr().out.splitlines()
    assert "Use it: --config" in out[-2] and f"1 at once. To go on, {last}" in out[-1]
    assert tune() == 0 and path.read_text() == text, "what was decided stays"


def test_where_no_draft_fits_into_memory_plain_decoding_is_chosen(
    tune, tmp_path, monkeypatch, capsys
) -> None:
    whole = Bench.turn
    monkeypatch.setattr(Bench, "turn", lambda self, methods, *rest: whole(self, methods[:1], *rest))
    assert tune(methods="jacobi:window=2") == 0
    assert "1 image at once: Plain decoding (ar) is chosen: no other" in capsys.readouterr().out
    recipe = yaml.safe_load((tmp_path / "tuned.yaml").read_text())
    assert [one["method"] for one in recipe["tuned"]["batches"]] == ["ar"]


@pytest.mark.parametrize("drafted", thinned([1, 2]))
def test_a_drafter_is_a_condition_of_the_methods_that_have_one(
    tune, checkpoint, tmp_path, monkeypatch, capsys, drafted
) -> None:
    def fastest(rows: list) -> object:
        method = "adt" if rows[0]["batch_size"] == drafted else "ar"
        return next(row for row in rows if row["method"] == method)

    remark.cache_clear()
    monkeypatch.setattr(module, "fastest", fastest)
    monkeypatch.setattr(module, "busiest", lambda found: found[-1])
    monkeypatch.chdir(tmp_path)
    (model := tmp_path / "model").symlink_to(checkpoint)
    given = {"model_path": model, "model": "anole", "output": None}
    assert tune(**given, batch_sizes="1,2", methods="adt") == 0
    (first,) = Path("outputs/tuned").glob("*.yaml")
    first.with_name("damaged_00000000.yaml").write_text("tuned: {conditions: {}, batches: [4]}")
    options = {"device": "cpu", "model": "anole", "dtype": "fp64"}
    for size in (1, 2):
        method = Pipeline.from_pretrained(model, method="auto", batch_size=size, **options).method
        assert method == ("adt" if size == drafted else "ar")
    said = capsys.readouterr().err
    assert "damaged_00000000.yaml is not used: " in said
    assert (more := "batch_size 2 makes more images an hour") not in said
    Pipeline.from_pretrained(model, method="auto", **options)
    assert f"{first}; {more}; method NAME takes another" in capsys.readouterr().err
    drafter = {"drafter_path": model / "drafter", "batch_size": 3 - drafted}
    assert Pipeline.from_pretrained(model, **drafter, **options).method == "adt"


def test_auto_replaces_the_method_of_a_recipe(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    paper = ROOT / "configs/paper/adt_lantern.yaml"
    with pytest.raises(SettingsError, match="'auto' works only with a recipe of `tune`"):
        settings_of(paper, method="auto")


def test_a_recipe_has_the_method_of_the_batch_size_that_is_asked_for(
    checkpoint, tmp_path, capsys
) -> None:
    path = tmp_path / "tuned.yaml"
    batches = [
        {"batch_size": 1, "method": "block", "nodes": 31, "depth": 16, "images_per_hour": 5},
        {"batch_size": 4, "method": "jacobi", "window": 6, "images_per_hour": 9},
        {"batch_size": 16, "method": "ar", "images_per_hour": 8},
    ]
    content = {"model_path": str(checkpoint), "batch_size": 4, "method": "jacobi", "window": 6}
    content |= {"tuned": {"conditions": {}, "batches": batches}}
    path.write_text(yaml.safe_dump(content))

    def taken(**flags: object) -> tuple[int, str, int | None]:
        texts = {"num_images": 50} | flags
        settings = settings_of(path, **{name: str(value) for name, value in texts.items()})
        method = settings.method
        return settings.batch_size, method.method, method.nodes or method.window

    assert taken() == (4, "jacobi", 6)
    assert taken(num_images=1) == (1, "block", 31), "a batch of 4 would have one image"
    assert taken(num_images=9, batch_size=1) == taken(num_images=1)
    folder = tmp_path / "run"
    folder.mkdir()
    manifest = {"settings": {"batch_size": 1}, "identity": {}, "earlier": []}
    (folder / "run.json").write_text(json.dumps(manifest))
    assert taken(output_dir=folder) == (1, "block", 31), "a run goes on as it was begun"
    assert f"--batch_size 1: as the run in {folder}; " in capsys.readouterr().err
    assert taken(output_dir=folder, overwrite=True) == taken()
    assert taken(batch_size=16) == (16, "ar", None)
    assert taken(batch_size=3) == (3, "block", 31)
    assert "--batch_size: 1 there, 3 now" in capsys.readouterr().err
    assert taken(batch_size=16, method="jacobi") == (16, "jacobi", 6), "the recipe's own flags"
    assert taken(batch_size=1, nodes=7, method="recall") == (1, "recall", 7)
    (other := tmp_path / "other.yaml").write_text("batch_size: 16\n")
    joined = f"{path},{other}"
    assert taken(config=joined)[:2] == (16, "ar"), "a later recipe wins"
    pipe = Pipeline.from_pretrained(path, device="cpu")
    assert (pipe.settings.batch_size, pipe.method) == (4, "jacobi")
    assert Pipeline.from_pretrained(path, device="cpu", batch_size=16).method == "ar"
    assert Pipeline.from_pipe(pipe, batch_size=1).settings.method.nodes == 31
    words = {"config": str(path), "prompt": "a cat", "device": "cpu", "batch_size": "16"}
    assert [method.method for method in benchmark_settings(words).methods] == ["ar"]


def batch(size: int, images_per_hour: float) -> Batch:
    rows = {BASELINE: {"images_per_hour": images_per_hour, "speedup": 1.0}}
    return Batch(size, rows, rows[BASELINE], "", True, Measurements(None, None), 0.0)


def test_a_larger_batch_has_to_give_more_images_per_hour() -> None:
    found = [batch(1, 100), batch(2, 150), batch(4, 153), batch(8, 120)]
    assert busiest(found) is found[1]
    assert busiest([*found, batch(16, 160)]).size == 16


@pytest.mark.parametrize(
    ("rates", "asked", "tried"),
    [
        ({1: 100, 2: 150, 4: 151, 8: 900}, None, [1, 2, 4]),
        ({1: 100, 2: 150, 4: 151, 8: 900}, "8,1,2,4", [1, 2, 4, 8]),
        ({1: 100, 2: None, 4: 300}, None, [1]),
    ],
)
def test_batch_sizes_grow_as_long_as_they_help(rates, asked, tried, monkeypatch, capsys) -> None:
    settings = SimpleNamespace(sizes=TuneSettings.sizes.fget(SimpleNamespace(batch_sizes=asked)))
    search = Search(settings, None, SimpleNamespace(limit=60.0, seconds=1.0), None)

    def measured(self, size: int, *_: object) -> Batch:
        if rates[size] is None:
            raise torch.OutOfMemoryError
        return batch(size, rates[size])

    monkeypatch.setattr(Search, "_contest", measured)
    found = search.run(settings.sizes or sorted(rates), METHODS)
    assert [one.size for one in found] == tried
    late = replace(search, progress=SimpleNamespace(limit=60.0, seconds=61.0))
    assert len(late.run(settings.sizes or sorted(rates), METHODS)) == 1


def test_a_file_that_tune_did_not_write_stays(tune, tmp_path, capsys) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("method: adt\n")
    for place in (mine, tmp_path):
        assert tune(output=place) == 2 and f"--output {place}: expected " in capsys.readouterr().err
    assert mine.read_text() == "method: adt\n"


def test_a_recipe_of_other_conditions_stays(tune, tmp_path, capsys) -> None:
    path = tmp_path / "tuned.yaml"
    assert tune(methods="jacobi:window=2") == 0
    tuned = path.read_text()
    assert tune(methods="jacobi:window=2", temperature=0.5) == 2
    got = "got one under other conditions (--temperature: 1.0 there, 0.5 now)"
    assert f"--output {path}: expected a new file, or " in (said := capsys.readouterr().err)
    assert got in said and path.read_text() == tuned
    assert tune(methods="jacobi:window=2,adt") == 0, "a drafter is no condition of jacobi"


def test_default_batch_sizes_fit_into_memory(monkeypatch) -> None:
    settings = tune_settings({"device": "cpu"})
    assert module.sizes_of(settings) == (1, 2, 4, 8)
    monkeypatch.setattr(module, "_bytes", lambda run: 10 + run.batch_size)
    for memory, sizes in ((16, (1, 2, 4)), (14, (1, 2)), (5, (1,)), (99, (1, 2, 4, 8))):
        monkeypatch.setattr(module, "memory_bytes", lambda _, m=memory: m)
        assert module.sizes_of(settings) == sizes
    assert module.sizes_of(tune_settings({"device": "cpu", "batch_sizes": "9,3"})) == (3, 9)
    words = {"quantize": "int4", "dtype": "bf16", "methods": "jacobi:window=7"}
    assert module.sizes_of(tune_settings(words)) == (1,)
    with pytest.raises(SettingsError, match="quantize"):
        tune_settings(words | {"batch_sizes": "1,2"})


def test_an_interrupted_command_says_that_it_continues(tune, tmp_path, monkeypatch, capsys) -> None:
    measure, numbers = Bench._measure, count()

    def interrupted(*given):
        if next(numbers) == 4:
            raise KeyboardInterrupt
        return measure(*given)

    monkeypatch.setattr(Bench, "_measure", interrupted)
    with claim("", tmp_path / "tuned.yaml"):
        assert tune() == 2 and "got another process using it" in capsys.readouterr().err
    assert tune() == 130
    assert "the same command continues where it stopped" in capsys.readouterr().err
    kept = tmp_path / "tuned.measurements.jsonl"
    assert len(kept.read_text().splitlines()) == 3, "a line per method of the first turn"
    assert tune() == 0
    assert len(kept.read_text().splitlines()) > 3, "what is measured stays"
