"""`benchmark`: methods on the same prompts and seeds against plain decoding, or a sweep of them.

Without a sweep all methods take turns with each other. A cell of a sweep takes turns with `ar`
alone, since a hundred engines do not fit into memory. With a folder, the same command continues
where one stopped, and what is measured already is only shown.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from configs.benchmark import BenchmarkSettings
from configs.fields import settings_dict
from configs.methods import MethodSettings
from decoding.engine import Engine
from decoding.images import Job
from eval.bench.bench import Bench, Row, turns_of
from eval.bench.measurements import FILE, Measurements
from eval.bench.table import best_of, heading, table, table_of, words_of
from runs.drawing import check_lengths, image_jobs
from runs.generate import different_images
from runs.measure import BASELINE, warm_up
from runs.plan import Plan
from runs.prompts import prompt_items
from runs.session import open_session
from support.border import Failure
from support.durable import encode_json, make_writable, replace_file
from support.locks import claim
from support.processes import refuse_several
from support.progress import Progress, duration, plural
from support.provenance import cpu_name, versions

Group = tuple[MethodSettings, ...]  # methods that take turns, BASELINE among them


def run_benchmark(settings: BenchmarkSettings) -> None:
    """Measure, print, and write the files of --output_dir, if there is one.

    Standard output gets where and of what was measured, a table, and what speaks against its
    figures. The last line is the content of benchmark.json; of a sweep, the best cell.
    """
    refuse_several("benchmark")
    folder = Path(settings.output) if settings.output else None
    with ExitStack() as stack:
        if folder is not None:
            make_writable("output_dir", folder)
            stack.enter_context(claim(f"--output_dir {folder}", folder / FILE))
        _run(settings, folder)


def _run(settings: BenchmarkSettings, folder: Path | None) -> None:
    run, jobs = settings.run.engine, jobs_of(settings)
    kept = Measurements(folder and folder / FILE, run)
    groups = groups_of(settings)
    done, total = images_of(settings, kept)
    kind = "method" if settings.sweep is None else "cell"
    what = f"measuring {plural(len(settings.methods), kind)} on {plural(len(jobs), 'image')}, "
    what += f"{plural(settings.repeats, 'time')} each" + (f"; to {folder}" if folder else "")
    with Progress(what, total, done) as progress:
        session = open_session(run)
        check_lengths(session.target, jobs)
        warm = partial(_warm, jobs, settings.warmup, progress) if settings.warmup else _cold
        rows = _rows(settings, groups, Bench(session, kept, progress, warm))
    hardware, dates = session.hardware(), sorted(kept.dates)
    prompts = settings.run.prompts
    shared = {"seed": prompts.seed, "prompt": prompts.prompt}
    document = {
        "rows": rows,
        "images": len(jobs),
        "repeats": settings.repeats,
        "settings": settings_dict(run.sampling) | shared,
        "date": dates[-1],
        "cpu": cpu_name(),
        "hardware": hardware,
        "versions": versions(),
    }
    shown = _in_order(settings, rows)
    words = f"{heading(settings, hardware, dates)}\n{table(shown)}"
    last = document if settings.sweep is None or folder is None else _best(rows, folder)
    # Printed first: a full disk may take the files, but not the figures.
    print(f"{words}{json.dumps(last)}", flush=True)
    if folder is not None:
        replace_file(folder / "benchmark.json", encode_json(document))
        table_of(shown).write(f"{folder}/table", words)
    if settings.sweep is not None and folder is not None:
        from eval.bench.picture import draw_speed  # matplotlib is an extra's

        parts = settings.sweep.varied, settings.sweep.others
        varied, others = ([row for row in rows if row["cell"] in names] for names in parts)
        draw_speed(varied, others, settings.sweep.axes, folder / "speed")
    # Last, so that the figures of wrong images can be read.
    refuse_wrong(rows)
    if len(rows) < (len(groups[0]) if settings.sweep is None else len(groups)):
        raise Failure("memory is too small for some methods; see the notes")


def jobs_of(settings: BenchmarkSettings) -> list[Job]:
    """Return the images of a benchmark; a SettingsError for prompts that cannot be used."""
    items = different_images(settings.run.engine, prompt_items(settings.run.prompts))
    return image_jobs(items, settings.run.prompts.seed)


def groups_of(settings: BenchmarkSettings) -> list[Group]:
    """Return the methods that take turns with each other."""
    if settings.sweep is not None:
        return [(BASELINE, method) for method in settings.methods]
    return [tuple(dict.fromkeys((BASELINE, *settings.methods)))]


def images_of(settings: BenchmarkSettings, kept: Measurements) -> tuple[int, int]:
    """Return how many images were measured, and how many there are, over methods and repeats."""
    turns = turns_of(jobs_of(settings), settings.run.engine.batch_size, settings.repeats)
    done = total = 0
    for methods in groups_of(settings):
        for repeat, jobs in turns:
            given = {"repeat": repeat, "warmup": settings.warmup}
            kept_already = kept.find_turn(methods, jobs, **given) is not None
            total += len(methods) * len(jobs)
            done += kept_already * len(methods) * len(jobs)
    return done, total


def _rows(settings: BenchmarkSettings, groups: Sequence[Group], bench: Bench) -> list[Row]:
    """Return a row per method; of a sweep one per cell, with that of `ar` inside."""
    jobs, rows = jobs_of(settings), list[Row]()
    for number, methods in enumerate(groups):
        measure = partial(bench.rows, methods, jobs, settings.repeats, warmup=settings.warmup)
        before = bench.progress.done
        measured = measure()
        spoilt = any(row["doubts"] or row["wrong"] for row in measured)
        if settings.remeasure and spoilt and bench.progress.done == before:
            assert bench.progress.total is not None  # it is known before the first row
            bench.progress.total += len(methods) * len(jobs) * settings.repeats
            measured = measure(again=True)
        if settings.sweep is None:
            return measured
        cell = settings.sweep.entries[number]
        rows += [{"cell": cell, **row, "ar": measured[0]} for row in measured[1:]]
    return rows


def _warm(jobs: list[Job], images: int, progress: Progress, engine: Engine) -> None:
    """Warm an engine up; the first one, plain decoding's, says how long all will take."""
    seconds = warm_up(engine, jobs, images).seconds_per_image
    if progress.started is None and progress.total is not None:
        progress.note(_how_long(seconds, progress.total - progress.done))


