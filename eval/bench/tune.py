"""`tune`: which lossless method is the fastest for a model on a machine, found by elimination.

Methods take turns with plain decoding, image by image, as in `benchmark`. After each of a few
stages, which share the time, the slower half of the methods drops out (successive halving,
arXiv 1502.07943), and before that whatever is certainly slower than plain decoding or than the
fastest method. Measurements are lines of a file, so the same command continues where one stopped.
"""

import json
import math
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import partial
from hashlib import sha256
from itertools import chain, islice
from pathlib import Path
from typing import Any, Protocol

import torch

from configs.benchmark import TuneSettings
from configs.fields import mismatch, settings_dict
from configs.methods import MethodSettings
from configs.schema import RunSettings
from decoding.engine import Engine
from decoding.images import FinishedImage, Job
from eval.bench.benchmark import Bench, Row, refuse_wrong
from eval.bench.speedup import LEAST_VALUES, speedup
from eval.bench.table import heading, method_words, remarks, speedup_words
from eval.metrics.intervals import Estimate
from runs.drawing import image_jobs
from runs.measure import BASELINE, Measurement, joined, measure
from runs.prompts import prompt_items
from runs.recall_fit import fit_numbers
from runs.session import Session
from runs.tuned import conditions, flags_beside, recipe_text, tuned_place
from support.durable import append_lines, claim, make_writable, replace_file
from support.json_files import mended_lines
from support.output import remark
from support.processes import refuse_several
from support.progress import Progress, plural
from support.provenance import revision, with_hashes
from support.tables import NONE, Table, number

FIT_IMAGES, SHARE_OF_FIT = 4, 0.2  # images that numbers are fitted to; most of the time for them
MOST_TURNS = 8  # of a stage; the last one has twice as many
_WARM_ROUNDS = 8  # before a method's first measurement: they allocate memory and capture graphs
_FILES = ("model_path", "tokenizer_path", "drafter_path", "text_encoder_path", "vq_path")

FITTED = "recall_numbers"  # the flag of what is fitted to a model

Fitted = dict[str, str]  # numbers as the flag takes them
Prompts = Callable[[int], list[Job]]  # the jobs of each turn
Measure = Callable[[MethodSettings, list[Job]], Measurement]


class Machine(Protocol):
    """What measures methods, and forgets those that have dropped out."""

    measure: Measure

    def keep(self, methods: Sequence[MethodSettings]) -> None: ...


def run_tune(settings: TuneSettings) -> None:
    """Measure, print the table and where the time goes, and write the recipe of the fastest."""
    refuse_several("tune")
    output = Path(settings.output) if settings.output else tuned_place(settings.run.model_path)
    make_writable("output", output.parent)
    with claim(f"--output {output}", output):
        _tune(settings, output)


def _tune(settings: TuneSettings, output: Path) -> None:
    tries, minutes = plural(len(settings.tried), "method"), f"{settings.minutes:g} minutes"
    with Progress(f"trying {tries} for at most {minutes}; to {output}") as progress:
        bench = Bench.open(settings.bench)
        trials = Trials(output.with_name(f"{output.name}.trials.jsonl"), _key(settings))
        prompts = partial(jobs_of_turn, settings.run)
        progress.limit = 60 * settings.minutes
        progress.begin()
        progress.say("fitting numbers")
        _fit(settings, bench.session, trials, prompts)
        tried, seconds = settings.tried, progress.limit - progress.seconds
        engines = Engines(bench.session, trials.fitted, progress)
        left = Contest(trials, prompts, engines, seconds).run(tried)
        engines.keep(())  # comparing images takes memory, too
    pairs = {method: pair for method in (BASELINE, *tried) if (pair := trials.pair(method))}
    by_method = {
        method: bench.row(method, [pair[0]], [pair[1]]) | {"images": len(pair[0].images)}
        for method, pair in pairs.items()
    }
    rows, final = [*by_method.values()], finalists(by_method, left)
    today = date.today().isoformat()
    print(heading(settings.bench, bench.session.hardware(), [today]))
    print(Table.of(list(map(cells, rows))).markdown() + remarks(rows), end="")
    best = fastest(final)
    print(f"\n{verdict(final, best)}")
    if doubt := shortage(final, best, settings.minutes):
        print(doubt)
    if untried := len(tried) + 1 - len(rows):
        print(f"Not tried: {plural(untried, 'method')}; --minutes gives more time.")
    winner = with_fitted([*pairs][rows.index(best)], trials.fitted)
    for numbers in trials.fitted.values():
        print(f"Recall numbers (share, sharpness in a mixture, sharpness alone): {numbers}")
    tuned = trials.fitted | {
        "date": today,
        "revision": revision() or "unknown",
        "table": list(map(_public, rows)),
    }
    text = recipe_text(settings.run.with_method(winner), _files(settings.run, winner), tuned)
    replace_file(output, text.encode())
    # Only now: a kill before the recipe is written costs no measurement.
    trials.path.unlink(missing_ok=True)
    python = f"in Python, with the same settings: Pipeline.from_pretrained({str(output)!r})"
    print(f"Use it: --config {shlex.quote(str(output))}{flags_beside(settings.run)}; {python}")
    refuse_wrong(rows)


