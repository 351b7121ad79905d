"""`tune`: losers drop out, an interrupted command continues, and the file it writes is a recipe."""

import gc
import json
import re
import weakref
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest
import torch
import yaml

import main
from adt_tree import Pipeline
from configs.fields import SettingsError
from configs.methods import MethodSettings
from configs.schema import RunSettings
from decoding.images import FinishedImage, Job
from drafters.recall import RecallNumbers
from eval.bench import tune as module
from eval.bench.tune import MOST_TURNS, Contest, Trials, fastest, finalists, verdict
from runs.commands import benchmark_settings, inspect_settings, run_settings, tune_settings
from runs.measure import BASELINE, Measurement
from runs.session import open_session
from runs.tuned import tuned_place
from support.durable import claim
from support.output import remark

METHODS = [MethodSettings("jacobi", window=window) for window in range(1, 9)]


class Machine:
    """Methods take known times, four tokens per round; its clock stands still in between."""

    def __init__(self, seconds: dict[MethodSettings, float], broken_after: int | None = None):
        self.seconds, self.now, self.broken_after = seconds, 0.0, broken_after
        self.order: list[tuple[MethodSettings, str]] = []
        self.kept: list[Sequence[MethodSettings]] = []

    def keep(self, methods: Sequence[MethodSettings]) -> None:
        self.kept.append(methods)

    def measure(self, method: MethodSettings, jobs: list[Job]) -> Measurement:
        if len(self.order) == self.broken_after:
            raise KeyboardInterrupt
        self.order.append((method, jobs[0].id))
        seconds = self.seconds[method] * (1 + 0.01 * (len(self.order) % 3))
        self.now += seconds
        costs = dict.fromkeys(
            ("mean_drafted_depth", "mean_depth", "mean_nodes", "seconds_prefill"), 1.0
        )
        costs |= {"seconds_draft": 0.0, "seconds_verify": seconds, "seconds": seconds}
        images = [FinishedImage(job, torch.arange(17), 5, 4.0, **costs) for job in jobs]
        return Measurement(images, {"round": seconds, "verify": seconds}, {}, (seconds,))

    def contest(self, path, seconds: float = 1e6) -> Contest:
        prompts = lambda turn: [Job(str(turn), "a cat", turn)]  # noqa: E731
        return Contest(Trials(path, "key"), prompts, self, seconds, lambda: self.now)


def times() -> dict[MethodSettings, float]:
    """Plain decoding takes a second, the methods 0.4 to 1.1, the sixth the least."""
    seconds = {method: 0.4 + 0.1 * number for number, method in enumerate(METHODS)}
    return seconds | {BASELINE: 1.0, METHODS[5]: 0.3}


def test_losers_drop_out_and_the_fastest_is_left(tmp_path) -> None:
    machine = Machine(times())
    left = machine.contest(tmp_path / "trials").run(METHODS)
    assert left[0] == METHODS[5]
    counts = {method: sum(m == method for m, _ in machine.order) for method in METHODS}
    slow = [counts[METHODS[7]], counts[METHODS[6]]]
    assert max(slow) == 6, "an interval takes six images; then they are slower for certain"
    assert counts[METHODS[5]] == max(counts.values()) > MOST_TURNS
    assert METHODS[7] not in machine.kept[6], "its cache makes room"
    paired = {image for method, image in machine.order if method == METHODS[5]}
    assert paired <= {image for method, image in machine.order if method == BASELINE}


def test_the_time_is_kept_and_shared_by_the_stages(tmp_path) -> None:
    for seconds in (4.0, 12.0, 30.0):
        machine = Machine(times())
        machine.contest(tmp_path / str(seconds), seconds).run(METHODS)
        assert machine.now < seconds + 1.2, "at most the measurement that was running"
        tried = len({method for method, _ in machine.order})
        assert tried == 9 or seconds == 4.0


def test_an_interrupted_contest_measures_nothing_twice(tmp_path) -> None:
    whole, path = Machine(times()), tmp_path / "trials"
    whole.contest(tmp_path / "whole").run(METHODS)
    first = Machine(times(), broken_after=20)
    with pytest.raises(KeyboardInterrupt):
        first.contest(path).run(METHODS)
    path.write_text(path.read_text() + '{"id": "cut')
    rest = Machine(times())
    rest.contest(path).run(METHODS)
    assert len(first.order) == 20 and not {*first.order} & {*rest.order}
    assert {*first.order, *rest.order} == {*whole.order}
    assert Trials(path, "other key").earlier == {}
    path.write_text(json.dumps({"id": "key", "method": "ar", "turn": 0}) + "\n")
    with pytest.raises(SettingsError, match="trials: .*got a damaged line"):
        Trials(path, "key")