def _how_long(seconds: float, images: int) -> str:
    left = duration(seconds * images)
    return f"{seconds:.3g} s an image by ar: {left} if every method takes as long"


def _cold(_engine: Engine) -> None:
    """Measure an engine from its first round."""


def _in_order(settings: BenchmarkSettings, rows: list[Row]) -> list[Row]:
    """Return the rows as a table shows them: of a sweep by speed-up, the best cell last."""
    if settings.sweep is None:
        return rows
    best = best_of(rows)
    return sorted(rows, key=lambda row: (row is best, row["speedup"]))


def _best(rows: Sequence[Row], folder: Path) -> Row:
    """Return the last line of a sweep; `best`: None if no lossless cell is faster for certain."""
    names = FILE, "benchmark.json", "table.md", "table.csv", "table.tex", "speed.png", "speed.pdf"
    files = [str(folder / name) for name in names]
    best = best_of(rows)
    cell, speedup = (best["cell"], best["speedup"]) if best else (None, None)
    return {"best": cell, "speedup": speedup, "files": files}


def refuse_wrong(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise a Failure that names wrong images of lossless methods, if there are any."""
    if wrong := [f"{row['method']}: {', '.join(row['wrong'])}" for row in rows if row.get("wrong")]:
        raise Failure(f"lossless methods made other images than ar: {'; '.join(wrong)}")


def plan_benchmark(settings: BenchmarkSettings) -> Plan:
    """Return what `benchmark` would do."""
    folder = Path(settings.output) if settings.output else None
    kept = Measurements(folder and folder / FILE, settings.run.engine, planned=True)
    done, total = images_of(settings, kept)
    others = [words_of(method) for method in settings.methods if method != BASELINE]
    what = f"measuring {'; '.join(others)} next to ar, {plural(settings.repeats, 'time')} each, "
    what += "on the images of "
    what += (
        f"{plural(len(prompt_items(settings.run.prompts)), 'prompt')}; to {folder or 'the screen'}"
    )
    place = {"output_dir": folder} if folder else {}
    seconds, note = kept.seconds(BASELINE), "ar is not timed yet: its first image says how long"
    if seconds is not None:
        note = f"{_how_long(seconds, total - done)}, by measurements that are here"
    run = settings.run.engine
    return Plan(what, place, done, total, run=run, methods=settings.methods, notes=[note])
