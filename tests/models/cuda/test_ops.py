"""Attention and a block's steps by the GPU's kernels, in Triton's interpreter, equal torch's."""

import os
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from browser import ALL, only_in_all
from torch import Tensor

from decoding.cache import CacheShape, CacheView, KVCache
from drafters.training.rows import Joined
from models.base import Context, ImageRope, TransformerSpec
from models.cpu.linear import linears_of
from models.fp8 import use_fp8
from models.transformer import BY_TORCH, BlockOps, Transformer
from scripts.checkpoints.parts import randomised

kernels = pytest.importorskip("models.cuda.ops", reason="needs Triton, torch's on Linux")
cuda_attention = pytest.importorskip("models.cuda.attention")
pytestmark = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="with a GPU, scripts/gpu/check.sh runs them"
)
# fp16 stands for bf16, which the interpreter multiplies as if it were integers.
HALF = torch.float16
BY_KERNELS = kernels.TritonOps()
SPEC = TransformerSpec(
    vocab=40, hidden=128, intermediate=96, layers=1, heads=2, kv_heads=2, max_positions=512
)
SPECS = {  # and new and committed tokens
    "Chameleon's, one token": (SPEC, 1, 90),
    "Chameleon's, a tree": (SPEC, 17 if ALL else 5, 90),
    "without norms of heads, which share keys": (replace(SPEC, qk_norm=False, kv_heads=1), 9, 30),
    "root mean squares, one key head": (replace(SPEC, qk_rms=True, kv_heads=1), 1, 70),
    "wide heads and GELU": (replace(SPEC, gelu=True, head_width=256), 2, 90),
    "pairs of channels turn": (replace(SPEC, image_rope=ImageRope(20, 16)), 2, 60),
    "norms after the products": (replace(SPEC, swin_norm=True, layers=2), 2, 60),
    "norms before and after": (replace(SPEC, sandwich_norm=True, qkv_bias=True), 2, 60),
    "two layers, no first norm": (replace(SPEC, first_norm=False, layers=2), 2, 60),
    "a head that no tile fits": (replace(SPEC, head_width=96), 2, 60),
}


@pytest.fixture(autouse=True)
def half(monkeypatch) -> None:
    """Half precision, and fewer parts of images, since the interpreter runs them one by one."""
    monkeypatch.setattr(kernels, "TYPE", HALF)
    monkeypatch.setattr(cuda_attention, "_PROGRAMS", 8)


def network(spec: TransformerSpec) -> Transformer:
    return randomised(Transformer(spec, 10), 0).to(HALF).requires_grad_(False)


def with_steps(model: Transformer, steps: BlockOps) -> Transformer:
    for block in model.blocks.blocks:
        block.ops = steps
    return model


def cache_of(model: Transformer, guidance: int = 1) -> KVCache:
    """Two images; the second of their rows begins three slots later."""
    cache = KVCache(model.spec, CacheShape(2, guidance, 400), HALF, torch.device("cpu"))
    cache.memory[0].normal_(generator=torch.Generator().manual_seed(1))
    cache.padding[1::2, :3] = -torch.inf
    return cache


