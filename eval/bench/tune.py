"""`tune`: the fastest lossless method for a model on a machine, at every batch size.

Each batch size has a contest of its own (`eval/bench/contest.py`), and they share the time. What is
measured is kept beside the recipe, so the same command continues where one stopped.
"""

import shlex
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from itertools import accumulate, chain, islice, repeat, takewhile
from operator import mul
from pathlib import Path
from typing import Any

import torch

from configs.benchmark import TuneSettings
from configs.fields import Flag, SettingsError, in_list, mismatch, settings_dict
from configs.methods import MethodSettings
from configs.model import EngineSettings
from configs.recipes import TUNED, of_runs, read_recipe, read_yaml
from configs.schema import RunSettings
from decoding.engine import Engine
from decoding.images import Job
from eval.bench.bench import Bench, Row
from eval.bench.benchmark import refuse_wrong
from eval.bench.contest import LEAST_VALUES, Contest, compared, fastest, finalists, verdict
from eval.bench.measurements import FILE, Figures, Measurements
from eval.bench.table import heading, method_words, remarks, same_images, speedup_words, words_of
from runs.check.files import Examination
from runs.drawing import check_lengths, image_jobs
from runs.measure import BASELINE
from runs.plan import Plan
from runs.prompts import prompt_items
from runs.recall_fit import fit_numbers
from runs.session import Session, open_session
from runs.tuned import conditions_apart, recipe_text, tuned_place
from support.devices import memory_bytes, pick_device
from support.durable import make_writable, replace_file
from support.locks import claim
from support.output import remark
from support.processes import refuse_several
from support.progress import Progress, plural
from support.tables import NONE, Table, number
from support.wording import first_of

FIT_IMAGES, SHARE_OF_FIT = 4, 0.2  # images that numbers are fitted to; most of the time for them
MOST_IMAGES = {"cpu": 8, "cuda": 64}  # at once by default; a few keep a CPU's cores busy
FREE = 0.1  # of the memory, for activations, which are not counted
TIE = 1.03  # with fewer times the images per hour, a larger batch is not worth its longer wait
_WARM_ROUNDS = 8  # before a method's first measurement: they allocate memory and capture graphs
FITTED = "recall_numbers"  # the flag of what is fitted to a model


def run_tune(settings: TuneSettings) -> None:
    """Measure, print the tables, and write the recipe of the fastest methods."""
    refuse_several("tune")
    output = output_of(settings)
    make_writable("output", output.parent)
    with claim(f"--output {output}", output):
        _tune(settings, output)


def output_of(settings: TuneSettings) -> Path:
    """Return the recipe's file: --output, or a place named after model and conditions.

    A SettingsError for a file that `tune` would replace and did not write under these conditions.
    """
    if settings.output is None:
        return tuned_place(settings.run.engine)
    output, expected = Path(settings.output), "a new file, or one of `tune`"
    if output.exists():
        tuned = read_yaml(settings.output, "output").get(TUNED)
        if not (isinstance(tuned, dict) and isinstance(tuned.get("conditions"), dict)):
            raise mismatch(Flag("output", output), "another file", expected)
        if apart := conditions_apart(tuned, settings.run.engine):
            got = f"one under other conditions ({first_of(apart)})"
            raise mismatch(Flag("output", output), got, f"{expected} under these conditions")
    return output


def kept_by(output: Path) -> Path:
    """Return the file of measurements of a recipe."""
    return output.with_name(f"{output.stem}.{FILE}")


def lost_by(settings: TuneSettings, output: Path) -> list[str]:
    """Say which batch sizes the recipe that is replaced has, and the new one will not."""
    sizes: list[str] = []
    with suppress(SettingsError):  # a damaged file at the usual place has nothing to lose
        if output.exists() and TUNED in (recipe := read_recipe(str(output), of_runs())):
            sizes = [one["batch_size"] for one in recipe[TUNED]["batches"]]
    asked = {*map(str, sizes_of(settings))} if sizes else set()  # which examines the model
    lost = ",".join(size for size in sizes if size not in asked)
    return [f"{output} has methods for --batch_sizes {lost} that it will lose"] * bool(lost)


