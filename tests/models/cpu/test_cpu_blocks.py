"""Blocks of compiled kernels equal the blocks that torch runs."""

import os
import platform
import pwd
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from browser import thinned
from compilers import needs_compiler
from counted import CountedCache
from torch import Tensor

from decoding.cache import CacheShape
from models.base import Context, ImageRope, TransformerSpec
from models.cpu import blocks as compiled
from models.cpu import native
from models.cpu.linear import forget_packed, pack_weights
from models.transformer import Transformer, run_by_torch
from scripts.checkpoints.parts import randomised

pytestmark = needs_compiler
SPEC = TransformerSpec(40, 64, 96, layers=3, heads=4, kv_heads=4, max_positions=64)
SIZES = {
    "as they are": {},
    "shared keys": {"kv_heads": 2},
    "one key head": {"kv_heads": 1},
    "swin norm": {"swin_norm": True},
    "no norm of heads": {"qk_norm": False},
    "no first norm": {"first_norm": False},
    "by row and column": {"image_rope": ImageRope(3, 7)},
    "wide heads": {"hidden": 128, "heads": 2, "kv_heads": 2},
    "heads that no vector fits": {"hidden": 48},
}
NEAR = {torch.float64: 1e-11, torch.float32: 2e-4, torch.bfloat16: 0.3}


def model_of(spec: TransformerSpec, dtype: torch.dtype = torch.float64) -> Transformer:
    model = randomised(Transformer(spec, 10), 0).to(dtype).requires_grad_(False)
    pack_weights(model)
    return model


def test_heads_that_a_kernels_buffer_does_not_hold_stay_with_torch(monkeypatch) -> None:
    """With 64-byte vectors: 32 of them are 512 numbers in fp32."""
    monkeypatch.setattr(compiled, "lanes", lambda dtype: 16)
    spec = replace(SPEC, hidden=1024, intermediate=96, heads=4, kv_heads=4)
    assert compiled.can_compile(spec, torch.float32)
    assert not compiled.can_compile(replace(spec, heads=2, kv_heads=2), torch.float32)


def cache_of(model: Transformer, lengths: list[int]) -> CountedCache:
    """A cache of two rows per image with random keys and values; the second row begins later."""
    dtype = model.norm.weight.dtype
    cache = CountedCache(model.spec, CacheShape(len(lengths), 2, 600), dtype, torch.device("cpu"))
    cache.begin(torch.tensor([0, 3] * len(lengths)))
    cache.memory[0].normal_(generator=torch.Generator().manual_seed(1))
    cache.advance(lengths)
    return cache


