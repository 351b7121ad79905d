"""On a CUDA device: tokens against the CPU's, rounds that wait once, passes as graphs.

`python -m pytest -m cuda`; without a device they are skipped. They read ckpts/tiny and need no
codec.
"""

from pathlib import Path

import pytest
import torch

from configs.schema import ROOT
from scripts.gpu.checkpoint import open_tiny
from scripts.gpu.methods import every_method
from scripts.gpu.options import Options
from scripts.gpu.passes import Passes
from scripts.gpu.rounds import measure_rounds
from scripts.gpu.shapes import random_models
from scripts.gpu.tokens import compared, prompt_jobs, rounds_without_waits

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
TINY, GPU = str(ROOT / "ckpts" / "tiny"), torch.device("cuda", 0)
METHODS = every_method(nodes=58)
SAME_TOKENS = {name: method for name, method in METHODS.items() if method.same_tokens(1.0)}


@pytest.fixture
def options(tmp_path: Path) -> Options:
    return Options(("tokens",), tmp_path, GPU, True, TINY)


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_in_fp64_the_tokens_are_the_cpus(method, options) -> None:
    found = compared(options, "fp64", method)
    assert found["identical"] == found["images"]


@pytest.mark.parametrize("compile", ["on", "inductor"])
@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_so_are_those_of_replayed_rounds(method, compile, options) -> None:
    found = compared(options, "fp64", method, compile)
    assert found["identical"] == found["images"]


@pytest.mark.parametrize("method", SAME_TOKENS.values(), ids=SAME_TOKENS)
def test_in_fp32_they_are_but_for_near_ties(method, options) -> None:
    assert compared(options, "fp32", method)["wrong"] == []


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_in_bf16_differences_are_counted(method, options) -> None:
    found = compared(options, "bf16", method)
    assert 0 <= found["same_tokens"] <= 1 and found["identical"] <= found["images"]


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_rounds_wait_for_the_device_at_one_place(method) -> None:
    assert rounds_without_waits(open_tiny(TINY, "fp32", GPU), method) == 3


def test_a_batch_makes_the_images_of_single_ones() -> None:
    session, jobs = open_tiny(TINY, "fp64", GPU), prompt_jobs(3)
    single, batch = (
        {image.job: image.codes for step in engine.generate(jobs) for image in step.finished}
        for engine in (session.open_engine(METHODS["adt"], images=n) for n in (1, 3))
    )
    assert all(torch.equal(single[job], batch[job]) for job in jobs)


def test_passes_run_eager_and_as_a_graph() -> None:
    target, drafter = random_models(16, 2, 8, torch.bfloat16, GPU)
    passes = Passes(target, open_tiny(TINY, "fp32", GPU).open_engine().distribution, repeats=3)
    assert passes.forward(8) > 0 and passes.graph(8)["graph"] > 0
    assert passes.level(drafter.network, 4) > 0 and passes.bound() > 0


def test_rounds_say_how_busy_the_device_is() -> None:
    found = measure_rounds(
        open_tiny(TINY, "fp32", GPU).open_engine(METHODS["adt"]), prompt_jobs(1), rounds=5
    )
    assert found["busy_ms"] > 0 and 0 <= found["host_share"] < 1 and found["launches"] > 10