def _fit(settings: TuneSettings, session: Session, trials: "Trials", prompts: Prompts) -> None:
    """Fit the numbers of `recall` to the model, if a method has them open and the time is enough.

    The trials keep them.
    """
    if not any(map(_is_open, settings.tried)):
        trials.fitted = {}
    elif not trials.fitted:
        # rounds that can be watched
        plain = replace(session.settings, batch_size=1, compile="off")
        jobs = [job for turn in range(FIT_IMAGES) for job in prompts(turn)][:FIT_IMAGES]
        seconds = SHARE_OF_FIT * 60 * settings.minutes
        try:
            numbers = fit_numbers(session.with_settings(plain).open_engine, jobs, seconds)
        except torch.OutOfMemoryError:
            remark(f"--{FITTED}: fitting it does not fit into memory, so it stays as it is")
            return
        if numbers is not None:
            values = chain(*vars(numbers).values())
            trials.fitted = {FITTED: "/".join(f"{number:g}" for number in values)}
            trials.keep(**trials.fitted)


def with_fitted(method: MethodSettings, fitted: Fitted) -> MethodSettings:
    """Return a method with the fitted numbers, if it has not been given any."""
    return replace(method, **fitted) if _is_open(method) else method


def _is_open(method: MethodSettings) -> bool:
    """Return whether a method takes the included model's numbers for want of its own."""
    # those of mixtures are not fitted
    return method.recall_numbers is None and method.method == "recall"


@dataclass
class Trials:
    """Measurements by method and turn, which a file keeps for the next command."""

    path: Path
    key: str  # of all that they depend on, besides method and turn
    measured: dict[tuple[MethodSettings, int], Measurement] = field(default_factory=dict)
    earlier: dict[tuple[str, int], Measurement] = field(default_factory=dict)  # by method's key
    fitted: Fitted = field(default_factory=dict)
    replayed: float = 0.0  # seconds of the earlier measurements that were taken over

    def __post_init__(self) -> None:
        for line in mended_lines(self.path):
            if line["id"] != self.key:
                continue
            if "method" not in line:
                self.fitted |= {FITTED: line[FITTED]} if FITTED in line else {}
            else:
                self.earlier[line["method"], line["turn"]] = _measurement(self.path, line)

    def keep(self, **values: object) -> None:
        append_lines(self.path, [{"id": self.key} | values])

    def add(self, method: MethodSettings, turn: int, jobs: list[Job], make: Measure) -> None:
        """Take over an earlier command's measurement, or make a new one and keep it."""
        name = self.name(method)
        one = self.earlier.get((name, turn))
        # the prompts may have been edited since
        if one is not None and [image.job for image in one.images] == jobs:
            self.replayed += sum(image.seconds for image in one.images)
        else:
            one = make(method, jobs)
            self.keep(method=name, turn=turn, **_line(one))
        self.measured[method, turn] = one

    def name(self, method: MethodSettings) -> str:
        """Return a method's name in the file."""
        # with the fitted numbers, since another command may have had no time to fit them
        return json.dumps(settings_dict(with_fitted(method, self.fitted)), sort_keys=True)

    def pair(self, method: MethodSettings) -> tuple[Measurement, Measurement] | None:
        """Return a method's measurements and those of plain decoding, on the same images."""
        turns = [t for m, t in self.measured if m == method and (BASELINE, t) in self.measured]
        if not turns:
            return None
        return tuple(joined([self.measured[m, t] for t in turns]) for m in (method, BASELINE))