def seen(images: int, n: int) -> tuple[Tensor, Tensor]:
    """Depths and visibility of a tree: every token sees itself, the first one and one more."""
    step = torch.arange(n)
    near = (step == step[:, None]) | (step == 0) | (step == step[:, None] // 2)
    visible = near & (step <= step[:, None])
    return (step // 2).expand(images, -1), visible.expand(images, -1, -1)


@torch.inference_mode()
def both(model: Transformer, cache: CountedCache, n: int, layers: tuple[int, ...] = ()) -> list:
    """Features of a pass as torch runs it and compiled, each with the cache that it leaves."""
    images = len(cache.lengths)
    ids = torch.randint(40, (2 * images, n), generator=torch.Generator().manual_seed(2))
    found, before = [], cache.memory[0].clone()
    for model.blocks.run in (run_by_torch, compiled.run_compiled):
        (forget_packed if model.blocks.run is run_by_torch else pack_weights)(model)
        cache.memory[0].copy_(before)
        found.append((model(ids, cache.open(*seen(images, n)), layers), cache.memory[0].clone()))
    return found


def check(model: Transformer, cache: CountedCache, n: int, layers: tuple[int, ...] = ()) -> None:
    (plain, kept), (found, written) = both(model, cache, n, layers)
    near = NEAR[plain.dtype]
    torch.testing.assert_close(found, plain, rtol=near, atol=near)
    torch.testing.assert_close(written, kept, rtol=near, atol=near)


@pytest.fixture
def passes(monkeypatch) -> list:
    ran: list[bool] = []
    for name, by_kernels in (("kernels_of", True), ("run_by_torch", False)):
        function = getattr(compiled, name)
        monkeypatch.setattr(
            compiled, name, lambda *a, f=function, k=by_kernels: ran.append(k) or f(*a)
        )
    return ran


@pytest.mark.parametrize("dtype", NEAR, ids=str)
@pytest.mark.parametrize("change", SIZES.values(), ids=SIZES)
def test_they_equal_the_blocks_of_torch(change, dtype, passes) -> None:
    model = model_of(replace(SPEC, **change), dtype)
    for n in (1, 5, 19):
        check(model, cache_of(model, [17]), n)
    fits = change != SIZES["heads that no vector fits"]
    assert passes == [fits] * 3


@pytest.fixture
def built_for(monkeypatch) -> Iterator[Callable[[str], None]]:
    """Return what lets kernels be built for processors of older instructions."""

    def forget() -> None:
        native.kernels.cache_clear()
        native.kernels_of.cache_clear()

    def build(capability: str) -> None:
        monkeypatch.setenv(native.CAPABILITY, capability)
        forget()

    yield build
    monkeypatch.undo()
    forget()


@pytest.mark.skipif(platform.machine() != "x86_64", reason="vectors have one width here")
@pytest.mark.parametrize(("capability", "width"), thinned([("avx2", 32), ("default", 16)]))
def test_so_do_kernels_for_older_processors(capability, width, built_for, passes) -> None:
    """Vectors of any width: a machine with AVX-512 would hide mistakes in the narrower ones."""
    built_for(capability)
    assert native.lanes(torch.float32) == width // 4
    for dtype in NEAR:
        for change in ("as they are", "shared keys", "swin norm", "by row and column"):
            model = model_of(replace(SPEC, **SIZES[change]), dtype)
            for n in (1, 5, 19):
                check(model, cache_of(model, [17]), n)
    assert all(passes)


def test_structures_that_differ_from_those_in_c_are_refused() -> None:
    class Pass(compiled.Pass):
        _fields_ = (("more", compiled._N),)

    native.check_size(compiled.Pass)
    with pytest.raises(RuntimeError, match="Pass: found .* both must have the same fields"):
        native.check_size(Pass)


@pytest.mark.parametrize(
    ("lengths", "n", "layers"), [([17, 30, 5], 1, ()), ([17, 30, 5], 6, ()), ([9], 4, (1, 3))]
)
def test_several_lengths_and_hidden_states_of_some_layers(lengths, n, layers, passes) -> None:
    model = model_of(SPEC)
    check(model, cache_of(model, lengths), n, layers)
    assert passes == [True]


@pytest.mark.parametrize("dtype", NEAR, ids=str)
@torch.inference_mode()
def test_tokens_have_the_same_bits_alone_and_in_a_chain(dtype, passes) -> None:
    """So plain decoding and drafts choose alike in every type, not only up to near-ties.

    bf16 hides most differences of its fp32 sums, so it takes thousands of numbers to see one.
    """
    spec = replace(SPEC, hidden=256, intermediate=512, layers=4)
    model, layers = model_of(spec, dtype), range(1, spec.layers + 1)
    model.blocks.run, generator = compiled.run_compiled, torch.Generator().manual_seed(2)
    for n in (3, 17):
        ids = torch.randint(40, (4, n), generator=generator)
        together = cache_of(model, [17, 17])
        before = together.memory[0].clone()
        states = model(ids, together.chain(n), layers)
        scores = model.score(states[..., : spec.hidden])
        for image in range(2):
            rows, alone = slice(2 * image, 2 * image + 2), cache_of(model, [17])
            alone.memory[0].copy_(before[:, rows])
            for step in range(n):
                # the features, then the states after every layer
                state = model(ids[rows, step : step + 1], alone.chain(1), layers)
                assert torch.equal(state[:, 0], states[rows, step])
                score = model.score(state[..., : spec.hidden])
                assert torch.equal(score[:, 0], scores[rows, step])
                alone.advance([1])
            assert torch.equal(alone.memory[0], together.memory[0][:, rows])
    assert all(passes)


@pytest.mark.parametrize("dtype", thinned(NEAR), ids=str)
def test_several_threads_change_no_bit(dtype, passes) -> None:
    """They share products and the heads, and tokens where there are more threads than heads."""
    spec = replace(SPEC, hidden=256, intermediate=512, layers=1)
    for n in (1, 5, 19):
        found, threads = [], torch.get_num_threads()
        try:
            for torch_threads in (1, 3, 16):
                torch.set_num_threads(torch_threads)
                model = model_of(spec, dtype)
                found.append(both(model, cache_of(model, [17]), n)[1])
        finally:
            torch.set_num_threads(threads)
        for features, cache in found[1:]:
            assert torch.equal(features, found[0][0]) and torch.equal(cache, found[0][1])
    assert all(passes)


def test_great_numbers_stay_finite(passes) -> None:
    model = model_of(SPEC, torch.float32)
    for block in model.blocks.blocks:
        block.mlp.gate_up.weight.mul_(1e4)
        block.attention.qk_norm.weight.mul_(1e2)
    (plain, _), (found, _) = both(model, cache_of(model, [17]), 5)
    assert found.isfinite().all() and all(passes)
    torch.testing.assert_close(found, plain, rtol=1e-3, atol=1e-3)


def test_torch_runs_what_is_long_or_trained_or_has_no_cache(passes) -> None:
    model = model_of(SPEC)
    model.blocks.run, cache = compiled.run_compiled, cache_of(model, [9])
    ids = torch.zeros(2, 513, dtype=torch.long)
    with torch.inference_mode():
        model(ids, cache.open(*seen(1, 513)))
        model(ids[:, :4], Context(torch.arange(4).expand(2, -1)))
        with torch.autocast("cpu", torch.bfloat16):
            model(ids[:, :4], cache.open(*seen(1, 4)))
    model(ids[:, :4], cache_of(model, [9]).open(*seen(1, 4)))  # gradients may be wanted
    assert passes == [False] * 4


def test_the_library_is_compiled_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "sources").mkdir()
    monkeypatch.setattr(native, "SOURCE", tmp_path / "sources" / "library.cpp")
    native.SOURCE.write_text("int small;")  # the kernels themselves take a minute
    calls, run = [], subprocess.run
    monkeypatch.setattr(native.subprocess, "run", lambda c, **k: calls.append(c[1:]) or run(c, **k))
    for _ in range(2):
        native.kernels.__wrapped__()
    assert [call[0] for call in calls].count("--version") == 2 and len(calls) == 4
    assert [path.suffix for path in (tmp_path / "adt-tree").iterdir()] == [".so"]


def test_a_user_without_a_home_has_a_temporary_folder(tmp_path, monkeypatch) -> None:
    def unknown(_):
        raise KeyError

    user = os.getuid()
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    compiler = native.Compiler(["c++"], "1", ())
    for _ in range(2):  # also once it is there
        assert compiler.library.parent == tmp_path / f"adt-tree-{user}"
    monkeypatch.setattr(os, "getuid", lambda: user + 1)
    with pytest.raises(native.NoKernels, match="another user's"):
        _ = compiler.library
