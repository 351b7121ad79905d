"""Does every lossless method draw the baseline's images? `python -m eval.exactness_grid --grid small|full`.

A cell is a sampling law, a method and a batch size. All cells decode the same prompts and seeds and are compared with
plain decoding, image by image. In fp64 every difference is an error; in fp32 near-ties are counted and may make up 1 %
of the images. Prints a JSON line per cell and one for all of them; exit code 1 if the statement does not hold.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from itertools import product
from statistics import mean

import fire

from configs.fields import refuse
from configs.schema import AdtSettings, MethodSettings, RunSettings, SamplingSettings, SettingsError, settings_dict
from decoding.flight import FinishedImage, Job
from decoding.noise import image_seed
from decoding.sampling import SamplingLaw
from eval.exactness import Agreement, compare
from eval.prompts import prompt_items
from eval.session import Session, build_engine, open_session

MOST_NEAR_TIES = 0.01  # of all images compared
PROPOSALS = ("topk", "coupled")


@dataclass(frozen=True)
class Grid:
    """What is decoded: every law with every method in every batch size."""

    laws: tuple[SamplingSettings, ...]
    methods: tuple[MethodSettings, ...]
    batches: tuple[int, ...] = (1, 3)


@dataclass(frozen=True)
class Cell:
    """One law, method and batch size: how its images compare, and the tokens per target forward."""

    law: SamplingSettings
    method: MethodSettings
    batch: int
    agreement: Agreement
    tau: float

    def line(self) -> dict[str, object]:
        settings = settings_dict(self.law) | settings_dict(self.method)
        return settings | {"batch": self.batch, "tau": round(self.tau, 3)} | vars(self.agreement)


def grid_of(name: str, codes: int) -> Grid:
    """The grid of this name for a vocabulary of so many image codes; SettingsError lists the names."""
    filters = [{}, {"top_k": max(2, codes // 5), "top_p": 0.9}]
    laws = [SamplingSettings(cfg=cfg, **some) for cfg, some in product((1.0, 3.0), filters)]
    laws += [SamplingSettings(temperature=0.0, cfg=cfg) for cfg in (1.0, 3.0)]  # which has no top-k or top-p
    if name == "full":
        choices = {f.name: f.metadata.get("choices") for f in fields(AdtSettings)}
        adaptive = list(product(choices["init"], choices["adapt"], choices["alpha"]))
    elif name == "small":
        adaptive = [("horizontal", "acceptance", "previous"), ("vertical", "acceptance", "neighbour")]
    else:
        refuse("grid", name, "small, full")
    methods = [MethodSettings(method=method, proposal=p) for method, p in product(("static", "eagle2"), PROPOSALS)]
    for (init, adapt, alpha), proposal in product(adaptive, PROPOSALS):
        if alpha == "previous" or adapt == "acceptance":  # alpha says whose acceptance counts
            adt = AdtSettings(init=init, adapt=adapt, alpha=alpha)
            methods.append(MethodSettings(method="adt", proposal=proposal, adt=adt))
    return Grid(tuple(laws), tuple(methods))


def run_grid(session: Session, grid: Grid, jobs: list[Job]) -> Iterator[Cell]:
    """Decode and compare cell by cell."""
    plain = MethodSettings(method="ar")
    for settings in grid.laws:
        law = SamplingLaw(settings.temperature, settings.top_k, settings.top_p, settings.cfg)
        baseline = _decode(session, law, plain, 1, jobs)
        for method, batch in product((plain, *grid.methods), grid.batches):
            if (method, batch) != (plain, 1):
                images = _decode(session, law, method, batch, jobs)
                agreement = compare(session.target, law, baseline, images)
                yield Cell(settings, method, batch, agreement, mean(image.tau for image in images))


def _decode(
    session: Session, law: SamplingLaw, method: MethodSettings, batch: int, jobs: list[Job]
) -> list[FinishedImage]:
    engine = build_engine(session.target, session.head, law, method, batch)
    return [image for step in engine.generate(jobs) for image in step.finished]


def conclude(cells: Iterable[Cell], dtype: str) -> dict[str, object]:
    """The figures of all cells, and whether the statement of equality for this number type holds."""
    cells = list(cells)
    found = [cell.agreement for cell in cells]
    totals = {name: sum(getattr(a, name) for a in found) for name in ("images", "identical", "near_ties")}
    wrong = sum(len(a.wrong) for a in found)
    passed = bool(cells) and wrong == 0 and totals["near_ties"] <= MOST_NEAR_TIES * totals["images"]
    return {"dtype": dtype, "cells": len(cells), **totals, "wrong": wrong, "passed": passed}


def exactness_grid(
    *,
    model_path: str = "ckpts/tiny",
    grid: str = "small",
    prompts: int = 20,
    seeds: int = 2,
    dtype: str = "fp64",
    device: str = "auto",
) -> None:
    """Run a grid on the first `prompts` test prompts, `seeds` images each."""
    started = time.perf_counter()
    if dtype not in ("fp64", "fp32"):
        refuse("dtype", dtype, "fp64, fp32; in bf16 only the law is the same")
    settings = RunSettings(
        prompt="configs/prompts/tiny_test.txt", num_images=prompts, samples_per_prompt=seeds,
        model_path=model_path, dtype=dtype, device=device,
    )  # fmt: skip
    items = prompt_items(settings)
    jobs = [Job(item.id, item.prompt, image_seed(0, item.prompt, item.occurrence, item.sample)) for item in items]
    session = open_session(settings)
    cells = []
    for cell in run_grid(session, grid_of(grid, session.target.vocab.size), jobs):
        cells.append(cell)
        print(json.dumps(cell.line()), flush=True)
    summary = conclude(cells, dtype) | {"seconds": round(time.perf_counter() - started)} | session.hardware()
    print(json.dumps(summary))
    if not summary["passed"]:
        sys.exit(1)


if __name__ == "__main__":
    try:
        fire.Fire(exactness_grid)
    except (SettingsError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