def _tune(settings: TuneSettings, output: Path) -> None:
    run = settings.run.engine
    tries = plural(len(settings.tried), "method")
    for note in lost_by(settings, output):
        remark(note)
    with Progress(f"{_words(tries, settings)}; to {output}") as progress:
        kept, session = Measurements(kept_by(output), run), open_session(run)
        check_lengths(session.target, prompt_items(settings.run.prompts))
        progress.limit = 60 * settings.minutes
        progress.begin()
        progress.say("fitting numbers")
        tried, numbers = _fitted(settings, session, kept)
        search = Search(settings, session, progress, kept)
        found = search.run(sizes_of(settings), tried)
    rows = [row for batch in found for row in batch.rows.values()]
    dates = {day for batch in found for day in batch.kept.dates}
    print(heading(settings.bench, session.hardware(), sorted(dates)))
    print(Table.of(list(map(cells, rows))).markdown() + remarks(list(map(_named, rows))))
    decided = [batch for batch in found if batch.decided]
    if decided:
        print(Table.of([best_cells(batch.best) for batch in decided]).markdown())
    for batch in found:
        print(f"{_at_once(batch.size)}: {batch.verdict}")
    if numbers:
        print(f"Recall numbers (share, sharpness in a mixture, sharpness alone): {numbers}")
    print(f"Measured: {kept.path}, which the same command takes over; without it, all is new")
    if decided:
        _write(output, run, decided)
        python = f"in Python Pipeline.from_pretrained({str(output)!r})"
        print(f"Use it: --config {shlex.quote(in_list(str(output)))}; {python}")
    if undecided := [str(batch.size) for batch in found if not batch.decided]:
        print(
            f"Undecided, so not written to {output}: {' and '.join(undecided)} at once. To go on, "
            "run the same command with more --minutes"
        )
    refuse_wrong(rows)


def _write(output: Path, run: EngineSettings, found: Sequence["Batch"]) -> None:
    """Write the recipe: the batch size with most images per hour, and the best method of each."""
    best = busiest(found)
    given: Figures = {}
    # last what has a drafter: its file is a condition of all methods that read it
    for batch in sorted(found, key=lambda batch: batch.method.drafted):
        given |= batch.kept.conditions(batch.method)
    tuned = {
        "date": date.today().isoformat(),
        "batches": [batch.recipe() for batch in found],
        "table": [_public(row) for batch in found for row in batch.rows.values()],
    }
    text = recipe_text(replace(run, batch_size=best.size), best.method, given, tuned)
    replace_file(output, text.encode())


def sizes_of(settings: TuneSettings) -> tuple[int, ...]:
    """Return the batch sizes to try: those asked for, or powers of two that fit into memory."""
    if settings.sizes:
        return settings.sizes
    run = settings.run.engine.with_method(BASELINE)
    if run.quantize == "int4":
        return (1,)  # with more images, passes of drafts have more rows than it is for
    device = pick_device(run.device)
    one, two = (_bytes(replace(run, batch_size=size)) for size in (1, 2))
    room = (1 - FREE) * memory_bytes(device) - one  # for further images, which all take the same
    most = max(1, min(MOST_IMAGES[device.type], 1 + room / max(two - one, 1)))
    return tuple(takewhile(most.__ge__, accumulate(repeat(2), mul, initial=1)))


def _bytes(run: EngineSettings) -> int:
    """Return the bytes that plain decoding takes with a caption's prompt."""
    memory = Examination(run, [BASELINE]).memory
    return sum(caption for caption, _ in memory.values())


@dataclass(frozen=True)
class Batch:
    """What was measured with so many images at once."""

    size: int
    rows: dict[MethodSettings, Row]  # plain decoding's first
    best: Row
    verdict: str
    decided: bool  # whether the best was compared with plain decoding on enough images
    kept: Measurements
    replayed: float  # seconds of the measurements that an earlier command made

    @property
    def method(self) -> MethodSettings:
        """The fastest method."""
        return next(method for method, row in self.rows.items() if row is self.best)

    def likelier_first(self, tried: Sequence[MethodSettings]) -> list[MethodSettings]:
        """Return methods, the fastest here first, those that were not tried last."""
        speedups = {method: row["speedup"] for method, row in self.rows.items()}
        return sorted(tried, key=lambda method: -speedups.get(method, 0.0))

    def recipe(self) -> dict[str, Any]:
        """Return the flags of the fastest method, and what it reaches."""
        flags = {
            name: value for name, value in settings_dict(self.method).items() if value is not None
        }
        names = ("images_per_hour", "seconds_to_first_image", "speedup")
        return {"batch_size": self.size, **flags, **{n: round(self.best[n], 3) for n in names}}


