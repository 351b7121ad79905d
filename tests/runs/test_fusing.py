"""--compile on a CPU: every method decodes the tokens of plain decoding by torch's own kernels."""

from dataclasses import replace
from itertools import product

import pytest
import torch
from browser import only_in_all
from compilers import needs_compiler
from fakes import codes as codes_of
from small import small_settings

import main
from configs.methods import MethodSettings
from configs.sampling import SamplingSettings
from configs.schema import RunSettings
from decoding.images import Job
from models import native
from models.base import TransformerSpec
from models.fused import run_fused
from models.transformer import Attention, attend_by_torch, run_by_torch
from runs.check.loaded import FirstRows
from runs.fusing import attend_on_gpu, fuse, kernels_for
from runs.session import Session, open_session

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


SAMPLED = [{}, {"temperature": 0.0}, {"top_k": 5}, {"top_p": 0.7}, {"cfg": 1.0}]


@needs_compiler
@pytest.mark.parametrize("sampled", SAMPLED, ids=str)
def test_all_methods_decode_the_same_tokens(checkpoint, sampled) -> None:
    plain, compiled = opened(checkpoint, "off"), opened(checkpoint, "on")
    assert compiled.target.transformer.blocks.run is run_fused
    assert compiled.drafter.network.blocks.run is run_fused
    assert plain.target.transformer.blocks.run is run_by_torch
    wanted = codes(plain, "ar", images=1, **sampled)
    assert len(wanted) == len(JOBS)
    for method, images in product(METHODS, (1, 2, 3)):
        assert codes(compiled, method, images=images, **sampled) == wanted, (method, images)


@needs_compiler
def test_so_they_do_where_the_head_reads_hidden_states(checkpoint) -> None:
    session = opened(checkpoint, "off")
    wanted = codes(session, "ar", 1.0, 1)
    session = opened(checkpoint, "on")
    session.drafter.network.read_layers((1,))
    torch.nn.init.normal_(session.drafter.network.states.weight, std=0.1)
    fuse(session.drafter.network.requires_grad_(False))
    for method, images in product(("eagle2", "eagle_recall", "block"), (1, 2)):
        assert codes(session, method, 1.0, images) == wanted, (method, images)


@needs_compiler
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_they_are_bit_by_bit_the_same_in_short_types(checkpoint, dtype) -> None:
    session = opened(checkpoint, "on", dtype=dtype)
    wanted = codes(session, "ar", 1.0, 1)
    for method, images in product(METHODS, (1, 2)):
        assert codes(session, method, 1.0, images) == wanted, (method, images)


@needs_compiler
@pytest.mark.parametrize("dtype", ["fp32", pytest.param("bf16", marks=only_in_all)])
def test_the_shipped_model_does_so_too(dtype) -> None:
    """The small one has sizes that the kernels take in fp64 only. Prompts differ in length."""
    settings = RunSettings(
        prompt="a blue square", dtype=dtype, compile="on", method=MethodSettings("eagle_recall")
    )
    session = open_session(settings)
    session = replace(session, target=FirstRows(session.target, 48))
    jobs = [Job("0", "a blue square", 3), Job("1", "two small red circles above a green one", 4)]
    pairs = [("ar", 1), ("ar", 2), ("jacobi", 2), ("adt", 1), ("eagle_recall", 2)]
    engines = (session.open_engine(MethodSettings(name), images=images) for name, images in pairs)
    found = [codes_of(engine, jobs) for engine in engines]
    assert len(found[0]) == 2 and all(each == found[0] for each in found)


@needs_compiler
@pytest.mark.parametrize("speedup", [0.5, 2.0])
def test_kernels_run_where_they_are_faster_unless_they_are_off(
    speedup, checkpoint, monkeypatch
) -> None:
    monkeypatch.setattr("models.probe.gains", lambda dtype, stored: {256: speedup, 1024: speedup})
    settings = small_settings(checkpoint)
    assert settings.compile is None
    runs = run_fused if speedup > 1 else run_by_torch
    assert open_session(settings).target.transformer.blocks.run is runs
    plain = replace(settings, method=MethodSettings("jacobi"), drafter_path=None)
    assert open_session(plain).with_settings(settings).drafter.network.blocks.run is runs
    forced = replace(settings, compile="on")
    assert open_session(forced).target.transformer.blocks.run is run_fused


@pytest.mark.parametrize(
    ("settings", "capability", "by_triton"),
    [
        ({}, (9, 0), True),
        ({"compile": "inductor"}, (8, 0), True),
        ({"compile": "off"}, (9, 0), False),
        ({}, (7, 5), False),  # without products in bf16
        ({"device": "auto", "device_map": "auto"}, (9, 0), False),  # layers on several GPUs
    ],
)
def test_on_a_gpu_caches_are_read_by_triton_where_it_can(
    settings, capability, by_triton, checkpoint, monkeypatch
) -> None:
    kernels = pytest.importorskip("models.cuda_attention")
    monkeypatch.setattr("runs.fusing.pick_device", lambda name: torch.device("cuda", 0))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    layers = [Attention(TransformerSpec(8, 64, 64, 1, 1, 1, 8), layer) for layer in range(2)]
    network = torch.nn.ModuleList(layers)
    kernels_for(replace(small_settings(checkpoint), **settings))(network)
    wanted = kernels.attend_by_triton if by_triton else attend_by_torch
    assert [layer.attend for layer in layers] == [wanted] * 2


def test_without_a_c_compiler_torch_reads_the_caches(monkeypatch, caplog) -> None:
    kernels = pytest.importorskip("models.cuda_attention")

    def fails(*_args: object) -> None:
        raise RuntimeError("Failed to find C compiler.\nPlease specify one.")

    monkeypatch.setattr(kernels, "build", fails)
    attention = Attention(TransformerSpec(8, 64, 64, 1, 1, 1, 8), 0)
    attend_on_gpu(attention)
    assert attention.attend is attend_by_torch
    assert caplog.messages == [
        "Attention runs by torch's kernels, which are slower: Failed to find C compiler."
    ]


NO_COMPILER = {"nothing": "there is no C++ compiler 'nothing'", "false": "false does not run"}


@pytest.mark.parametrize("name", NO_COMPILER)
def test_without_a_compiler_torch_runs(name, checkpoint, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setenv("CXX", name)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    native.kernels.cache_clear()
    try:
        command = ["generate_images", "--prompt", "a red cat", "--device", "cpu", "--method", "ar"]
        command += ["--output_dir", str(tmp_path / "out"), "--model_path", str(checkpoint)]
        assert main.main([*command, "--compile", "on"]) == 2
        told = capsys.readouterr().err
        assert f"--compile: expected off or auto, got 'on'. Here {NO_COMPILER[name]}" in told
        assert main.main(command) == 0
    finally:
        native.kernels.cache_clear()
