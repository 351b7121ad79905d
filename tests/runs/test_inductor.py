"""--compile inductor: layers by torch.compile, the tokens of plain decoding by torch's kernels."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from browser import only_in_all
from compilers import needs_inductor
from fakes import codes as codes_of
from small import Sizes, open_lumina, small_settings, write_checkpoint
from test_fusing import JOBS, METHODS, codes, opened
from torch._dynamo.eval_frame import _debug_get_cache_entry_list
from torch._dynamo.utils import counters

from configs.fields import SettingsError
from configs.methods import MethodSettings
from decoding.graphs import CudaGraphs
from decoding.round import RoundShape
from decoding.sampling import SamplingDistribution
from models import compiled
from models.base import Context
from runs.methods import build_engine
from runs.session import open_session


@pytest.fixture(autouse=True)
def compiler() -> Iterator[None]:
    """A compiler that remembers no other test."""
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


def programs() -> int:
    return counters["stats"]["unique_graphs"]


@pytest.fixture(scope="module")
def deep(tmp_path_factory):
    return write_checkpoint(tmp_path_factory.mktemp("deep") / "checkpoint", Sizes(layers=5))


def layers() -> int:
    functions = compiled._begin, compiled._between, compiled._end
    return sum(len(_debug_get_cache_entry_list(function)) for function in functions)


@needs_inductor
def test_layers_and_rounds_share_their_programs(deep) -> None:
    """Layers have three for passes over one token and three for others, whatever is cached."""
    wanted = codes(opened(deep, "off"), "ar", 1.0, 2)
    session = opened(deep, "inductor")
    assert len(session.target.transformer.blocks.blocks) == 5
    assert codes(session, "jacobi", 1.0, 2) == wanted
    assert codes(session, "ar", 1.0, 2) == wanted
    assert layers() == 6
    assert codes(session, "ar", 0.0, 1) == codes(opened(deep, "off"), "ar", 0.0, 1)
    assert codes(session, "jacobi", 1.0, 1) == wanted
    assert layers() == 6
    with torch.compiler.set_stance("fail_on_recompile"):  # neither layers nor small steps
        assert codes(session, "jacobi", 1.0, 1) == wanted
        assert codes(session, "ar", 1.0, 2) == wanted


@needs_inductor
@only_in_all
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_all_methods_decode_the_same_tokens(checkpoint, temperature) -> None:
    session = opened(checkpoint, "inductor")
    wanted = codes(opened(checkpoint, "off"), "ar", temperature, 1)
    for method, images in product(METHODS, (1, 2)):
        assert codes(session, method, temperature, images) == wanted, (method, images)
    assert len(wanted) == len(JOBS)


@needs_inductor
@only_in_all
@pytest.mark.parametrize("case", ["one guidance row after the other", "across row ends"])
def test_so_they_do(case, checkpoint, lumina_folder) -> None:
    row_ends = case == "across row ends"
    plain = open_lumina(lumina_folder, "64") if row_ends else opened(checkpoint, "off")
    changes = {} if row_ends else {"cfg_mode": "sequential"}
    session = open_session(replace(plain.settings, compile="inductor", **changes))
    for method in ("adt",) if row_ends else ("ar", "jacobi", "block"):
        assert codes(session, method, 1.0, 2) == codes(plain, "ar", 1.0, 1)


class Written(CudaGraphs):
    """Refuses to compile in the second round of a shape, in which a CUDA graph is captured."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[RoundShape] = set()
        self.again = 0

    def __call__(self, shape: RoundShape, program: Callable, inputs: torch.Tensor) -> Any:
        known = shape in self.seen
        self.seen.add(shape)
        self.again += known
        with torch.compiler.set_stance("fail_on_recompile" if known else "default"):
            return program(inputs)


RECORDED = [
    MethodSettings("ar"),
    MethodSettings("adt"),
    MethodSettings("block", nodes=8, depth=3, width=3, window=4),  # small, so that sizes recur
]


@needs_inductor
@pytest.mark.parametrize(
    "method",
    [MethodSettings("jacobi"), *(pytest.param(m, marks=only_in_all) for m in RECORDED)],
    ids=lambda method: method.method,
)
def test_rounds_can_be_recorded(method, deep) -> None:
    """What the second round of a size needs was compiled in the first one."""
    session, plain = opened(deep, "inductor"), opened(deep, "off")
    distribution = SamplingDistribution(cfg=2.0)
    engine = build_engine(session.target, session.drafter, distribution, method, 2)
    engine.runner = Written()
    assert codes_of(engine, JOBS) == codes(plain, "ar", 1.0, 1)
    assert engine.runner.again > len(engine.runner.seen) > 0


@needs_inductor
def test_threads_share_programs(deep) -> None:
    """As the page's, in which another one decodes than the one that loads."""
    session = opened(deep, "inductor")
    wanted = codes(session, "jacobi", 1.0, 1)
    before = programs()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(codes, session, "jacobi", 1.0, 1).result() == wanted
        limit = pool.submit(lambda: torch._dynamo.config.recompile_limit).result()
    assert programs() == before and limit > 8


@needs_inductor
def test_training_runs_layer_by_layer(checkpoint) -> None:
    """Gradients are not compiled."""
    network = opened(checkpoint, "inductor").drafter.network.requires_grad_(True)
    rows = torch.randn(2, 3, network.spec.hidden, dtype=torch.float64)
    positions = torch.arange(3).expand(2, -1)
    network.blocks(rows, Context(positions)).sum().backward()
    assert network.blocks.blocks[0].mlp.down.weight.grad is not None and programs() == 0


def test_it_is_refused_without_a_compiler(checkpoint, monkeypatch) -> None:
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    settings = replace(small_settings(checkpoint), compile="inductor")
    monkeypatch.setattr("runs.session.load_target", lambda *_: pytest.fail("loads the weights"))
    message = "--compile: expected off or auto, got 'inductor'. Here no C.. compiler was found"
    with pytest.raises(SettingsError, match=message):
        open_session(settings)
    monkeypatch.setattr(compiled.importlib.util, "find_spec", lambda name: None)
    missing = compiled.missing_compiler(torch.device("cuda"))
    assert missing == "the package triton is missing"
