"""Compare the tokens that every method makes on a device with those of the CPU.

`python -m scripts.gpu.tokens --output outputs/gpu_check/measurements.jsonl`

In fp64 they are equal, in fp32 and bf16 up to near-ties.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path

import torch
from torch import Tensor

from configs.methods import MethodSettings
from configs.model import EngineSettings
from configs.recipes import listed_method
from configs.schema import RunSettings
from configs.targets import ROOT
from eval.bench.measurements import Measurements
from runs.drawing import image_jobs
from runs.exactness import NEAR_TIE, compare
from runs.measure import BASELINE, Measurement, measure
from runs.methods import sampling_distribution
from runs.prompts import prompt_items
from runs.session import Session, open_session
from scripts.gpu.cells import Cells, Figures
from support.devices import pick_device
from support.script import run_script

SEED = 9
# As in `benchmark --methods`: every drafter, proposal and rule that goes another way on a GPU.
METHODS = (
    "ar",
    "jacobi",
    "jacobi:proposal=sampled:verifier=sampled",
    "recall",
    "static",
    "static:proposal=sampled:verifier=sampled",
    "eagle2",
    "eagle2:proposal=topk",
    "eagle2:proposal=topk:verifier=rejection",
    "eagle2:proposal=topk:verifier=lantern:lantern_k=10:lantern_delta=0.2",
    "adt",
    str(ROOT / "configs/paper/adt.yaml"),
    *(str(ROOT / f"configs/fast/{name}.yaml") for name in ("n16", "block58")),
)
# Other values of --compile start the same operations in another way, so a few methods suffice.
SEVERAL_WAYS = (
    "ar",
    "eagle2:proposal=topk:verifier=rejection",
    "configs/paper/adt.yaml",
    "configs/fast/block58.yaml",
)
# A device's bf16 is compared with the CPU's fp32: rounding alone decides gaps of up to 0.26 between
# tokens (48 images, the CPU's bf16), where values are up to 40.
EXACT, NEAR_TIES = {"bf16": "fp32"}, {"bf16": 0.5}
COLUMNS = ("id", "images", "identical", "near_ties", "wrong", "inconclusive", "same_tokens")


def compare_tokens(
    *,
    output: str,
    device: str = "auto",
    model_path: str = "ckpts/tiny",
    images: int = 2,
    methods: str = ",".join(METHODS),
) -> None:
    """Decode on the CPU and on the device; print the counts, and exit with 1 for wrong images.

    Args:
        output: file of measurements, which the same command continues.
        device: auto, cpu, cuda or cuda:N.
        model_path: a checkpoint of the tiny model's layout.
        images: how many are compared, by each method.
        methods: as in `benchmark --methods`.
    """
    where = pick_device(device)
    table, path = Cells(), Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    for dtype, (mode, entry) in product(("fp64", "fp32", "bf16"), ways_of(where, methods)):
        run = RunSettings.of(
            prompt=str(ROOT / "configs/prompts/tiny_test.txt"), num_images=images, seed=SEED,
            model_path=model_path, dtype=dtype, device=str(where), compile=mode,
            method=MethodSettings("eagle2"),  # it loads the drafter
        )  # fmt: skip
        name = f"{dtype}, --compile {mode}, {short(entry)}"
        table.add(name, partial(compared, run, entry, path))
    table.finish("Tokens against the CPU's", COLUMNS)


def ways_of(device: torch.device, methods: str) -> list[tuple[str, str]]:
    """Return methods with the values of --compile that go different ways on a device.

    Value by value, since each loads the weights again; the default first and for all methods, the
    others for those of `SEVERAL_WAYS`.

    methods: entries, by commas.
    """
    entries = methods.split(",")
    several = [entry for entry in entries if short(entry) in SEVERAL_WAYS]
    others = ("off", "inductor") if device.type == "cuda" else ()
    return [("auto", entry) for entry in entries] + [*product(others, several)]


def short(entry: str) -> str:
    """Return an entry of --methods without the folder of a recipe."""
    return entry.removeprefix(f"{ROOT}/")


def compared(run: RunSettings, entry: str, path: Path) -> Figures:
    """Return how many images of a method are the CPU's, which draws in fp32 those of bf16.

    `same_tokens` is the least share of an image's tokens before the first difference. The CPU's
    images are plain decoding's where the method must generate the same ones, and the CPU judges
    that difference; otherwise they are the method's own, and only differences in fp64 are wrong.
    """
    method = listed_method(entry, {})
    repeats = method.same_tokens(run.engine.sampling.temperature)
    dtype = EXACT.get(run.engine.dtype, run.engine.dtype)
    exact = replace(run, engine=replace(run.engine, device="cpu", compile="off", dtype=dtype))
    expected = decode(exact, BASELINE if repeats else method, path, open_on_cpu)
    measured = decode(run, method, path, open_once)
    pairs = list(zip(expected.images, measured.images, strict=True))
    counts = {
        "images": len(pairs),
        "identical": sum(torch.equal(one.codes, other.codes) for one, other in pairs),
        "inconclusive": measured.inconclusive if method.speculative else None,
        "same_tokens": min(_agreed(one.codes, other.codes) for one, other in pairs),
    }
    if repeats:
        target, distribution = (
            open_on_cpu(exact.engine).target,
            sampling_distribution(run.engine.sampling),
        )
        near_tie = NEAR_TIES.get(run.engine.dtype, NEAR_TIE)
        found = compare(target, distribution, expected.images, measured.images, near_tie)
        return counts | {"near_ties": found.near_ties, "wrong": list(found.wrong)}
    if run.engine.dtype == "fp64":
        wrong = [one.job.id for one, other in pairs if not torch.equal(one.codes, other.codes)]
        return counts | {"wrong": wrong}
    return counts


def opener() -> Callable[[EngineSettings], Session]:
    """Return an `open_session` by which methods share a loaded model."""

    @lru_cache(maxsize=1)
    def opened(settings: EngineSettings) -> Session:
        opened.cache_clear()  # before the next one is loaded, since each may take 14 GiB
        return open_session(settings)

    return opened


open_once, open_on_cpu = opener(), opener()


def decode(
    run: RunSettings,
    method: MethodSettings,
    path: Path,
    opened: Callable[[EngineSettings], Session],
) -> Measurement:
    """Return a method's images, of the file of measurements if they are there."""
    kept, jobs = Measurements(path, run.engine), image_jobs(prompt_items(run.prompts), SEED)
    if (found := kept.find_turn([method], jobs)) is not None:
        return found[method]
    measured = measure(opened(run.engine).open_engine(method), jobs)
    kept.add_turn({method: measured}, [method], jobs)
    return measured


def _agreed(one: Tensor, other: Tensor) -> float:
    """Return the share of an image's tokens before the first that differs."""
    differs = (one != other).nonzero()
    return float(differs[0]) / len(one) if len(differs) else 1.0


if __name__ == "__main__":
    run_script(compare_tokens)