@dataclass
class Contest:
    """Methods measured in turns with plain decoding, until one is left or the time is over."""

    trials: Trials
    prompts: Prompts
    machine: Machine
    seconds: float  # for all of it; what earlier commands spent counts
    clock: Callable[[], float] = time.monotonic
    turn: int = 0

    def run(self, methods: Sequence[MethodSettings]) -> list[MethodSettings]:
        """Measure; returns the methods that are left, the fastest first."""
        alive, end = list(methods), self._now() + self.seconds
        stages = max(1, math.ceil(math.log2(len(alive))))
        for left in range(stages, 0, -1):
            # What a stage leaves goes to the later ones.
            share = self._now() + (end - self._now()) / left
            for _ in range(MOST_TURNS * (2 if left == 1 else 1)):
                started = self._now()
                alive = self._take_turn(alive, end)
                if not alive or 2 * self._now() - started > share:  # the next turn would be late
                    break
            alive.sort(key=lambda method: self._speedup(method).value, reverse=True)
            alive = alive[: math.ceil(len(alive) / 2)]
            if not alive or self._now() >= end:
                break
        return alive

    def _now(self) -> float:
        """Return the time, as if the measurements of earlier commands were made now.

        So a command that continues takes the same turns.
        """
        return self.clock() + self.trials.replayed

    def _take_turn(self, alive: list[MethodSettings], end: float) -> list[MethodSettings]:
        """Measure all on the next images, in alternating order.

        Returns the methods that fit into memory and may still be the fastest, by 95 % intervals.
        """
        self.machine.keep([BASELINE, *alive])
        turn, jobs = self.turn, self.prompts(self.turn)
        order = [BASELINE, *(alive if turn % 2 == 0 else reversed(alive))]
        fit = list(alive)
        for method in order:
            # `ar` is measured even if the time is over: the table and the fallback need it.
            if self._now() >= end and self.trials.measured:
                break
            try:
                self.trials.add(method, turn, jobs, self.machine.measure)
            except torch.OutOfMemoryError:
                if method == BASELINE:
                    raise
                name = method_words(settings_dict(method))
                remark(f"{name}: does not fit into memory, so not tried")
                fit.remove(method)
                self.machine.keep([BASELINE, *fit])
        self.turn += 1
        speedups = {method: self._speedup(method) for method in fit if self.trials.pair(method)}
        bar = max([1.0, *(one.low or 1.0 for one in speedups.values())])
        return [m for m, one in speedups.items() if one.high is None or one.high >= bar]

    def _speedup(self, method: MethodSettings) -> Estimate:
        measured, plain = self.trials.pair(method)
        return speedup([measured], [plain])


@dataclass
class Engines:
    """Decode jobs once, by engines that are opened and warmed up when first used.

    They have the fitted numbers, which a table of methods does not show.
    """

    session: Session
    fitted: Fitted
    progress: Progress
    opened: dict[MethodSettings, Engine] = field(default_factory=dict)

    def measure(self, method: MethodSettings, jobs: list[Job]) -> Measurement:
        self.progress.say(f"now {method_words(settings_dict(method))}")
        if method not in self.opened:
            self.opened[method] = self.session.open_engine(with_fitted(method, self.fitted))
            with closing(self.opened[method].generate(jobs)) as rounds:
                list(islice(rounds, _WARM_ROUNDS))
        measured = measure(self.opened[method], jobs)
        self.progress.update(len(jobs))
        return measured

    def keep(self, methods: Sequence[MethodSettings]) -> None:
        """Close the engines of all other methods, since each has a cache of its own."""
        self.opened = {method: e for method, e in self.opened.items() if method in methods}


def jobs_of_turn(settings: RunSettings, turn: int) -> list[Job]:
    """Return a turn's jobs, one or a batch; after the last image the first prompt has new ones."""
    items, batch, each = prompt_items(settings), settings.batch_size, settings.samples_per_prompt
    chosen = []
    for count in range(turn * batch, (turn + 1) * batch):
        cycle, place = divmod(count, len(items))
        chosen.append(replace(items[place], sample=items[place].sample + cycle * each))
    return image_jobs(chosen, settings.seed)


def finalists(rows: Mapping[MethodSettings, Row], left: Sequence[MethodSettings]) -> list[Row]:
    """Return the rows to choose from: plain decoding's and those of the methods that are left.

    What dropped out was measured on fewer images, perhaps on easier ones. It counts where it has an
    interval and nothing that is left is faster than plain decoding for certain.
    """
    kept = [row for method, row in rows.items() if method in (BASELINE, *left)]
    if fastest(kept) is not rows[BASELINE]:
        return kept
    return [row for row in rows.values() if row in kept or row["speedup_low"] is not None]


def fastest(rows: Sequence[Row]) -> Row:
    """Return the row of the fastest method; of plain decoding if none is faster for certain.

    With fewer images than an interval takes, the median decides.
    """
    faster = [
        row for row in rows if (row["speedup_low"] or row["speedup"]) > 1 and not row["wrong"]
    ]
    return max(faster, key=lambda row: row["speedup"], default=rows[0])


