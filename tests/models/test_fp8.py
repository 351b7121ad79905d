"""fp8 targets: a row does not depend on the others of its pass, so drafts change no token."""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from families import PLAIN, PROMPTS, decoded
from small import small_settings
from torch import Tensor, nn

from configs.fields import SettingsError
from configs.methods import MethodSettings
from decoding.cache import CacheShape, CacheView, KVCache
from models import fp8
from models.base import TransformerSpec
from models.cpu.linear import Linear
from models.fp8 import Fp8Linear, ScaledRows, check_fp8, exactly, scale_rows, use_fp8
from models.quantize import weight_bytes
from models.transformer import Transformer
from runs.check.loaded import Checkpoint, tell_distance
from runs.session import Session, open_session
from scripts.checkpoints.parts import randomised

SPEC = TransformerSpec(
    vocab=40, hidden=64, intermediate=96, layers=2, heads=2, kv_heads=2, max_positions=512
)


@pytest.fixture(scope="module")
def quantised(checkpoint) -> Iterator[Session]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fp8, "_STEP", 8)  # its MLP is 72 wide
        yield open_session(replace(small_settings(checkpoint, "fp32"), quantize="fp8"))


@pytest.mark.parametrize("name", ["jacobi", "recall", "eagle2"])
def test_lossless_methods_are_exact(name, quantised) -> None:
    found, plain = decoded(quantised, MethodSettings(name)), decoded(quantised, PLAIN)
    assert all(map(torch.equal, found, plain)) and len(plain) == len(PROMPTS)


def distributions(model: Transformer, tokens: Tensor) -> Tensor:
    """log p (n, vocab) after sibling tokens (n,) that follow 30 committed ones."""
    cache = KVCache(SPEC, CacheShape(1, 1, 100), torch.float64, torch.device("cpu"))
    cache.memory[0].normal_(generator=torch.Generator().manual_seed(1))
    n = len(tokens)
    view = CacheView(cache, torch.tensor([30]), 30, n)
    context = view.open(torch.zeros(1, n, dtype=torch.long), torch.eye(n, dtype=torch.bool)[None])
    features = model(tokens[None], context)[0]
    return torch.stack([model.score(row).log_softmax(-1) for row in features])


@torch.inference_mode()
def test_a_tokens_distribution_does_not_depend_on_the_others_of_its_pass(monkeypatch) -> None:
    tokens = torch.randint(40, (59,), generator=torch.Generator().manual_seed(0))
    model = randomised(Transformer(SPEC, 40), 0).double()
    use_fp8(model.blocks)
    together = distributions(model, tokens)
    assert all(
        torch.equal(distributions(model, tokens[i : i + 1])[0], together[i]) for i in (0, 31)
    )

    def per_tensor(x: Tensor) -> ScaledRows:
        rows = scale_rows(x.reshape(1, -1))
        return rows._replace(values=rows.values.view(x.shape))

    monkeypatch.setattr(Fp8Linear, "scale_rows", staticmethod(per_tensor))
    together = distributions(model, tokens)
    assert not torch.equal(distributions(model, tokens[:1])[0], together[0]), "it could not fail"


def test_weights_and_inputs_are_rounded_by_row() -> None:
    linear, x = Linear(32, 16), torch.randn(5, 32) * torch.tensor([[1e-3], [1], [9], [0], [1e4]])
    linear.weight.data[3] *= 1000
    quantised = Fp8Linear(linear, "down")
    weight = quantised.weight.float() * quantised.scale.T
    least = linear.weight.abs().amax(1, keepdim=True) * 2**-15  # below, numbers are subnormal
    assert ((weight - linear.weight).abs() <= linear.weight.abs() / 16 + least).all()
    rows, scale, _ = scale_rows(x)
    wanted = (rows.float() * scale) @ weight.T + linear.bias
    terms = (rows.float() * scale).abs() @ weight.abs().T + linear.bias.abs()
    assert ((quantised(x) - wanted).abs() <= 2e-6 * terms).all()
    assert torch.equal(
        exactly(rows, quantised.weight.T, scale, quantised.scale).float() + linear.bias,
        quantised(x),
    )


def test_the_gpus_kernel_rounds_alike() -> None:
    kernels = pytest.importorskip("models.cuda.ops")
    # numbers that fp8 has: Triton's interpreter does not round up to the next power of two
    x = torch.randint(8, 16, (4, 48)) * 2.0 ** torch.randint(5, (4, 48))
    x[:, 7] = -448
    x = (x * torch.tensor([[1], [2**-6], [0], [4]])).half()
    found, wanted = kernels.scale_rows(x), scale_rows(x)
    assert torch.equal(found.scales, wanted.scales) and found.dtype is wanted.dtype
    assert torch.equal(found.values.float(), wanted.values.float())


def test_all_matrices_of_layers_and_the_bytes_that_inspect_names(quantised) -> None:
    network = quantised.target.transformer
    linears = [module for module in network.blocks.modules() if isinstance(module, nn.Linear)]
    assert {type(linear) for linear in linears} == {Fp8Linear}
    scales = sum(linear.scale.nbytes for linear in linears)
    held = sum(weight.nbytes for weight in network.parameters()) + scales
    assert weight_bytes(network, "fp8", torch.float32) == held


def test_inspect_tells_how_far_it_is(quantised) -> None:
    checkpoint = Checkpoint(quantised.settings)
    with torch.inference_mode():
        row = tell_distance(checkpoint)
    assert row.fits and "fp8 moves the distributions by 0.0" in row.text


@pytest.mark.parametrize(
    ("capability", "version", "message"),
    [
        ((8, 6), "2.14.1", "compute capability 8.9"),
        ((8, 9), "2.11.0+cu130", "torch 2.12 or later"),
        ((8, 9), "2.12.0", ""),
        ((9, 0), "2.6.0", ""),
    ],
)
def test_cards_that_cannot_are_refused(capability, version, message, monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(fp8.torch, "__version__", version)
    refused = pytest.raises(SettingsError, match=f"'fp8' works only with .*{message}")
    with refused if message else nullcontext():
        check_fp8(torch.device("cuda"))


def test_a_matrix_that_the_kernel_cannot_take_is_named() -> None:
    with pytest.raises(
        ValueError, match=r"--quantize matrix down: .*multiples of .*, got \(16, 250\)"
    ):
        Fp8Linear(Linear(250, 16), "down")
