"""`tune`: which lossless method is the fastest for a model on a machine, found by elimination.

Methods take turns with plain decoding, as in `benchmark`. After each of a few stages, which share
the time, the slower half of the methods drops out (successive halving, arXiv 1502.07943), and
before that whatever is certainly slower than plain decoding or than the fastest method. What is
measured is kept beside the recipe, so the same command continues where one stopped.
"""

import math
import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch

from configs.benchmark import TuneSettings
from configs.methods import MethodSettings
from configs.schema import RunSettings
from decoding.engine import Engine
from decoding.images import Job
from eval.bench.bench import Bench, Row
from eval.bench.benchmark import refuse_wrong
from eval.bench.measurements import FILE, Measurements
from eval.bench.speedup import LEAST_VALUES, speedup
from eval.bench.table import heading, method_words, remarks, same_images, speedup_words, words_of
from eval.metrics.intervals import Estimate
from runs.drawing import check_lengths, image_jobs
from runs.measure import BASELINE, Measurement, joined
from runs.plan import Plan
from runs.prompts import prompt_items
from runs.recall_fit import fit_numbers
from runs.session import Session, open_session
from runs.tuned import recipe_text, tuned_place
from support.durable import claim, make_writable, replace_file
from support.output import remark
from support.processes import refuse_several
from support.progress import Progress, plural
from support.tables import NONE, Table, number

FIT_IMAGES, SHARE_OF_FIT = 4, 0.2  # images that numbers are fitted to; most of the time for them
MOST_TURNS = 8  # of a stage; the last one has twice as many
_WARM_ROUNDS = 8  # before a method's first measurement: they allocate memory and capture graphs
FITTED = "recall_numbers"  # the flag of what is fitted to a model


def run_tune(settings: TuneSettings) -> None:
    """Measure, print the table and where the time goes, and write the recipe of the fastest."""
    refuse_several("tune")
    output = output_of(settings)
    make_writable("output", output.parent)
    with claim(f"--output {output}", output):
        _tune(settings, output)


def output_of(settings: TuneSettings, download: bool = True) -> Path:
    """Return the recipe's file: --output, or a place named after model and conditions."""
    return Path(settings.output) if settings.output else tuned_place(settings.run.engine, download)


def kept_by(output: Path) -> Path:
    """Return the file of measurements of a recipe."""
    return output.with_name(f"{output.stem}.{FILE}")


def _tune(settings: TuneSettings, output: Path) -> None:
    run = settings.run.engine
    prompts = partial(jobs_of_turn, settings.run)
    tries, minutes = plural(len(settings.tried), "method"), f"{settings.minutes:g} minutes"
    with Progress(f"trying {tries} for at most {minutes}; to {output}") as progress:
        session, kept = open_session(run), Measurements(kept_by(output), run)
        check_lengths(session.target, prompt_items(settings.run.prompts))
        progress.limit = 60 * settings.minutes
        progress.begin()
        progress.say("fitting numbers")
        tried, numbers = _fitted(settings, session, kept, prompts)
        bench = Bench(session, kept, progress, partial(_warm, jobs=prompts(0)))
        contest = Contest(bench, prompts, progress.limit - progress.seconds)
        left = contest.run(tried)
        bench.keep(())  # comparing images takes memory
    by_method = {
        method: bench.row(method, [pair[0]], [pair[1]])
        for method in (BASELINE, *tried)
        if (pair := contest.pair(method))
    }
    rows, final = [*by_method.values()], finalists(by_method, left)
    print(heading(settings.bench, session.hardware(), sorted(kept.dates)))
    print(Table.of(list(map(cells, rows))).markdown() + remarks(rows), end="")
    best = fastest(final)
    print(f"\n{verdict(final, best, settings.minutes)}")
    if untried := len(tried) + 1 - len(rows):
        print(f"Not tried: {plural(untried, 'method')}; --minutes gives more time.")
    if numbers:
        print(f"Recall numbers (share, sharpness in a mixture, sharpness alone): {numbers}")
    winner = run.with_method([*by_method][rows.index(best)])
    tuned = {"date": date.today().isoformat(), "table": list(map(_public, rows))}
    replace_file(output, recipe_text(winner, kept.conditions(winner.method), tuned).encode())
    print(f"Measured: {kept.path}, which the same command takes over; without it, all is new")
    python = f"in Python Pipeline.from_pretrained({str(output)!r})"
    print(f"Use it: --config {shlex.quote(str(output))}; {python}")
    refuse_wrong(rows)


def _fitted(
    settings: TuneSettings, session: Session, kept: Measurements, prompts: "Prompts"
) -> tuple[tuple[MethodSettings, ...], str | None]:
    """Return the methods with the numbers of `recall` that are fitted to the model, and these.

    None are fitted if no method has them open, or if the time or the memory is too small.
    """
    jobs = [job for turn in range(FIT_IMAGES) for job in prompts(turn)][:FIT_IMAGES]
    given = kept.conditions(MethodSettings("recall")) | {"fitted to": [vars(job) for job in jobs]}
    if not any(map(_is_open, settings.tried)):
        return settings.tried, None
    if (line := kept.find(given)) is None:
        # rounds that can be watched
        plain = session.with_settings(replace(session.settings, batch_size=1, compile="off"))
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