def test_a_method_that_does_not_fit_into_memory_is_left_out(tmp_path, capsys) -> None:
    machine = Machine(times())

    def contest(large: MethodSettings) -> Contest:
        def measure(method, jobs):
            if method == large:
                raise torch.OutOfMemoryError
            return machine.measure(method, jobs)

        other = SimpleNamespace(measure=measure, keep=machine.keep)
        return replace(machine.contest(tmp_path / large.method), machine=other)

    remark.cache_clear()
    assert contest(METHODS[5]).run(METHODS)[0] == METHODS[0]
    assert "jacobi, window=6: does not fit into memory" in capsys.readouterr().err
    assert machine.kept[0] == [BASELINE, *METHODS]
    assert machine.kept[1] == [BASELINE, *METHODS[:5], *METHODS[6:]], "its cache makes room"
    with pytest.raises(torch.OutOfMemoryError):
        contest(BASELINE).run(METHODS)


def row(method: str, speedup: float, low: float | None, high: float | None) -> dict:
    figures = {"speedup": speedup, "speedup_low": low, "speedup_high": high, "tau": 2.0}
    plain = vars(MethodSettings(method)) | {"wrong": [], "doubts": [], "temperature": 1.0}
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
    silent = SimpleNamespace(say=lambda _: None, update=lambda _: None)
    engines = module.Engines(open_session(run_settings(words)), {}, silent)
    for method in (BASELINE, METHODS[0]):
        engines.measure(method, [Job("0", "a cat", 0)])
    gone = weakref.ref(engines.opened[METHODS[0]])
    engines.keep([BASELINE])
    gc.collect()
    assert gone() is None and [*engines.opened] == [BASELINE]


@pytest.mark.parametrize(
    ("rows", "best", "words"),
    [
        ([(1.3, 1.1, 1.5), (1.4, 0.9, 1.8)], 1, "Fastest: jacobi, 1.30 (1.10-1.50) times plain"),
        ([(0.9, 0.8, 1.1), (0.8, 0.7, 0.9)], 0, "The best, jacobi, reaches 0.90 (0.80"),
        ([(1.1, None, None)], 1, "Fastest: jacobi, 1.10 times plain decoding."),
        ([], 0, "the time was too short"),
    ],
)
def test_plain_decoding_wins_unless_a_method_is_faster_for_certain(rows, best, words) -> None:
    figures = zip(("ar", "jacobi", "recall"), [(1.0, 1.0, 1.0), *rows], strict=False)
    listed = [row(name, *speedups) for name, speedups in figures]
    assert fastest(listed) is listed[best]
    assert words in verdict(listed, listed[best])


@pytest.mark.parametrize("flags", [{"num_images": 2}, {"batch_size": 3}])
def test_no_turn_repeats_an_image(flags) -> None:
    settings = RunSettings(prompt="a red cat", **flags)
    jobs = [job for turn in range(5) for job in module.jobs_of_turn(settings, turn)]
    assert len({job.seed for job in jobs}) == len({job.id for job in jobs}) == len(jobs)


@pytest.fixture
def tune(checkpoint, tmp_path):
    """Run the command on the small checkpoint; returns the exit code."""
    (tmp_path / "prompts.txt").write_text("a cat\na dog\n")

    def run(**flags: object) -> int:
        given = {"model_path": checkpoint, "prompt": tmp_path / "prompts.txt", "device": "cpu"}
        given |= {"output": tmp_path / "tuned.yaml", "methods": "jacobi:window=2,adt"}
        given |= {"minutes": 0.1, "dtype": "fp64"} | flags
        return main.main(["tune", *(f"--{name}={value}" for name, value in given.items())])

    return run


def settings_of(path, **flags: str):
    given = {"config": str(path), "prompt": "a cat", "dtype": "fp64", "device": "cpu"}
    return run_settings(given | flags)


def test_table_and_recipe_say_what_was_measured_where(tune, checkpoint, tmp_path, capsys) -> None:
    path = tmp_path / "my tuned.yaml"
    assert tune(output=path) == 0
    lines = capsys.readouterr().out.splitlines()
    head, *body = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    assert head[:4] == ["method", "nodes", "tau", "seconds per image"] and len(body) == 4
    assert [cells[0] for cells in body[1:]] == ["ar (plain decoding)", "jacobi, window=2", "adt"]
    assert all(re.fullmatch(r"(\d+)/\1", cells[5]) for cells in body[1:]), "the images of ar"
    content = yaml.safe_load(path.read_text())
    assert {"date", "revision", "conditions", "table"} <= content["tuned"].keys()
    assert [one["method"] for one in content["tuned"]["table"]] == [c[0] for c in body[1:]]
    assert not list(tmp_path.glob("*.trials.jsonl"))
    assert f"Use it: --config '{path}' --dtype fp64; in Python, " in lines[-1]
    settings = settings_of(path)
    assert settings.method.method == content["method"] and settings.model_path == str(checkpoint)
    assert "tuned under" not in capsys.readouterr().err
    content["tuned"]["conditions"] |= {"machine": "an abacus", "compile": "off"}
    del content["tuned"]["conditions"]["device_map"]  # as of files that are older than it
    path.write_text(yaml.safe_dump(content))
    settings_of(path, temperature="0.5")
    said = capsys.readouterr().err
    assert "machine an abacus there" in said and "temperature 1.0 there, 0.5 here" in said
    assert "compile off there, auto here" in said and "device_map" not in said
    settings_of(path, quantize="int8", dtype="fp32")
    assert "quantize none there, int8 here" in capsys.readouterr().err
    settings_of(path, compile="auto")
    assert "compile off there, auto here" in capsys.readouterr().err
    other = "recall" if content["method"] != "recall" else "ar"
    settings_of(path, method=other)
    assert "tuned" not in capsys.readouterr().err, "another method was asked for"
    content["tuned"] = "yesterday"
    path.write_text(yaml.safe_dump(content))
    with pytest.raises(SettingsError, match=r"tuned.yaml: tuned: expected what"):
        settings_of(path)