@dataclass(frozen=True)
class Search:
    """A contest of methods at every batch size, on loaded weights."""

    settings: TuneSettings
    session: Session
    progress: Progress
    kept: Measurements

    def run(self, sizes: Sequence[int], tried: Sequence[MethodSettings]) -> list[Batch]:
        """Return what was measured, by batch size; each has its share of the time.

        Unless the sizes were asked for, one that gives hardly more images per hour is the last.
        """
        batches: list[Batch] = []
        assert self.progress.limit is not None  # the time decides
        for passed, size in enumerate(sizes):
            left = self.progress.limit - self.progress.seconds
            left -= sum(batch.replayed for batch in batches)
            if batches and left <= 0:
                remark(f"{_at_once(size)} and more: not tried; --minutes gives more time")
                break
            try:
                batches.append(self._contest(size, tried, left / (len(sizes) - passed)))
            except torch.OutOfMemoryError:
                if not batches:
                    raise
                remark(f"{_at_once(size)}: too little memory, so not measured")
                break
            if not self.settings.sizes and busiest(batches) is not batches[-1]:
                break
            tried = batches[-1].likelier_first(tried)
        return batches

    def _contest(self, size: int, tried: Sequence[MethodSettings], seconds: float) -> Batch:
        """Return what was measured of methods with so many images at once."""
        run = replace(self.settings.run, engine=replace(self.session.settings, batch_size=size))
        prompts, kept = partial(jobs_of_turn, run), self.kept.of(run.engine)
        warm = partial(_warm, jobs=prompts(0))
        bench = Bench(self.session.with_settings(run.engine), kept, self.progress, warm)
        contest = Contest(bench, prompts, seconds)
        left = contest.run(tried)
        bench.keep(())  # comparing images takes memory
        rows = {
            method: bench.row(method, [pair[0]], [pair[1]])
            for method in (BASELINE, *tried)
            if (pair := contest.pair(method))
        }
        final = finalists(rows, left)
        best = fastest(final)
        if alone := len(rows) == 1 and not contest.late:
            words = "Plain decoding (ar) is chosen: no other method fits into memory."
        else:
            words = verdict(final, best, self.settings.minutes)
            if untried := len(tried) + 1 - len(rows):
                words += f" Not tried: {plural(untried, 'method')}; --minutes gives more time."
        decided = alone or compared(final, best) >= LEAST_VALUES
        return Batch(size, rows, best, words, decided, kept, bench.replayed)


def busiest(found: Sequence[Batch]) -> Batch:
    """Return the batch size with most images per hour; of sizes that hardly differ, the least."""
    most = max(batch.best["images_per_hour"] for batch in found)
    return next(batch for batch in found if TIE * batch.best["images_per_hour"] > most)


def _at_once(images: int) -> str:
    return f"{plural(images, 'image')} at once"


def _fitted(
    settings: TuneSettings, session: Session, kept: Measurements
) -> tuple[tuple[MethodSettings, ...], str | None]:
    """Return the methods with the numbers of `recall` that are fitted to the model, and these.

    None are fitted if no method has them open, or if the time or the memory is too small.
    """
    jobs = [job for turn in range(FIT_IMAGES) for job in jobs_of_turn(settings.run, turn)]
    given = kept.conditions(MethodSettings("recall")) | {"fitted to": [vars(job) for job in jobs]}
    if not any(map(_is_open, settings.tried)):
        return settings.tried, None
    if (line := kept.find(given)) is None:
        # rounds that can be watched
        plain = session.with_settings(replace(session.settings, compile="off"))
        try:
            numbers = fit_numbers(plain.open_engine, jobs, SHARE_OF_FIT * 60 * settings.minutes)
        except torch.OutOfMemoryError:
            remark(f"--{FITTED}: fitting it does not fit into memory, so it stays as it is")
            numbers = None
        if numbers is None:
            return settings.tried, None
        line = {FITTED: "/".join(f"{number:g}" for number in chain(*vars(numbers).values()))}
        kept.add((given, line))
    fitted = {FITTED: line[FITTED]}
    tried = (replace(one, **fitted) if _is_open(one) else one for one in settings.tried)
    return tuple(tried), line[FITTED]