Prompts = Callable[[int], list[Job]]  # the jobs of each turn
Pair = tuple[Measurement, Measurement]  # of a method and of plain decoding, on the same images


@dataclass
class Contest:
    """Methods measured in turns with plain decoding, until one is left or the time is over."""

    bench: Bench
    prompts: Prompts
    seconds: float  # for all of it; what earlier commands spent counts
    clock: Callable[[], float] = time.monotonic
    turns: int = 0
    pairs: dict[MethodSettings, list[Pair]] = field(default_factory=lambda: defaultdict(list))

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
        return self.clock() + self.bench.replayed

    def _take_turn(self, alive: list[MethodSettings], end: float) -> list[MethodSettings]:
        """Measure all on the next images.

        Returns the methods that fit into memory and may still be the fastest, by 95 % intervals.
        """
        methods = [BASELINE, *alive]
        self.bench.keep(methods)
        turn = self.bench.turn(methods, self.prompts(self.turns), lambda: self._now() >= end)
        self.turns += 1
        for method in turn if BASELINE in turn else ():
            self.pairs[method].append((turn[method], turn[BASELINE]))
        speedups = {method: self._speedup(method) for method in alive if self.pairs[method]}
        bar = max([1.0, *(one.low or 1.0 for one in speedups.values())])
        fit = alive if self._now() >= end else turn  # if the time is over, some were not measured
        return [m for m, e in speedups.items() if m in fit and (e.high is None or e.high >= bar)]

    def pair(self, method: MethodSettings) -> Pair | None:
        """Return a method's measurements and those of plain decoding, on the same images."""
        if not (pairs := self.pairs.get(method)):
            return None
        ours, plain = zip(*pairs, strict=True)
        return joined(ours), joined(plain)

    def _speedup(self, method: MethodSettings) -> Estimate:
        pair = self.pair(method)
        assert pair is not None  # it was measured
        measured, plain = pair
        return speedup([measured], [plain])


def jobs_of_turn(settings: RunSettings, turn: int) -> list[Job]:
    """Return a turn's jobs, one or a batch; after the last image the first prompt has new ones."""
    items, each = prompt_items(settings.prompts), settings.prompts.samples_per_prompt
    batch = settings.engine.batch_size
    chosen = []
    for count in range(turn * batch, (turn + 1) * batch):
        cycle, place = divmod(count, len(items))
        chosen.append(replace(items[place], sample=items[place].sample + cycle * each))
    return image_jobs(chosen, settings.prompts.seed)


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


def verdict(rows: Sequence[Row], best: Row, minutes: float) -> str:
    """Say in a line which method is the fastest and by how much, or that it is inconclusive."""
    plain, *others = rows
    contenders = others if best is plain else [best]
    images = max(contenders, key=lambda row: row["speedup"], default={"images": 0})["images"]
    choice = _choice(plain, others, best)
    if images >= LEAST_VALUES:
        return choice
    return (
        f"Inconclusive: in {minutes:g} minutes a method and ar were compared on "
        f"{plural(images, 'image')}, and it takes {LEAST_VALUES}. Run it again with more "
        f"--minutes. Until then: {choice}"
    )


def _choice(plain: Row, others: Sequence[Row], best: Row) -> str:
    """Say which method is chosen, and why."""
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
        "same images": same_images(row),
        **{f"{name}, ms": number(ms) if ms else NONE for name, ms in times.items()},
    }


def _public(row: Row) -> dict[str, Any]:
    """Return what the written file says of a row; without an interval if there is none."""
    names = ("mean_nodes", "tau", "seconds_per_image", "speedup", "speedup_low", "speedup_high")
    figures = {name: round(row[name], 4) for name in names if row[name] is not None}
    return {"method": method_words(row), **figures} | {n: row[n] for n in ("identical", "images")}


def plan_tune(settings: TuneSettings) -> Plan:
    """Return what `tune` would do."""
    output, prompts = (
        output_of(settings, download=False),
        plural(len(prompt_items(settings.run.prompts)), "prompt"),
    )
    what = f"trying {'; '.join(map(words_of, settings.tried))} next to ar for at most "
    what += f"{settings.minutes:g} minutes on images of {prompts}; to {output}"
    path = kept_by(output)
    found = Measurements(path if path.is_file() else None, settings.run.engine).lines
    notes = [f"{plural(len(found), 'line')} in {path}" if found else f"{path} would be new"]
    place = {"output": output.parent}
    return Plan(what, place, run=settings.run.engine, methods=settings.tried, notes=notes)
