"""`benchmark`: several methods on the same prompts and seeds, against our own plain decoding.

All methods run in one process. After a warm-up every repeat runs all of them, in alternating order;
where images are decoded one by one, on the first image, then on the second one, so that a machine
that slows down slows all methods. Times are medians over the repeats; `eval/bench/speedup.py` says
what a speed-up is. Image decoding is not counted.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch

from configs.benchmark import BenchmarkSettings
from configs.fields import settings_dict
from configs.methods import MethodSettings
from decoding.images import Job
from eval.bench.speedup import speed_figures
from eval.bench.table import heading, table
from runs.drawing import check_lengths, image_jobs
from runs.exactness import Comparison, compare
from runs.measure import BASELINE, Measurement, joined, measure, warm_up
from runs.methods import sampling_distribution
from runs.prompts import prompt_items
from runs.session import Session, open_session
from support.border import Failure
from support.durable import make_writable, replace_file
from support.processes import refuse_several
from support.progress import Progress, plural
from support.provenance import cpu_name, versions

Row = dict[str, Any]


@dataclass(frozen=True)
class Bench:
    """What is measured on: loaded weights and the jobs."""

    session: Session
    jobs: list[Job]

    @staticmethod
    def open(settings: BenchmarkSettings) -> "Bench":
        """Load what the methods need; a SettingsError if a flag cannot be used."""
        items = prompt_items(settings.run)
        jobs = image_jobs(items, settings.run.seed)
        if settings.output:
            make_writable("output_dir", Path(settings.output))
        drafter = next((method for method in settings.methods if method.drafted), BASELINE)
        session = open_session(settings.run.with_method(drafter))
        check_lengths(session.target, items)
        return Bench(session, jobs)

    def rows(
        self, methods: Sequence[MethodSettings], repeats: int, warmup: int, progress: Progress
    ) -> list[Row]:
        """Measure methods, which take turns image by image; returns a row per method.

        methods: BASELINE among them. warmup: images per method decoded first and not counted; on a
        GPU no fewer than a batch.
        """
        progress.say("warming up")
        engines = {method: self.session.open_engine(method) for method in methods}
        for method in methods if warmup else ():
            warm_up(engines[method], self.jobs, warmup)
        one_by_one = self.session.settings.batch_size == 1
        turns = [[job] for job in self.jobs] if one_by_one else [self.jobs]
        measured = {method: [[] for _ in range(repeats)] for method in methods}
        progress.begin()
        for number, (repeat, turn) in enumerate(product(range(repeats), turns)):
            for method in methods if number % 2 == 0 else reversed(methods):
                progress.say(f"now {method.method}")
                measured[method][repeat].append(measure(engines[method], turn))
                progress.update(len(turn))
        del engines  # comparing images takes memory, too
        whole = {method: [joined(turns) for turns in measured[method]] for method in methods}
        return [self.row(method, whole[method], whole[BASELINE]) for method in methods]

    def row(
        self, method: MethodSettings, repeats: list[Measurement], baseline: list[Measurement]
    ) -> Row:
        """Return a method's row: its settings, its figures, and how it compares with `ar`."""
        first, session = repeats[0], self.session
        seconds = median(one.seconds_per_image for one in repeats)
        comparison = self.comparison(method, first, baseline[0])
        return settings_dict(method) | {
            # figures that do not depend on the machine
            "temperature": session.settings.sampling.temperature,
            "tau": first.tau,
            **{name: first.mean(name) for name in ("mean_depth", "mean_nodes", "target_forwards")},
            "lossless": method.lossless,
            "seconds_per_image": seconds,
            "tokens_per_second": session.target.grid.tokens / seconds,
            **parts_of(repeats),
            **speed_figures(repeats, baseline, session.target.device.type == "cpu"),
            "identical": comparison.identical,
            "near_ties": comparison.near_ties,
            "wrong": list(comparison.wrong),
        }

    def comparison(
        self, method: MethodSettings, measured: Measurement, baseline: Measurement
    ) -> Comparison:
        """Compare a method's images with the baseline's.

        In bf16, and for a method whose tokens need not be plain decoding's, images that differ
        count neither as near-ties nor as wrong.
        """
        sampling, target = self.session.settings.sampling, self.session.target
        if method.same_tokens(sampling.temperature) and target.dtype != torch.bfloat16:
            distribution = sampling_distribution(sampling)
            return compare(target, distribution, baseline.images, measured.images)
        pairs = zip(baseline.images, measured.images, strict=True)  # of the same jobs
        same = sum(torch.equal(one.codes, other.codes) for one, other in pairs)
        return Comparison(len(baseline.images), same, 0, ())


def parts_of(repeats: list[Measurement]) -> Row:
    """Return the figures of a round's parts: None if some rounds were replayed as a whole."""
    first = repeats[0]
    if not all(one.in_parts for one in repeats):
        names = "draft_forwards", "levels", "ms_per_target_forward", "ms_per_draft_forward"
        whole = {"round": first.profile["round"]}
        return dict.fromkeys((*names, "overhead_share")) | {"ms_per_round": whole}
    drafts = [one.milliseconds("draft_forward", "draft_head") for one in repeats]
    return {
        "draft_forwards": first.calls.get("draft_forward", 0) / len(first.images),
        "levels": first.calls.get("level", 0) / len(first.images),
        "ms_per_target_forward": median(one.milliseconds("target_forward") for one in repeats),
        "ms_per_draft_forward": median(drafts) if drafts[0] else None,
        "overhead_share": median(one.overhead_share for one in repeats),
        "ms_per_round": first.profile,
    }


def run_benchmark(settings: BenchmarkSettings) -> None:
    """Measure, print, and write benchmark.json if --output_dir was given.

    Standard output gets where and of what was measured, a table, what speaks against its figures
    and, as its last line, the content of benchmark.json.
    """
    refuse_several("benchmark")
    methods = settings.methods if BASELINE in settings.methods else (BASELINE, *settings.methods)
    images, repeats = len(prompt_items(settings.run)), settings.repeats
    what = f"measuring {plural(len(methods), 'method')} on {plural(images, 'image')}, "
    what += f"{plural(repeats, 'time')} each" + f"; to {settings.output}" * bool(settings.output)
    with Progress(what, len(methods) * images * repeats) as progress:
        bench = Bench.open(settings)
        rows = bench.rows(methods, repeats, settings.warmup, progress)
    hardware, today = bench.session.hardware(), date.today().isoformat()
    shared = {"seed": settings.run.seed, "prompt": settings.run.prompt}
    document = {
        "rows": rows,
        "images": len(bench.jobs),
        "repeats": repeats,
        "settings": settings_dict(settings.run.sampling) | shared,
        "date": today,
        "cpu": cpu_name(),
        "hardware": hardware,
        "versions": versions(),
    }
    text = json.dumps(document) + "\n"
    words = heading(settings, hardware, [today]) + "\n" + table(rows, len(bench.jobs))
    # Printed first: a full disk may take the file, but not the figures.
    print(words + text, end="", flush=True)
    if settings.output:
        replace_file(Path(settings.output) / "benchmark.json", text.encode())
    # Last, so that the figures of wrong images can be read.
    refuse_wrong(rows)


def refuse_wrong(rows: Sequence[Mapping[str, Any]]) -> None:
    """Raise a Failure that names wrong images of lossless methods, if there are any."""
    if wrong := [f"{row['method']}: {', '.join(row['wrong'])}" for row in rows if row.get("wrong")]:
        raise Failure(f"lossless methods made other images than ar: {'; '.join(wrong)}")