def _is_open(method: MethodSettings) -> bool:
    """Return whether a method takes the included model's numbers for want of its own."""
    # those of mixtures are not fitted
    return method.recall_numbers is None and method.method == "recall"


def _warm(engine: Engine, jobs: list[Job]) -> None:
    """Run an engine's first rounds."""
    with closing(engine.generate(jobs)) as rounds:
        list(islice(rounds, _WARM_ROUNDS))


def jobs_of_turn(settings: RunSettings, turn: int) -> list[Job]:
    """Return a turn's jobs, one or a batch; after the last image the first prompt has new ones."""
    items, samples = prompt_items(settings.prompts), settings.prompts.samples_per_prompt
    batch = settings.engine.batch_size
    chosen = []
    for count in range(turn * batch, (turn + 1) * batch):
        cycle, index = divmod(count, len(items))
        chosen.append(replace(items[index], sample=items[index].sample + cycle * samples))
    return image_jobs(chosen, settings.prompts.seed)


def cells(row: Row) -> dict[str, str]:
    """Return a row of the table; the last columns say where a round's time goes."""
    spent = row["ms_per_round"]
    draft, verify = spent.get("draft", 0.0), spent.get("verify", 0.0)
    # of rounds that are replayed only the whole is known
    rest = spent["round"] - draft - verify if verify else 0.0
    times = {"draft": draft, "verify": verify, "rest": rest}
    return {
        "at once": str(row["batch_size"]),
        "method": method_words(row),
        "nodes": f"{row['mean_nodes']:.1f}",
        "tau": f"{row['tau']:.2f}",
        "seconds per image": number(row["seconds_per_image"]),
        "speed-up (95 %)": speedup_words(row),
        "same images": same_images(row),
        **{f"{name}, ms": number(ms) if ms else NONE for name, ms in times.items()},
    }


def _named(row: Row) -> Row:
    """Return a row that remarks name by its batch size as well."""
    return row | {"cell": f"{method_words(row)} ({row['batch_size']} at once)"}


def best_cells(row: Row) -> dict[str, str]:
    """Return a row of the table of batch sizes."""
    return {
        "at once": str(row["batch_size"]),
        "fastest": method_words(row),
        "images per hour": f"{row['images_per_hour']:,.0f}",
        "seconds to the first image": number(row["seconds_to_first_image"]),
        "speed-up (95 %)": speedup_words(row),
    }


def _public(row: Row) -> dict[str, Any]:
    """Return what the written file says of a row; without an interval if there is none."""
    names = ("mean_nodes", "tau", "seconds_per_image", "speedup", "speedup_low", "speedup_high")
    figures = {name: round(row[name], 4) for name in names if row[name] is not None}
    words = {"batch_size": row["batch_size"], "method": method_words(row)}
    return {**words, **figures, **{name: row[name] for name in ("identical", "images")}}


def _words(tried: str, settings: TuneSettings) -> str:
    """Say what is tried, with which batch sizes and for how long."""
    images = settings.batch_sizes or "1, 2, 4 and so on"
    words = f"trying {tried} next to ar, with {images} images at once"
    return f"{words}, for at most {settings.minutes:g} minutes"


def plan_tune(settings: TuneSettings) -> Plan:
    """Return what `tune` would do."""
    output = output_of(settings)
    what = _words("; ".join(map(words_of, settings.tried)), settings)
    what += (
        f", on images of {plural(len(prompt_items(settings.run.prompts)), 'prompt')}; to {output}"
    )
    path = kept_by(output)
    found = Measurements(path, settings.run.engine, planned=True).lines
    notes = [f"{plural(len(found), 'line')} in {path}" if found else f"{path} would be new"]
    notes += lost_by(settings, output)
    place = {"output": output.parent}
    return Plan(what, place, run=settings.run.engine, methods=settings.tried, notes=notes)
