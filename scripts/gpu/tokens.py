"""Part 1: the tokens that every method makes on the device, against those of the CPU.

In fp64 they are equal, in fp32 up to near-ties, in bf16 differences are counted. Rounds wait for
the device at one place only.
"""

import importlib.util
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from itertools import islice
from typing import Any

import torch

from configs.methods import MethodSettings
from configs.targets import ROOT
from decoding.flight import FinishedImage
from decoding.transfer import to_host
from eval.bench.exactness import compare
from runs.measure import measure
from runs.session import Session
from scripts.gpu.checkpoint import KINDS, open_tiny, prompt_jobs
from scripts.gpu.methods import PLAIN, every_method
from scripts.gpu.options import Options
from scripts.gpu.record import Figures, Pieces, Skipped

DTYPES = ("fp64", "fp32", "bf16")
CPU = torch.device("cpu")
_CHECKED_ROUNDS = 3


def pieces(options: Options) -> Pieces:
    """Return the checks of this part by name."""
    methods = every_method(options.sizes.nodes)
    found: dict[str, Any] = {
        f"{dtype} {name}{kind}": partial(compared, options, dtype, method, compile)
        for kind, compile in KINDS.items()
        for dtype in DTYPES
        for name, method in methods.items()
    }
    found |= {f"waits {name}": partial(waited, options, method) for name, method in methods.items()}
    return found | {"tests marked cuda": partial(run_tests, options.device)}


def compared(
    options: Options, dtype: str, method: MethodSettings, compile: str | None = None
) -> Figures:
    """Decode on the CPU and on the device and count the images that differ.

    `identical`, `near_ties`, `wrong` of `images`; in bf16 only `identical`, and `same_tokens`, the
    share of tokens before an image's first difference.

    The CPU's images are plain decoding's where the method must make the same ones, else its own.

    Raises:
        Skipped: `compile`, one of KINDS, asks for what is not here.
    """
    jobs = prompt_jobs(options.sizes.compared)
    here = open_tiny(options.model_path, dtype, options.device, compile)
    reference = PLAIN if method.same_tokens(here.settings.sampling.temperature) else method
    expected = on_cpu(options, dtype, reference)
    found = measure(here.open_engine(method), jobs).images
    equal = [_agreed(one, other) for one, other in zip(expected, found, strict=True)]
    figures = {"images": len(jobs), "identical": equal.count(1.0), "same_tokens": min(equal)}
    if dtype == "bf16":
        return figures | {"passed": True}
    session = open_tiny(options.model_path, dtype, CPU)
    if reference is not PLAIN:  # drawn by a rule of its own: only equality can be judged
        passed = dtype == "fp32" or figures["identical"] == len(jobs)
        return figures | {"passed": passed}
    distribution = session.open_engine(PLAIN).distribution
    comparison = compare(session.target, distribution, expected, found)
    figures |= {"near_ties": comparison.near_ties, "wrong": list(comparison.wrong)}
    return figures | {"passed": not comparison.wrong}


@cache
def on_cpu(options: Options, dtype: str, method: MethodSettings) -> list[FinishedImage]:
    """Return the images of a method on the CPU."""
    session = open_tiny(options.model_path, dtype, CPU)
    return measure(session.open_engine(method), prompt_jobs(options.sizes.compared)).images


def _agreed(one: FinishedImage, other: FinishedImage) -> float:
    """Return the share of an image's tokens before the first that differs."""
    differs = (one.codes != other.codes).nonzero()
    return 1.0 if not len(differs) else float(differs[0]) / len(one.codes)


def waited(options: Options, method: MethodSettings) -> Figures:
    """Run rounds in which every wait for the device but the announced one is an error."""
    if options.device.type != "cuda":
        raise Skipped("only a CUDA device reports its waits")
    return {"passed": True, "rounds": rounds_without_waits(_session(options), method)}


def _session(options: Options) -> Session:
    return open_tiny(options.model_path, "fp32", options.device)


def rounds_without_waits(session: Session, method: MethodSettings) -> int:
    """Decode some rounds on a CUDA device and return how many.

    Raises:
        RuntimeError: something else than `decoding.transfer.to_host` waited for the device.
    """
    steps = session.open_engine(method).generate(prompt_jobs(1))
    next(steps)  # the prompt, and tables that are built once
    with refusing_waits():
        return sum(1 for _ in islice(steps, _CHECKED_ROUNDS))


@contextmanager
def refusing_waits() -> Iterator[None]:
    """Let CUDA refuse every wait in this block but those of `decoding.transfer.to_host`."""

    def announced(values: torch.Tensor) -> Any:
        torch.cuda.set_sync_debug_mode("default")
        try:
            return to_host(values)
        finally:
            torch.cuda.set_sync_debug_mode("error")

    own = [m for name, m in sys.modules.items() if name.startswith(("decoding.", "drafters."))]
    users = [module for module in own if getattr(module, "to_host", None) is to_host]
    try:
        for module in users:
            module.to_host = announced
        torch.cuda.set_sync_debug_mode("error")
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")
        for module in users:
            module.to_host = to_host


def run_tests(device: torch.device) -> Figures:
    """Run the tests marked `cuda`; their count is in pytest's last line."""
    if device.type != "cuda":
        raise Skipped("there is no CUDA device")
    if importlib.util.find_spec("pytest") is None:
        raise Skipped("the package pytest is missing")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-m", "cuda", "tests"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    print(done.stdout, file=sys.stderr)
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr[-300:]]
    return {"passed": done.returncode == 0, "said": last[0]}