def read(model: Transformer, n: int, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Features of n tokens of random trees after so many committed ones, and what is cached."""
    cache, random = cache_of(model), torch.Generator().manual_seed(2)
    x = torch.randn(2, n, model.spec.hidden, generator=random).to(HALF)
    visible = torch.rand(2, n, n, generator=random) < 0.5
    visible |= torch.eye(n, dtype=torch.bool)
    depths = torch.arange(n).expand(2, -1)
    context = CacheView(cache, lengths, 300, n).open(depths, visible)
    with torch.inference_mode():
        return model.blocks(x, context), cache.memory[0]


def assert_kept(written: Tensor, kept: Tensor, before: Tensor) -> None:
    """New slots hold nearly the same, and all others what they held."""
    assert_near(written, kept)
    untouched = (kept == before).all(-1)
    assert torch.equal(written[untouched], before[untouched]) and not untouched.all()


def assert_near(found: Tensor, wanted: Tensor) -> None:
    assert (found - wanted).abs().max() < 4e-3 * wanted.abs().max()


@pytest.mark.parametrize("name", SPECS)
def test_read_and_keep_what_torch_does(name, monkeypatch) -> None:
    spec, n, length = SPECS[name]
    model, lengths = network(spec), torch.tensor([length, length - 20])
    wanted, kept = read(model, n, lengths)
    if n == 1:
        monkeypatch.setattr(cuda_attention, "_PROGRAMS", 32)
    by_torch = {"attend": spec.head_dim == 96, "norm": not spec.first_norm}
    for step in ("attend", "norm", "add_norm", "gate"):
        if not by_torch.get(step):
            monkeypatch.setattr(BlockOps, step, never)
    found, written = read(with_steps(model, BY_KERNELS), n, lengths)
    assert_kept(written, kept, cache_of(model).memory[0])
    assert_near(found, wanted)


def never(*_args: object) -> Tensor:
    raise AssertionError("another way has to run this")


@pytest.mark.parametrize("cache", [None, Joined()], ids=["none", "training's"])
def test_passes_without_slots_are_left_to_torch(cache) -> None:
    model, x = network(SPEC), torch.randn(1, 4, SPEC.hidden).to(HALF)
    positions = torch.arange(4)[None]
    wanted = model.blocks(x, Context(positions))
    mask = torch.full((4, 4), -torch.inf, dtype=HALF).triu(1)[None, None]
    context = Context(positions, None if cache is None else mask, cache)
    with torch.inference_mode():
        assert_near(with_steps(model, BY_KERNELS).blocks(x, context), wanted)


def test_gradients_are_left_to_torch() -> None:
    model = with_steps(network(SPEC).requires_grad_(True), BY_KERNELS)
    x = torch.randn(1, 4, SPEC.hidden).to(HALF)
    model.blocks(x, Context(torch.arange(4)[None])).sum().backward()
    assert model.blocks.blocks[0].mlp.gate_up.weight.grad is not None


def test_other_types_are_left_to_torch(monkeypatch) -> None:
    for name in ("write_cache", "add_norm", "gate"):
        monkeypatch.setattr(kernels, name, never)
    model, x = network(SPEC).float(), torch.randn(1, 4, SPEC.hidden)
    cache = KVCache(SPEC, CacheShape(1, 1, 8), torch.float32, torch.device("cpu"))
    found = []
    for steps in (BY_TORCH, BY_KERNELS):
        context = cache.prefill(0, 4, torch.tensor([0]))
        with torch.inference_mode():
            found.append(with_steps(model, steps).blocks(x, context))
    assert torch.equal(*found)


@pytest.mark.parametrize("rows", [slice(0, 2), slice(1, None, 2)], ids=["prompt", "in turn"])
def test_prompts_and_guidance_rows_in_turn(rows) -> None:
    """A prompt's slots are the same in all rows; one row of two has its own strides."""
    model = network(replace(SPEC, kv_heads=1))
    x = torch.randn(2, 9, SPEC.hidden, generator=torch.Generator().manual_seed(3)).to(HALF)
    found, written = [], []
    for steps in (BY_TORCH, BY_KERNELS):
        cache = cache_of(model, 2)
        context = cache.prefill(1, 9, torch.tensor([0, 3]))
        if rows.step:
            part = context.cache.part(rows)
            context = Context(context.positions[rows], context.mask[rows], part)
        with torch.inference_mode():
            found.append(with_steps(model, steps).blocks(x[rows], context))
        written.append(cache.memory[0])
    by_torch, by_kernels = written
    assert_kept(by_kernels, by_torch, cache_of(model, 2).memory[0])
    assert_near(*found)


def in_fp8(spec: TransformerSpec = SPEC) -> Transformer:
    """A network whose products read rows in fp8, most of them from norms and gates."""
    model = network(spec)
    use_fp8(model.blocks)
    for linear in linears_of(model.blocks):
        linear.scale_rows = kernels.scale_rows
    return with_steps(model, kernels.TritonOps(True, kernels.scaled_norms(model.blocks)))


def test_norms_and_gates_round_rows_as_a_kernel_of_its_own_would() -> None:
    block = in_fp8().blocks.blocks[0]
    norm, mlp, random = block.mlp_norm, block.mlp, torch.Generator().manual_seed(4)
    x, y, z = (torch.randn(2, 5, width, generator=random).to(HALF) for width in (128, 128, 192))
    total, rows = kernels.add_norm(norm, x, y, scales=True)
    plain, normed = kernels.add_norm(norm, x, y)
    gated = kernels.gate(network(SPEC).blocks.blocks[0].mlp, z)
    assert torch.equal(total, plain)
    for found, whole in ((rows, normed), (kernels.gate(mlp, z), gated)):
        wanted = kernels.scale_rows(whole)
        assert torch.equal(found.scales, wanted.scales) and found.dtype is HALF
        assert torch.equal(found.values.float(), wanted.values.float())


def test_most_products_in_fp8_need_no_kernel_before_them(monkeypatch) -> None:
    ran, scale = [], kernels.scale_rows
    monkeypatch.setattr(kernels, "scale_rows", lambda x: ran.append(x.shape[-1]) or scale(x))
    # after attention; where norms follow products also the sums
    for change, kernels_of_their_own in {"gelu": 1, "sandwich_norm": 1, "swin_norm": 3}.items():
        ran.clear()
        read(in_fp8(replace(SPEC, **{change: True})), 1, torch.tensor([20, 10]))
        assert len(ran) == kernels_of_their_own, change


@pytest.mark.parametrize("first", [0, pytest.param(31, marks=only_in_all)])
def test_a_tokens_distribution_in_fp8_does_not_depend_on_the_others_of_its_pass(first) -> None:
    """It is the first of its pass, as a draft of `jacobi`; others follow it."""
    model, random = in_fp8(), torch.Generator().manual_seed(5)
    x = torch.randn(59, SPEC.hidden, generator=random).to(HALF).roll(-first, 0)
    found = []
    for n in (1, 17, 59) if ALL else (1, 5):
        cache = KVCache(SPEC, CacheShape(1, 1, 200), HALF, torch.device("cpu"))
        cache.memory[0].normal_(generator=torch.Generator().manual_seed(1))
        view = CacheView(cache, torch.tensor([90]), 100, n)
        context = view.open(torch.arange(n)[None], torch.ones(1, n, n).tril().bool())
        with torch.inference_mode():
            features = model.read(x[None, :n], context)
            found.append(model.score(features[:, :1]).log_softmax(-1))
    assert all(torch.equal(other, found[0]) for other in found[1:])


def test_kernels_are_built_before_the_first_pass_where_a_tile_fits(monkeypatch) -> None:
    monkeypatch.setattr(cuda_attention, "_PROGRAMS", 2)
    kernels.build(network(SPEC).blocks, False)
    monkeypatch.setattr(kernels, "attend", never)
    kernels.build(network(replace(SPEC, head_width=96)).blocks, False)
    with pytest.raises(AssertionError, match="another way"):
        kernels.build(network(SPEC).blocks, False)


def test_attention_ends_with_the_tokens_that_an_image_has() -> None:
    """Slots behind them are not read, whatever the mask says of them."""
    random = torch.Generator().manual_seed(0)
    q, keys, values = (torch.randn(2, 1, 80, 64, generator=random).to(HALF) for _ in range(3))
    mask = torch.zeros(2, 1, 1, 80, dtype=HALF)
    found = cuda_attention.attend(q[:, :, :3], keys, values, mask, torch.tensor([50, 70]))
    keys[0, :, 50:] = values[0, :, 50:] = torch.nan
    assert torch.equal(
        cuda_attention.attend(q[:, :, :3], keys, values, mask, torch.tensor([50, 70])), found
    )
    wanted = F.scaled_dot_product_attention(q[:1, :, :3], keys[:1, :, :50], values[:1, :, :50])
    assert (found[:1] - wanted).abs().max() < 4e-3


def a_row_of_passes(same_bits: bool, sizes: tuple[int, ...]) -> list[Tensor]:
    """The attention of one token, at slot 508: the last row of up to 59, and one of more."""
    random = torch.Generator().manual_seed(0)
    q, keys, values = (torch.randn(1, 1, 600, 64, generator=random).to(HALF) for _ in range(3))
    slot, found = 508, []
    for n in sizes:
        first = slot + 1 - min(n, 59)
        new = torch.arange(first, first + n)
        later = torch.arange(600) > new[:, None]  # what a token does not see
        mask = torch.zeros(1, 1, n, 600, dtype=HALF).masked_fill_(later, -torch.inf)
        end = torch.tensor([first + n])
        read = cuda_attention.attend(q[:, :, new], keys, values, mask, end, same_bits)
        found.append(read[:, :, slot - first])
    return found


def test_a_token_has_the_same_bits_however_many_are_read_with_it() -> None:
    alone, *others = a_row_of_passes(True, (1, 17, 59, 118) if ALL else (1, 59, 118))
    assert all(torch.equal(other, alone) for other in others)
    alone, other = a_row_of_passes(False, (1, 118))
    assert not torch.equal(other, alone), "the test could not fail"


def test_parts_of_the_same_bits_cover_long_images() -> None:
    random = torch.Generator().manual_seed(0)
    q, keys, values = (torch.randn(1, 1, 4200, 64, generator=random).to(HALF) for _ in range(3))
    mask = torch.zeros(1, 1, 1, 4200, dtype=HALF)
    read = partial(cuda_attention.attend, q[:, :, :1], keys, values, mask, same_bits=True)
    for end in (2049, 4200) if ALL else (4200,):
        wanted = F.scaled_dot_product_attention(q[:, :, :1], keys[:, :, :end], values[:, :, :end])
        assert (read(torch.tensor([end])) - wanted).abs().max() < 2e-3


def test_a_query_that_sees_nothing_reads_zeros() -> None:
    q = torch.ones(1, 1, 2, 64, dtype=HALF)
    mask = torch.tensor([[[[0.0] * 5, [-torch.inf] * 5]]], dtype=HALF)
    keys = torch.ones(1, 1, 5, 64, dtype=HALF)
    read = cuda_attention.attend(q, keys, keys, mask, torch.tensor([5]))
    assert read[0, 0].tolist() == [[1.0] * 64, [0.0] * 64]
