"""Check that every lossless method makes plain decoding's images.

`python -m scripts.tools.check_exactness --cells small|full`

A cell is a sampling distribution, a method and a batch size. Every cell decodes the same prompts
and seeds and is compared with plain decoding, image by image. In fp64 every difference is an error.
In fp32 near-ties are counted; at most 1 % of the images may have one. Prints one JSON line per cell
and one for all of them, and ends with exit code 1 if the check fails. With --report the lines also
go to a file, and the same command continues where it stopped.
"""

import json
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, fields
from functools import cache
from itertools import cycle, islice, product
from pathlib import Path
from random import Random
from statistics import mean

from configs.fields import refuse, settings_dict
from configs.schema import AdtSettings, MethodSettings, RunSettings, SamplingSettings, SettingsError
from decoding.flight import FinishedImage, Job
from decoding.sampling import SamplingDistribution
from eval.bench.exactness import Comparison, compare
from runs.jobs import image_jobs
from runs.methods import build_engine, sampling_distribution
from runs.prompts import prompt_items
from runs.session import Session, open_session
from support.durable import append_lines, encode_lines, replace_file
from support.json_files import read_lines
from support.provenance import checkpoint_id, revision
from support.script import run_script

MOST_NEAR_TIES = 0.01  # share of all images compared
PROPOSALS = ("topk", "coupled")
PLAIN = MethodSettings(method="ar")
FIXED = {"size": "fixed", "nodes": 12}  # sizes by measured prices would change from run to run
Line = dict[str, object]


@dataclass(frozen=True)
class Cell:
    """One sampling distribution, method and batch size."""

    distribution: SamplingSettings
    method: MethodSettings
    batch: int

    def settings(self) -> dict[str, object]:
        """Return all its settings by name."""
        cell = settings_dict(self.distribution) | settings_dict(self.method)
        return cell | {"batch": self.batch}

    @property
    def id(self) -> str:
        """The settings that are not None, as one text."""
        values = self.settings().items()
        return " ".join(f"{name}={value}" for name, value in values if value is not None)

    def line(self, comparison: Comparison, tau: float) -> Line:
        """Return the cell's line of the report."""
        return {"id": self.id} | self.settings() | {"tau": round(tau, 3)} | vars(comparison)


