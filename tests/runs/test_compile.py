"""--compile on and inductor: every method decodes the tokens of plain decoding by torch itself."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest
import torch
from browser import ALL, only_in_all, thinned
from compilers import needs_compiler, needs_inductor
from damage import generated, refused
from direct import session_reading
from fakes import codes as codes_of
from small import open_lumina, small_settings
from torch._dynamo.utils import counters

from configs.fields import SettingsError
from configs.methods import MethodSettings
from configs.model import EngineSettings, SamplingSettings
from decoding.graphs import CudaGraphs
from decoding.images import Job
from decoding.sampling import SamplingDistribution
from models.backends import kernels_for, use_compiled, use_triton, whose_kernels
from models.base import TransformerSpec
from models.cpu import native
from models.cpu.blocks import run_compiled
from models.transformer import BY_TORCH, Transformer, run_by_torch
from runs.check.loaded import first_rows
from runs.methods import build_engine
from runs.session import Session, open_session
from scripts.checkpoints.chameleon import Sizes, write_checkpoint
from support.compiler import compiling, fused, missing_compiler
from support.output import remark

JOBS = [Job(str(seed), text, seed) for seed, text in enumerate(("a red cat", "two boats", "a"))]
METHODS = ["ar", "jacobi", "static", "eagle2", "adt", "recall", "eagle_recall", "block"]


def opened(checkpoint, compile: str, dtype: str = "fp64") -> Session:
    settings = replace(small_settings(checkpoint), compile=compile, dtype=dtype)
    return open_session(replace(settings, method=MethodSettings("eagle_recall")))


def codes(
    session: Session, method: str, temperature: float = 1.0, images: int = 1, **sampled: float
) -> dict[str, list[int]]:
    sampling = SamplingSettings(**{"cfg": 2.0, "temperature": temperature} | sampled)
    return codes_of(session.open_engine(MethodSettings(method), sampling, images), JOBS)


FEW = [("ar", 2), ("adt", 3), ("block", 1)]
SAMPLED = [{}, {"top_k": 5, "top_p": 0.7}, {"temperature": 0.0}, {"cfg": 1.0, "temperature": 0.0}]


@needs_compiler
@pytest.mark.parametrize("sampled", thinned(SAMPLED), ids=str)
def test_all_methods_decode_the_same_tokens(checkpoint, sampled) -> None:
    plain, fast = opened(checkpoint, "off"), opened(checkpoint, "on")
    assert fast.target.transformer.blocks.run is run_compiled
    assert fast.drafter.blocks.run is run_compiled
    assert plain.target.transformer.blocks.run is run_by_torch
    wanted = codes(plain, "ar", images=1, **sampled)
    assert len(wanted) == len(JOBS)
    some = FEW if sampled else [*FEW, *product(METHODS, (2,))]
    for method, images in product(METHODS, (1, 2, 3)) if ALL else some:
        assert codes(fast, method, images=images, **sampled) == wanted, (method, images)


@needs_compiler
def test_so_they_do_where_the_head_reads_hidden_states(checkpoint) -> None:
    wanted = codes(opened(checkpoint, "off"), "ar", 1.0, 1)
    session = session_reading(opened(checkpoint, "on"), (1,))
    use_compiled(session.drafter)
    pairs = product(("eagle2", "block", "eagle_recall"), (2, 1))
    for method, images in thinned(pairs):
        assert codes(session, method, 1.0, images) == wanted, (method, images)


@needs_compiler
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_they_are_bit_by_bit_the_same_in_short_types(checkpoint, dtype) -> None:
    session = opened(checkpoint, "on", dtype=dtype)
    wanted = codes(session, "ar", 1.0, 1)
    for method, images in product(METHODS, (1, 2)) if ALL else FEW:
        assert codes(session, method, 1.0, images) == wanted, (method, images)


@needs_compiler
@pytest.mark.parametrize("dtype", ["fp32", pytest.param("bf16", marks=only_in_all)])
def test_the_shipped_model_does_so_too(dtype) -> None:
    """The small one has sizes that the kernels take in fp64 only. Prompts differ in length."""
    settings = EngineSettings(dtype=dtype, compile="on", method=MethodSettings("eagle_recall"))
    session = open_session(settings)
    session = replace(session, target=first_rows(session.target, 48 if ALL else 16))
    jobs = [Job("0", "a blue square", 3), Job("1", "two small red circles above a green one", 4)]
    pairs = [("ar", 1), ("jacobi", 2), ("eagle_recall", 2)]
    pairs += [("ar", 2), ("adt", 1)] if ALL else []
    engines = (session.open_engine(MethodSettings(name), images=images) for name, images in pairs)
    found = [codes_of(engine, jobs) for engine in engines]
    assert len(found[0]) == 2 and all(each == found[0] for each in found)


@needs_compiler
@pytest.mark.parametrize("vectors", [False, True])
def test_kernels_run_where_the_processor_has_vectors_unless_they_are_off(
    vectors, checkpoint, monkeypatch
) -> None:
    monkeypatch.setattr("models.backends.has_vectors", lambda: vectors)
    settings = small_settings(checkpoint)
    assert settings.compile == "auto"
    runs = run_compiled if vectors else run_by_torch
    session = open_session(settings)
    assert session.target.transformer.blocks.run is runs
    assert session.hardware()["kernels"] == ("compiled" if vectors else "torch")
    plain = replace(settings, method=MethodSettings("jacobi"), drafter_path=None)
    assert open_session(plain).with_settings(settings).drafter.blocks.run is runs
    forced = replace(settings, compile="on")
    assert open_session(forced).target.transformer.blocks.run is run_compiled


@pytest.mark.parametrize(
    ("settings", "capability", "steps"),
    [
        ({}, (9, 0), "TritonOps"),
        ({"compile": "inductor"}, (8, 0), "TritonOps"),
        ({"compile": "off"}, (9, 0), "BlockOps"),
        ({}, (7, 5), "BlockOps"),  # without products in bf16
        ({"device": "auto", "device_map": "auto"}, (9, 0), "BlockOps"),  # layers on several GPUs
    ],
)
def test_on_a_gpu_steps_run_by_triton_where_they_can(
    settings, capability, steps, checkpoint, monkeypatch
) -> None:
    kernels = pytest.importorskip("models.cuda.ops")
    monkeypatch.setattr("models.backends.pick_device", lambda name: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(kernels, "build", lambda blocks, same_bits: None)
    half, single = network().to(kernels.TYPE), network()
    kernels_for(replace(small_settings(checkpoint), **settings))(half, single)
    assert [type(block.ops).__name__ for block in half.blocks.blocks] == [steps] * 2
    assert whose_kernels(half) == ("torch" if steps == "BlockOps" else "triton")
    assert [block.ops for block in single.blocks.blocks] == [BY_TORCH] * 2  # fp32 is torch's


def test_the_same_bits_take_triton_and_sums_that_are_not_split(checkpoint, monkeypatch) -> None:
    kernels = pytest.importorskip("models.cuda.ops")
    matmul = SimpleNamespace()
    monkeypatch.setattr(torch.backends.cuda, "matmul", matmul)
    monkeypatch.setattr(torch.backends.cuda, "preferred_blas_library", lambda name: None)
    settings = replace(small_settings(checkpoint, "bf16"), compile="same_bits")
    with pytest.raises(SettingsError, match="--compile: expected auto, got 'same_bits'. It needs"):
        kernels_for(settings)
    monkeypatch.setattr("models.backends.pick_device", lambda name: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(kernels, "build", lambda blocks, same_bits: None)
    kernels_for(settings)(half := network().to(kernels.TYPE))
    assert all(block.ops.same_bits for block in half.blocks.blocks)
    assert matmul.allow_bf16_reduced_precision_reduction == (False, False)


def network() -> Transformer:
    return Transformer(TransformerSpec(8, 64, 64, 2, 1, 1, 8), 8)


def test_without_a_c_compiler_torch_runs_the_steps(monkeypatch, caplog) -> None:
    kernels = pytest.importorskip("models.cuda.ops")

    def fails(*_args: object) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify one.")

    monkeypatch.setattr(kernels, "build", fails)
    half = network().to(kernels.TYPE)
    use_triton(half)
    assert [block.ops for block in half.blocks.blocks] == [BY_TORCH] * 2
    assert caplog.messages == [
        "Layers run by torch's kernels, which are slower: Failed to find C compiler."
    ]


NO_COMPILER = {"nothing": "there is no C++ compiler 'nothing'", "false": "false does not run"}


@pytest.mark.parametrize("name", NO_COMPILER)
def test_without_a_compiler_torch_runs(name, folder, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("CXX", name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.kernels.cache_clear()
    try:
        told = refused(capsys, folder, "--device=cpu", "--method=ar", "--compile=on")
        assert f"--compile: expected off or auto, got 'on'. Here {NO_COMPILER[name]}" in told
        remark.cache_clear()
        code, said = generated(capsys, folder, "--device=cpu", "--method=ar")
        why = f"note: layers run by torch's kernels, which are slower: {NO_COMPILER[name]}"
        assert code == 0 and said.count(why) == 1
    finally:
        native.kernels.cache_clear()


@pytest.fixture(autouse=True)
def compiler():
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


@needs_inductor
@only_in_all
def test_rounds_share_their_programs(deep) -> None:
    wanted = codes(opened(deep, "off"), "ar", 1.0, 2)
    session = opened(deep, "inductor")
    assert codes(session, "jacobi", 1.0, 2) == wanted
    assert codes(session, "ar", 1.0, 2) == wanted
    assert codes(session, "ar", 0.0, 1) == codes(opened(deep, "off"), "ar", 0.0, 1)
    assert codes(session, "jacobi", 1.0, 1) == wanted
    assert programs() > 0
    with torch.compiler.set_stance("fail_on_recompile"):
        assert codes(session, "jacobi", 1.0, 1) == wanted
        assert codes(session, "ar", 1.0, 2) == wanted


@needs_inductor
@only_in_all
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_all_methods_decode_them_by_inductor(checkpoint, temperature) -> None:
    session = opened(checkpoint, "inductor")
    wanted = codes(opened(checkpoint, "off"), "ar", temperature, 1)
    for method, images in product(METHODS, (1, 2)):
        assert codes(session, method, temperature, images) == wanted, (method, images)
    assert len(wanted) == len(JOBS)


@needs_inductor
@only_in_all
@pytest.mark.parametrize("case", ["one guidance row after the other", "across row ends"])
def test_so_they_do_by_inductor(case, checkpoint, lumina_folder) -> None:
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
        self.seen = set()
        self.again = 0

    def __call__(self, name, shape, program, inputs):
        known = shape in self.seen
        self.seen.add(shape)
        self.again += known
        with torch.compiler.set_stance("fail_on_recompile" if known else "default"):
            return program(inputs)


RECORDED = [
    MethodSettings("ar"),
    MethodSettings("adt"),
    MethodSettings("block", nodes=8, depth=3, width=3),  # small, so that sizes recur
]


@needs_inductor
@pytest.mark.parametrize(
    "method",
    [MethodSettings("jacobi"), *(pytest.param(m, marks=only_in_all) for m in RECORDED)],
    ids=lambda method: method.method,
)
def test_compiled_rounds_can_be_recorded(method, deep) -> None:
    """What the second round of a size needs was compiled in the first one."""
    session, plain = opened(deep, "inductor"), opened(deep, "off")
    distribution = SamplingDistribution(cfg=2.0)
    engine = build_engine(session.target, session.drafter, distribution, method, 2)
    engine.runner = Written()
    assert codes_of(engine, JOBS) == codes(plain, "ar", 1.0, 1)
    assert engine.runner.again > len(engine.runner.seen) > 0


@needs_inductor
@only_in_all
def test_threads_share_what_inductor_compiled(deep) -> None:
    """As the page's, in which another one decodes than the one that loads."""
    session = opened(deep, "inductor")
    wanted = codes(session, "jacobi", 1.0, 1)
    before = programs()
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(codes, session, "jacobi", 1.0, 1).result() == wanted
        limit = pool.submit(lambda: torch._dynamo.config.recompile_limit).result()
    assert programs() == before and limit > 8