@pytest.mark.parametrize(("images", "few"), [(1, True), (6, False)])
def test_too_few_images_are_said_to_be(images, few) -> None:
    plain = {"images": 9, "speedup": 1.0}
    rows = [plain, {"images": images, "speedup": 1.2}, {"images": 2, "speedup": 0.9}]
    words = "Too little to choose by: in 10 minutes a method and ar were compared on 1 image, "
    words += "and it takes 6. Run it again with more --minutes."
    for best in rows[:2]:
        assert module.shortage(rows, best, 10.0) == (words if few else "")
    assert "compared on 0 images" in module.shortage([plain], plain, 0.1)


def test_numbers_fitted_to_the_model_are_used_and_foreign_ones_are_named(
    tune, checkpoint, tmp_path, capsys, monkeypatch
) -> None:
    numbers = "0/1/0/1/0/1"
    monkeypatch.setattr(module, "fit_numbers", lambda *_: RecallNumbers.of((0, 1, 0, 1, 0, 1)))
    monkeypatch.setattr(module, "fastest", lambda rows: rows[-1])
    assert tune(methods="recall:nodes=4") == 0
    assert f"sharpness alone): {numbers}" in capsys.readouterr().out
    content = yaml.safe_load((tmp_path / "tuned.yaml").read_text())
    assert content["recall_numbers"] == content["tuned"]["recall_numbers"] == numbers
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
    monkeypatch.setattr("runs.tuned.ROOT", tmp_path)  # as if the included model were deleted
    run_settings(given | model | {"method": "recall"})
    assert said in capsys.readouterr().err
    remark.cache_clear()
    inspect_settings(model)
    run_settings(given | model | {"method": "jacobi"})
    tune_settings(given | model | {"methods": "recall"})
    assert said not in capsys.readouterr().err, "none is used, or tune fits them"
    benchmark_settings(given | model | {"methods": "ar,recall"})
    assert said in capsys.readouterr().err


def test_what_another_command_fitted_is_taken_over(tmp_path) -> None:
    """What was measured without fitted numbers is not."""
    path, recall = tmp_path / "trials", MethodSettings("recall")
    machine = Machine({recall: 1.0})
    jobs = [Job("0", "a cat", 0)]
    Trials(path, "key").add(recall, 0, jobs, machine.measure)
    again = Trials(path, "key")
    assert again.fitted == {} and again.earlier.keys() == {(again.name(recall), 0)}
    again.keep(recall_numbers="0/1/0/1/0/1")
    third = Trials(path, "key")
    assert third.fitted == {"recall_numbers": "0/1/0/1/0/1"}
    assert (third.name(recall), 0) not in third.earlier


def test_a_pipeline_takes_what_was_tuned(tune, checkpoint, tmp_path) -> None:
    model = tmp_path / "model"
    model.symlink_to(checkpoint)
    options = {"torch_dtype": torch.float64, "device": "cpu", "model": "anole"}
    with pytest.raises(SettingsError, match="method: 'tuned' works only after"):
        Pipeline.from_pretrained(model, method="tuned", **options)
    assert tune(model_path=model, model="anole", output=tuned_place(str(model))) == 0
    content = yaml.safe_load(tuned_place(str(model)).read_text())
    assert Pipeline.from_pretrained(model, method="tuned", **options).method == content["method"]


def test_an_interrupted_command_says_that_it_continues(tune, tmp_path, monkeypatch, capsys) -> None:
    measure, numbers = module.measure, count()

    def interrupted(*given):
        if next(numbers) == 4:
            raise KeyboardInterrupt
        return measure(*given)

    monkeypatch.setattr(module, "measure", interrupted)
    with claim("", tmp_path / "tuned.yaml"):
        assert tune() == 2 and "got another process at work on it" in capsys.readouterr().err
    assert tune() == 130
    assert "the same command continues where it stopped" in capsys.readouterr().err
    (kept,) = tmp_path.glob("*.trials.jsonl")
    assert len(kept.read_text().splitlines()) == 4, "a line for each measurement"
    (tmp_path / "prompts.txt").write_text("a cat\na fox\n")  # whose images are other ones
    assert tune() == 0