def distributions(codes: int) -> list[SamplingSettings]:
    """Return T = 1 with and without top-k and top-p, and T = 0, which has neither; CFG 1 and 3."""
    filters = ({}, {"top_k": max(2, codes // 5), "top_p": 0.9})
    warm = [SamplingSettings(cfg=cfg, **some) for cfg, some in product((1.0, 3.0), filters)]
    return warm + [SamplingSettings(temperature=0.0, cfg=cfg) for cfg in (1.0, 3.0)]


def methods(cells: str) -> list[MethodSettings]:
    """Return every drafting method with both proposals; ADT-Tree in all variants, or in two.

    Raises:
        SettingsError: `cells` is neither small nor full.
    """
    if cells == "full":
        choices = {f.name: f.metadata.get("choices") for f in fields(AdtSettings)}
        variants = list(product(choices["init"], choices["adapt"], choices["alpha"]))
    elif cells == "small":
        variants = [
            ("horizontal", "acceptance", "previous"),
            ("vertical", "acceptance", "neighbour"),
        ]
    else:
        refuse("cells", cells, "small, full")
    plain: list[dict] = [{"method": method} for method in ("static", "eagle2", "jacobi")]
    plain += [{"method": "marginal", **FIXED}, {"method": "graft", **FIXED, "window": 16}]
    if cells == "full":
        plain += [
            {"method": "similar"},
            {"method": "ngram"},
            {"method": "graft_similar", "size": "fixed"},
            {"method": "block"},
        ]
    found = [
        MethodSettings(**settings, proposal=proposal)
        for settings, proposal in product(plain, PROPOSALS)
    ]
    for (init, adapt, alpha), proposal in product(variants, PROPOSALS):
        # alpha changes something for this variant only
        if alpha == "previous" or (init, adapt) == ("vertical", "acceptance"):
            adt = AdtSettings(init=init, adapt=adapt, alpha=alpha)
            found.append(MethodSettings(method="adt", proposal=proposal, adt=adt))
    return found


def cells_of(cells: str, codes: int) -> list[Cell]:
    """Return the small or the full set of cells for so many image codes, by distribution."""
    every = product(distributions(codes), [PLAIN, *methods(cells)], (1, 3))
    return [Cell(*parts) for parts in every if parts[1:] != (PLAIN, 1)]


def shares(cells: Sequence[Cell], jobs: list[Job], thin: bool) -> list[tuple[Cell, list[Job]]]:
    """Return every cell with the jobs that it decodes: all of them, or with `thin` only a few.

    Thin cells take the jobs in turn, one batch each and one job more that takes a free place, so
    that together they decode every job. They are shuffled, so that a run that is stopped early has
    seen something of everything.
    """
    if not thin:
        return [(cell, jobs) for cell in cells]
    turn = cycle(jobs)
    work = [(cell, list(islice(turn, cell.batch + (cell.batch > 1)))) for cell in cells]
    Random(0).shuffle(work)
    return work


def run_cells(session: Session, work: Sequence[tuple[Cell, list[Job]]]) -> Iterator[Line]:
    """Decode and compare cell by cell; yields a line of the report for each."""

    @cache
    def plain(distribution: SamplingDistribution, job: Job) -> FinishedImage:
        return decode(session, distribution, PLAIN, 1, [job])[0]

    for cell, jobs in work:
        distribution = sampling_distribution(cell.distribution)
        baseline = [plain(distribution, job) for job in jobs]
        images = decode(session, distribution, cell.method, cell.batch, jobs)
        yield cell.line(
            compare(session.target, distribution, baseline, images),
            mean(image.tau for image in images),
        )


def decode(
    session: Session,
    distribution: SamplingDistribution,
    method: MethodSettings,
    batch: int,
    jobs: list[Job],
) -> list[FinishedImage]:
    """Return the images of all jobs."""
    engine = build_engine(
        session.target, session.drafter, distribution, method, batch, session.tables(method)
    )
    return [image for step in engine.generate(jobs) for image in step.finished]


def conclude(lines: Collection[Line]) -> Line:
    """Return the sums over all cells, and whether the images are equal (`passed`)."""
    totals = {
        name: sum(line[name] for line in lines) for name in ("images", "identical", "near_ties")
    }
    wrong = sum(len(line["wrong"]) for line in lines)
    passed = bool(lines) and wrong == 0 and totals["near_ties"] <= MOST_NEAR_TIES * totals["images"]
    return {"cells": len(lines), **totals, "wrong": wrong, "passed": passed}


def open_report(path: str | None, head: Line) -> dict[str, Line]:
    """Return the lines that a report already holds, by id of the cell.

    Raises:
        SettingsError: the report is damaged or belongs to another run.
    """
    if path is None:
        return {}
    try:
        lines = {line["id"]: line for line in read_lines(Path(path))}
    except (OSError, ValueError) as error:
        raise SettingsError(f"--report: {path} cannot be continued: {error}") from error
    if lines and lines.pop(head["id"], None) != head:
        refuse("report", path, "the report of the same run, or a new file")
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    whole = encode_lines([head, *lines.values()])  # without a last line that a kill cut short
    replace_file(Path(path), whole)
    return lines


def check_exactness(
    *,
    model_path: str = "ckpts/tiny",
    cells: str = "small",
    prompts: int = 20,
    seeds: int = 2,
    thin: bool = False,
    dtype: str = "fp64",
    report: str | None = None,
) -> None:
    """Check all cells and print a line for each.

    Args:
        model_path: the target's folder.
        cells: small or full.
        prompts: how many of the test prompts are decoded.
        seeds: images per prompt.
        thin: decode one batch per cell instead of all images.
        dtype: fp64 or fp32.
        report: file of the lines, which the same command continues.
    """
    if dtype not in ("fp64", "fp32"):
        refuse("dtype", dtype, "fp64, fp32; in bf16 only the distribution is the same")
    if not isinstance(thin, bool):
        refuse("thin", thin, "True, False")
    settings = RunSettings(
        prompt="configs/prompts/tiny_test.txt", num_images=prompts, samples_per_prompt=seeds,
        model_path=model_path, dtype=dtype,
    )  # fmt: skip
    jobs = image_jobs(prompt_items(settings), settings.seed)
    weights = [checkpoint_id(folder) for folder in (settings.model_path, settings.drafter_path)]
    images = {"prompts": prompts, "seeds": seeds, "thin": thin}
    head = {
        "id": "run",
        "cells": cells,
        "dtype": dtype,
        **images,
        "weights": weights,
        "revision": revision(),
    }
    lines = open_report(report, head)
    session = open_session(settings)
    work = shares(cells_of(cells, session.target.vocab.size), jobs, thin)
    for line in run_cells(session, [(cell, share) for cell, share in work if cell.id not in lines]):
        lines[line["id"]] = line
        print(json.dumps(line), flush=True)
        if report:
            append_lines(Path(report), [line])
    found = {"dtype": dtype, **conclude(lines.values()), "revision": head["revision"]}
    summary = found | session.hardware()
    print(json.dumps(summary))
    if not summary["passed"]:
        sys.exit(1)


if __name__ == "__main__":
    run_script(check_exactness)