def test_inductor_is_refused_without_a_compiler(checkpoint, monkeypatch) -> None:
    monkeypatch.setattr("support.compiler.shutil.which", lambda name: None)
    settings = replace(small_settings(checkpoint), compile="inductor")
    monkeypatch.setattr("runs.session.load_target", lambda *_: pytest.fail("loads the weights"))
    message = "--compile: expected off or auto, got 'inductor'. Here no C.. compiler was found"
    with pytest.raises(SettingsError, match=message):
        open_session(settings)
    monkeypatch.setattr("support.compiler.importlib.util.find_spec", lambda name: None)
    missing = missing_compiler(torch.device("cuda"))
    assert missing == "the package triton is missing"


@fused
def doubled(x: torch.Tensor) -> torch.Tensor:
    """Return 2 x."""
    return 2 * x


def test_functions_are_compiled_only_while_it_is_on_and_not_where_gradients_are_recorded() -> None:
    taken = []

    def compiler(function):
        taken.append(function.__name__)
        return function

    one = torch.ones(1)
    with torch.inference_mode():
        assert doubled(one) == 2 and not taken
        with compiling(compiler):
            assert doubled(one) == 2 and taken == ["doubled"]
            with compiling(None):
                doubled(one)
            with torch.inference_mode(False), torch.enable_grad():
                doubled(one)
        doubled(one)
    assert len(taken) == 2 and doubled.__doc__ == "Return 2 x."
