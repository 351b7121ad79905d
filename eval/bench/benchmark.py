"""`benchmark`: several methods on the same prompts and seeds, in one process, against our own autoregressive baseline.

After a warm-up every repeat runs all methods, in alternating order; where images are decoded one by one, on the first
image, then on the second one, so that a machine that slows down slows all methods. Times are medians over repeats; a
speed-up is the median of the ratios of the repeats. Image decoding is not counted.
"""

import json
import sys
from dataclasses import asdict, dataclass
from itertools import combinations, product
from pathlib import Path
from statistics import median

import numpy as np
import torch
from tqdm import tqdm

from configs.benchmarking import BenchmarkSettings
from configs.fields import SettingsError, settings_dict
from configs.schema import MethodSettings
from decoding.flight import Job
from eval.bench.exactness import Comparison, compare
from eval.bench.quality import Judge
from eval.bench.table import table
from eval.metrics.paired import paired_ratio
from runs.building import sampling_distribution
from runs.generate import check_lengths
from runs.jobs import image_jobs
from runs.measure import BASELINE, Measurement, joined, measure
from runs.prompts import prompt_items
from runs.session import Session, open_session
from support.provenance import versions


@dataclass(frozen=True)
class Bench:
    """What is measured on: loaded weights, the jobs, and a judge of the images if --quality was given."""

    session: Session
    jobs: list[Job]
    judge: Judge | None

    @staticmethod
    def open(settings: BenchmarkSettings) -> "Bench":
        """Load what the methods need; a SettingsError if prompts or checkpoint cannot be used."""
        items = prompt_items(settings.run)
        jobs = image_jobs(items, settings.run.seed)
        drafter = next((method for method in settings.methods if method.drafted), BASELINE)
        try:
            session = open_session(settings.run.with_method(drafter))
        except ValueError as error:
            raise SettingsError(str(error)) from error
        check_lengths(session.target, items)
        if settings.output:
            Path(settings.output).mkdir(parents=True, exist_ok=True)
        judge = Judge(session.target, settings.run.model_path, jobs) if settings.quality else None
        return Bench(session, jobs, judge)

    def counts(self, method: MethodSettings, run: Measurement) -> dict[str, object]:
        """The settings of a method, and what does not depend on the machine: its counts and its images' quality."""
        return settings_dict(method) | {
            "temperature": self.session.settings.sampling.temperature,
            "tau": run.tau,
            **{name: run.mean(name) for name in ("mean_depth", "mean_nodes", "target_forwards")},
            "draft_forwards": run.calls.get("draft_forward", 0) / len(run.images),
            "calibration_factors": list(self.session.calibration(method).factors),
            "lossless": method.lossless,
            **(self.judge(run.images) if self.judge else {}),
        }

    def row(
        self, method: MethodSettings, runs: list[Measurement], baseline: list[Measurement]
    ) -> dict[str, object]:
        """A method's line of the table: its counts, its times, and how it compares with the baseline."""
        first, tokens = runs[0], self.session.target.grid.tokens
        comparison = _comparison(self.session, method, first, baseline[0])
        seconds = median(run.seconds_per_image for run in runs)
        ratios = [
            base.seconds_per_image / run.seconds_per_image
            for run, base in zip(runs, baseline, strict=True)
        ]
        drafted = method.drafted and "draft_forward" in first.calls
        drafts = (
            [run.milliseconds("draft_forward", "draft_head") for run in runs] if drafted else None
        )
        return self.counts(method, first) | {
            "seconds_per_image": seconds,
            "tokens_per_second": tokens / seconds,
            "ms_per_target_forward": median(run.milliseconds("target_forward") for run in runs),
            "ms_per_draft_forward": median(drafts) if drafts else None,
            "overhead_share": median(run.overhead_share for run in runs),
            "speedup": median(ratios),
            "identical": comparison.identical,
            "near_ties": comparison.near_ties,
            "wrong": list(comparison.wrong),
            "ms_per_round": first.profile,
        }


