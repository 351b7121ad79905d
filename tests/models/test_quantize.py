"""Lossless methods are exact with quantised targets; `make test` installs no torchao for it."""

import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from families import PLAIN, PROMPTS, decoded
from small import small_settings

from configs.fields import SettingsError
from configs.methods import MethodSettings
from configs.model import SamplingSettings
from configs.schema import RunSettings
from models.cpu.linear import Linear
from models.quantize import quantize, weight_bytes, weight_format
from runs.session import Session, open_session

CPU = torch.device("cpu")
LOSSLESS = [
    MethodSettings("static"),
    MethodSettings("eagle2", depth=3, width=4, nodes=7),
    MethodSettings("adt"),
    MethodSettings("jacobi", window=5),
    MethodSettings("recall", depth=4, width=3, nodes=12),
    MethodSettings("eagle_recall", depth=3, width=3, nodes=9),
    MethodSettings("adt", verifier="rejection"),
]


@pytest.fixture(scope="module")
def quantised(checkpoint: Path) -> Session:
    pytest.importorskip("torchao")
    return open_session(replace(small_settings(checkpoint, "fp32"), quantize="int8"))


@pytest.mark.parametrize("method", LOSSLESS, ids=lambda m: f"{m.method} {m.verifier}")
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_lossless_methods_are_exact(method, temperature, quantised) -> None:
    sampling = SamplingSettings(temperature=temperature)
    if not method.same_tokens(temperature):
        pytest.skip("the same distribution, not the same tokens")
    plain = decoded(quantised, PLAIN, sampling)
    found = decoded(quantised, method, sampling)
    assert all(map(torch.equal, found, plain)) and len(plain) == len(PROMPTS)


def test_compiled_steps_are_exact(quantised) -> None:
    compiled = open_session(replace(quantised.settings, compile="inductor"))
    assert all(map(torch.equal, decoded(compiled, PLAIN), decoded(quantised, PLAIN)))


def test_what_is_quantised(quantised, session32) -> None:
    """The matrices of all layers, within half a step of the weights; nothing else."""
    ours, theirs = (
        dict(each.target.transformer.named_parameters()) for each in (quantised, session32)
    )
    changed = {name for name in ours if type(ours[name].data) is not torch.Tensor}
    matrices = ("qkv.weight", "out.weight", "gate_up.weight", "down.weight")
    assert changed == {name for name in theirs if name.endswith(matrices)}
    for name, weight in theirs.items():
        if name in changed:
            step = weight.abs().amax(1, keepdim=True) / 127
            assert ((ours[name].dequantize() - weight).abs() <= 0.51 * step).all()
        else:
            assert torch.equal(ours[name], weight)
    assert not torch.equal(*(decoded(each, PLAIN)[1] for each in (quantised, session32)))


def test_it_is_another_target_on_disk_and_of_the_same_identity_without(checkpoint) -> None:
    flags = {"prompt": "a cat", "model_path": str(checkpoint)}
    settings, other = RunSettings.of(flags), RunSettings.of(flags, quantize="int8")
    assert "quantize" not in settings.identity()
    assert other.identity() == settings.identity() | {"quantize": "int8"}
    assert other.fingerprint() != settings.fingerprint()


def test_memory_that_inspect_names_is_that_of_the_weights(quantised, checkpoint) -> None:
    network = quantised.target.transformer
    held = sum(
        sum(getattr(p, part).nbytes for part in ("qdata", "scale"))
        if type(p.data) is not torch.Tensor
        else p.nbytes
        for p in network.parameters()
    )
    assert weight_bytes(network, "int8", torch.float32) == held
    assert quantised.hardware()["quantize"] == "int8"


def test_int4_needs_a_cuda_device() -> None:
    with pytest.raises(SettingsError, match="--quantize: expected int8, or int4 wit.*got 'int4'"):
        weight_format("int4", CPU)


def test_without_torchao_nothing_is_loaded(checkpoint, monkeypatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    settings = replace(small_settings(checkpoint, "fp32"), quantize="int8")
    monkeypatch.setattr("runs.session.load_target", lambda *_: pytest.fail("loads the weights"))
    with pytest.raises(ValueError, match="--quantize: found 'int8', which needs .* torchao"):
        open_session(settings)


def test_on_a_gpu_int8_says_that_it_saves_no_time(monkeypatch, capsys) -> None:
    library = SimpleNamespace(Int4WeightOnlyConfig=None, Int8WeightOnlyConfig=lambda **_: "int8")
    monkeypatch.setitem(sys.modules, "torchao.quantization", library)
    for device, said in (("cpu", False), ("cuda", True)):
        assert weight_format("int8", torch.device(device)) == "int8"
        assert ("not time" in capsys.readouterr().err) is said


def test_the_format_of_int4() -> None:
    pytest.importorskip("torchao")
    form = weight_format("int4", torch.device("cuda"))
    assert form.group_size == 64 and form.int4_packing_format == "tile_packed_to_4d"


def test_a_matrix_that_torchao_leaves_as_it_is_is_named(monkeypatch) -> None:
    """torchao skips sizes that do not fit, without a word."""
    library = SimpleNamespace(quantize_=lambda *_: None)
    monkeypatch.setitem(sys.modules, "torchao.quantization", library)
    blocks = torch.nn.Module()
    blocks.add_module("down", Linear(250, 8, bias=False))
    target = SimpleNamespace(transformer=SimpleNamespace(blocks=blocks))
    with pytest.raises(ValueError, match=r"--quantize matrix down: .*got \(8, 250\)"):
        quantize(target, object(), CPU)
