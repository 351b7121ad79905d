"""From logits to the codes that are best under the noise, by two kernels of Triton.

As operations of torch these are ten kernels around two searches through a vocabulary. Here a
program has a whole row, and finds the cuts of top-k and top-p by bisection: floats are in the order
of integers, whose 32 bits it decides one by one. `decoding.sampling` has the same functions.
"""

import logging
from functools import cache, partial

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.cuda import judging
from models.cuda.attention import early, wait_for_inputs
from models.transformer import Transformer
from support.kernels import NO_KERNELS, Kernels
from support.output import first_line

log = logging.getLogger(__name__)

WIDEST = 2**15  # codes, which 32 warps hold in their registers


def log_p_of(logits: Tensor, cfg: float, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Return log p (images, n, vocab) of logits (images x guidance, n, vocab), in fp32."""
    (rows, n, vocab), guided = logits.shape, cfg != 1
    images = rows // (1 + guided)
    out = logits.new_empty(images, n, vocab, dtype=torch.float32)
    _log_p[images, n](
        logits, out, *logits.stride()[:2], vocab, float(cfg), float(temperature), top_k,
        float(top_p), GUIDED=guided, CUT_K=0 < top_k < vocab, CUT_P=top_p < 1, **_row(vocab),
        enable_fp_fusion=False, **early(logits.device),
    )  # fmt: skip
    return out


def best(log_p: Tensor, noise: Tensor | None, count: int) -> tuple[Tensor, Tensor]:
    """Return the tokens (images, ..., count) of the greatest log p plus noise, and these values.

    Of equal values that of the lowest code comes first. noise: broadcastable; as wide, or zeros.
    """
    vocab = log_p.shape[-1]
    count = min(count, vocab)
    tokens = log_p.new_empty(*log_p.shape[:-1], count, dtype=torch.long)
    values = log_p.new_empty(tokens.shape)
    noise = None if noise is None or noise.shape[-1] == 1 else noise.expand_as(log_p)
    added = log_p if noise is None else noise
    rows, added = (x if x.ndim > 3 else x[:, :, None] for x in (log_p, added))
    _best[rows.shape[:3]](
        rows, added, tokens, values, *rows.stride()[:3], *added.stride()[:3], vocab, count,
        NOISY=noise is not None, **_row(vocab), **early(log_p.device),
    )  # fmt: skip
    return tokens, values


def build(target: Transformer) -> Kernels:
    """Run both once, and return them; raises what Triton does where it cannot compile a kernel.

    `judging` returns the kernels that judge drafts. They take as long to compile as all others
    together, so only rules that need them have them built.
    """
    logits = target.score(target.norm.weight.new_zeros(2, 1, target.spec.hidden))
    if logits.shape[-1] > WIDEST:
        return NO_KERNELS
    log_p = log_p_of(logits, 3.0, 1.0, 1, 0.5)
    best(log_p, log_p, 1)
    return {"log_p_of": log_p_of, "best": best, "judging": cache(partial(_judging, log_p))}


def _judging(log_p: Tensor) -> Kernels:
    """Return the kernels that judge drafts, run once; none where they cannot be compiled."""
    try:
        with torch.cuda.device_of(log_p):  # not whichever is the thread's current one
            return judging.build(log_p)
    except Exception as error:  # whatever a compiler says: the host judges then
        log.warning("Drafts are judged on the host, which is slower: %s", first_line(error))
        return NO_KERNELS


def _row(vocab: int) -> dict[str, int]:
    """Return a program's size."""
    width = triton.next_power_of_2(vocab)
    return {"WIDTH": width, "num_warps": min(max(width // 1024, 4), 32)}


@triton.jit
def _least(keys, weights, bound):
    """Return the greatest integer such that the keys from it on have so much weight."""
    least = tl.full([], -(2**31), tl.int32)
    for step in range(32):
        more = least ^ (tl.full([], 1, tl.int32) << (31 - step))
        enough = tl.sum(tl.where(keys >= more, weights, 0.0), 0) >= bound
        least = tl.where(enough, more, least)
    return least


@triton.jit(do_not_specialize=["top_k"])
def _log_p(
    logits, out, of_row, of_node, vocab, cfg, temperature, top_k, top_p, GUIDED: tl.constexpr,
    CUT_K: tl.constexpr, CUT_P: tl.constexpr, WIDTH: tl.constexpr, EARLY: tl.constexpr = False,
):  # fmt: skip
    """Guide a node's logits, cut the unlikely codes, and norm the rest."""
    wait_for_inputs(EARLY)
    image, node, code = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, WIDTH)
    inside = code < vocab
    at = logits + image * (2 if GUIDED else 1) * of_row + node * of_node + code
    x = tl.load(at, mask=inside, other=0.0).to(tl.float32)
    if GUIDED:
        free = tl.load(at + of_row, mask=inside, other=0.0).to(tl.float32)
        x = free + cfg * (x - free)
    x = tl.where(inside, tl.div_rn(x, temperature), float("-inf"))
    if CUT_K or CUT_P:
        # one zero and one NaN, which stays: it is the greatest
        x = tl.where(x == 0, 0.0, tl.where(x == x, x, float("nan")))
        bits = x.to(tl.int32, bitcast=True)
        key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
        if CUT_K:
            x = tl.where(key >= _least(key, inside.to(tl.float32), top_k), x, float("-inf"))
        if CUT_P:
            share = tl.exp(x - tl.max(x, 0))
            share = tl.div_rn(share, tl.sum(share, 0))
            least = _least(key, share, top_p)
            # of equal codes the first ones, until the mass before the next reaches p
            before = tl.sum(tl.where(key > least, share, 0.0), 0)
            equal = key == least
            before += share * (tl.cumsum(equal.to(tl.int32), 0) - 1)
            x = tl.where((key > least) | (equal & (before < top_p)), x, float("-inf"))
    x -= tl.max(x, 0)
    x -= tl.log(tl.sum(tl.exp(x), 0))
    row = image * tl.num_programs(1) + node
    tl.store(out + row * vocab + code, x, mask=inside)


@triton.jit(do_not_specialize=["count"])
def _best(
    log_p, noise, tokens, values, p_0, p_1, p_2, noise_0, noise_1, noise_2, vocab, count,
    NOISY: tl.constexpr, WIDTH: tl.constexpr, EARLY: tl.constexpr = False,
):  # fmt: skip
    """Take the greatest value of a row so many times."""
    wait_for_inputs(EARLY)
    i, j, k = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64), tl.program_id(2)
    code = tl.arange(0, WIDTH)
    left = code < vocab
    x = tl.load(log_p + i * p_0 + j * p_1 + k * p_2 + code, mask=left, other=float("-inf"))
    if NOISY:
        x += tl.load(noise + i * noise_0 + j * noise_1 + k * noise_2 + code, mask=left, other=0.0)
    # NaN, which the round reports, comes first
    x = tl.where(x == x, x, float("inf"))
    to = ((i * tl.num_programs(1) + j) * tl.num_programs(2) + k) * count
    for place in range(count):
        value = tl.max(tl.where(left, x, float("-inf")), 0)
        token = tl.min(tl.where(left & (x == value), code, vocab), 0)
        tl.store(tokens + to + place, token.to(tl.int64))
        tl.store(values + to + place, tl.where(value == float("inf"), float("nan"), value))
        left &= code != token