def run_benchmark(settings: BenchmarkSettings) -> None:
    """Measure, print one table and, as the last line of standard output, one JSON document."""
    bench = Bench.open(settings)
    methods = settings.methods if BASELINE in settings.methods else (BASELINE, *settings.methods)
    runs = repeated(bench.session, methods, bench.jobs, settings.repeats, settings.warmup)
    rows = [bench.row(method, runs[method], runs[BASELINE]) for method in methods]
    document = {
        "rows": rows,
        "pairs": pairs([runs[method] for method in methods]),
        "images": len(bench.jobs),
        "repeats": settings.repeats,
        "settings": settings_dict(settings.run.sampling)
        | {"seed": settings.run.seed, "prompt": settings.run.prompt},
        "hardware": bench.session.hardware(),
        "versions": versions(),
    }
    print(table(rows, len(bench.jobs)))
    line = json.dumps(document)
    print(line, flush=True)
    if settings.output:
        (Path(settings.output) / "benchmark.json").write_text(line + "\n", encoding="utf-8")
    exit_if_wrong(rows)


def exit_if_wrong(rows: list[dict[str, object]]) -> None:
    """End with exit code 1 if a lossless method made other images than the baseline."""
    if wrong := [f"{row['method']}: {', '.join(row['wrong'])}" for row in rows if row.get("wrong")]:
        print(
            f"error: lossless methods made other images than ar: {'; '.join(wrong)}",
            file=sys.stderr,
        )
        sys.exit(1)


def repeated(
    session: Session,
    methods: tuple[MethodSettings, ...],
    jobs: list[Job],
    repeats: int,
    warmup: int,
) -> dict[MethodSettings, list[Measurement]]:
    """The runs of every method, `repeats` in alternating order after a warm-up of the first `warmup` jobs.

    Where images are decoded one by one, the methods take turns image by image.
    """
    engines = {method: session.engine_for(method) for method in methods}
    for engine in engines.values() if warmup else ():
        measure(engine, jobs[:warmup])
    turns = [[job] for job in jobs] if session.settings.batch_size == 1 else [jobs]
    parts: dict[MethodSettings, list[list[Measurement]]] = {
        method: [[] for _ in range(repeats)] for method in methods
    }
    pause = 0.1 if sys.stderr.isatty() else 60.0  # seconds between two states of the bar
    with tqdm(total=repeats * len(turns) * len(methods), unit="run", mininterval=pause) as bar:
        for number, (repeat, turn) in enumerate(product(range(repeats), turns)):
            for method in methods if number % 2 == 0 else reversed(methods):
                parts[method][repeat].append(measure(engines[method], turn))
                bar.update()
    return {method: [joined(own) for own in parts[method]] for method in methods}


def pairs(runs: list[list[Measurement]]) -> list[dict[str, object]]:
    """Every two methods by their row numbers: seconds of the first / seconds of the second, of all images (medians over
    the repeats) and of all images in each repeat; and tau of the second / tau of the first."""
    seconds = [
        np.median([[image.seconds for image in run.images] for run in own], axis=0) for own in runs
    ]
    rounds = [[image.target_forwards - 1 for image in own[0].images] for own in runs]
    return [
        {
            "rows": [one, other],
            "seconds_ratio": asdict(paired_ratio(seconds[one], seconds[other])),
            "by_repeat": [
                a.seconds_per_image / b.seconds_per_image
                for a, b in zip(runs[one], runs[other], strict=True)
            ],
            "tau_ratio": asdict(paired_ratio(rounds[one], rounds[other])),
        }
        for one, other in combinations(range(len(runs)), 2)
    ]


def _comparison(
    session: Session, method: MethodSettings, run: Measurement, baseline: Measurement
) -> Comparison:
    """In bf16, and of rules that decide otherwise than plain decoding, differing images are neither near-ties nor
    wrong."""
    if (
        method.same_tokens(session.settings.sampling.temperature)
        and session.target.dtype != torch.bfloat16
    ):
        return compare(
            session.target,
            sampling_distribution(session.settings.sampling),
            baseline.images,
            run.images,
        )
    theirs = {image.job.id: image.codes for image in run.images}
    same = sum(torch.equal(theirs[image.job.id], image.codes) for image in baseline.images)
    return Comparison(len(baseline.images), same, 0, ())