def verdict(rows: Sequence[Row], best: Row) -> str:
    """Say in a line which method is the fastest, and by how much."""
    plain, *others = rows
    if best is not plain:
        return f"Fastest: {method_words(best)}, {speedup_words(best)} times plain decoding."
    if not others:
        return "Plain decoding (ar) is chosen: the time was too short to try another method."
    second = max(others, key=lambda row: row["speedup"])
    cost = second["ms_per_round"]["round"] / plain["ms_per_round"]["round"]
    return (
        "Plain decoding (ar) is chosen: no draft method is faster beyond doubt. The best, "
        f"{method_words(second)}, reaches {speedup_words(second)} times its speed: a round decides "
        f"{second['tau']:.2f} tokens and takes {cost:.2f} times as long."
    )


def shortage(rows: Sequence[Row], best: Row, minutes: float) -> str:
    """Say what was measured if it is too little to choose by; "" if it is enough."""
    plain, *others = rows
    contenders = others if best is plain else [best]
    compared = max(contenders, key=lambda row: row["speedup"], default={"images": 0})
    images = compared["images"]
    if images >= LEAST_VALUES:
        return ""
    return (
        f"Too little to choose by: in {minutes:g} minutes a method and ar were compared on "
        f"{plural(images, 'image')}, and it takes {LEAST_VALUES}. Run it again with more --minutes."
    )


def cells(row: Row) -> dict[str, str]:
    """Return a row of the table; the last columns say where a round's time goes."""
    spent = row["ms_per_round"]
    draft, verify = spent.get("draft", 0.0), spent.get("verify", 0.0)
    # of rounds that are replayed only the whole is known
    rest = spent["round"] - draft - verify if verify else 0.0
    times = {"draft": draft, "verify": verify, "rest": rest}
    return {
        "method": method_words(row),
        "nodes": f"{row['mean_nodes']:.1f}",
        "tau": f"{row['tau']:.2f}",
        "seconds per image": number(row["seconds_per_image"]),
        "speed-up (95 %)": speedup_words(row),
        "same images": f"{row['identical']}/{row['images']}",
        **{f"{name}, ms": number(ms) if ms else NONE for name, ms in times.items()},
    }


def _public(row: Row) -> dict[str, Any]:
    """Return what the written file says of a row; without an interval if there is none."""
    names = ("mean_nodes", "tau", "seconds_per_image", "speedup", "speedup_low", "speedup_high")
    figures = {name: round(row[name], 4) for name in names if row[name] is not None}
    return {"method": method_words(row), **figures} | {n: row[n] for n in ("identical", "images")}


def _files(run: RunSettings, method: MethodSettings) -> dict[str, str]:
    """Return the model's files by flag, without those that stand at their default places."""
    usual = RunSettings(prompt=run.prompt, model=run.model, sampling=run.sampling, method=method)
    named = {name: getattr(run.with_method(method), name) for name in _FILES}
    return {
        name: str(Path(path).absolute()) if Path(path).exists() else path
        for name, path in named.items()
        if path and path != getattr(usual, name)
    }


def _key(settings: TuneSettings) -> str:
    """Return a hash of all that a measurement depends on, besides its method."""
    run = settings.run.with_method(BASELINE)
    # Apart, since the conditions of plain decoding name no drafter.
    drafter = conditions(settings.run).get("drafter")
    jobs = list(map(asdict, jobs_of_turn(run, 0)))
    text = json.dumps([with_hashes(run.identity()), conditions(run), drafter, jobs], sort_keys=True)
    return sha256(text.encode()).hexdigest()[:16]


def _line(one: Measurement) -> Row:
    """Return a measurement as a line of the file; `_measurement` reads it."""
    images = [
        vars(image) | {"job": asdict(image.job), "codes": image.codes.tolist()}
        for image in one.images
    ]
    return vars(one) | {"images": images}


def _measurement(path: Path, line: Row) -> Measurement:
    """Return the measurement on a line; a SettingsError if the line is damaged."""
    try:
        images = []
        for image in line["images"]:
            tensors = {"job": Job(**image["job"]), "codes": torch.tensor(image["codes"])}
            images.append(FinishedImage(**(image | tensors)))
        return Measurement(images, line["seconds"], line["calls"], tuple(line["cpu_seconds"]))
    except (KeyError, TypeError) as error:
        got, advice = f"a damaged line ({error!r})", "Delete the file to start again."
        raise mismatch(str(path), got, "lines that `tune` wrote", advice) from error
