"""Which children of draft trees are accepted, at all nodes at once, by kernels of Triton.

A rule that walks down a tree needs at a node only its distribution, its children and the numbers of
its position. So a program has a node, and the accepted children are followed afterwards.
`decoding.verifiers.lantern` has the rules; with k = 0 the first is `rejection`, or `sampled` where
children were drawn. What is left of p is in global memory, where a program finds and removes single
codes; sums and what they are compared with are in fp64, as on the host.
"""

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from configs.rules import LanternSettings
from models.cuda.attention import changing, early, wait_for_inputs
from support.kernels import Kernels

Columns = tuple[Tensor, Tensor, Tensor, Tensor]


def judge(
    log_p: Tensor,
    log_q: Tensor | None,
    tree: Columns,
    numbers: tuple[Tensor, Tensor],
    borrowing: tuple[LanternSettings, Tensor] | None,
    greedy: bool,
) -> tuple[Tensor, Tensor]:
    """Judge the children of every node.

    Args:
        log_p: (images, 1 + nodes, vocab) the target's, after every node.
        log_q: the drafter's, which children were drawn from; None: they were not.
        tree: tokens, parents, depths and scores (images, 1 + nodes), as in a `DraftTree`.
        numbers: (images, 2) keys of the streams `accept` and `residual`, and (images, 1) the
            positions of the roots' children.
        borrowing: settings of `lantern`, and the codes nearest to every code; None: k is 0.
        greedy: temperature 0; then every child is judged, with the whole bound.

    Returns:
        (images, 1 + nodes) whether a node is accepted if its parent is, and the tokens after
        nodes: of the accepted child, or if there is none, the bonus token.
    """
    (settings, nearest), (keys, decided) = borrowing or (LanternSettings(), None), numbers
    outputs, sizes, options = _launch(log_p, tree, settings, nearest)
    _judge[log_p.shape[:2]](
        log_p.contiguous(), log_p if log_q is None else log_q.contiguous(),
        *(column.contiguous() for column in tree), keys, decided, decided.stride(0), *outputs,
        *sizes, GREEDY=greedy, DRAWN=log_q is not None,
        REFERENCE=settings.residual == "reference", **options,
    )  # fmt: skip
    return outputs[2], outputs[3]


def substitute(
    log_p: Tensor, chosen: Tensor, tree: Columns, borrowing: tuple[LanternSettings, Tensor]
) -> tuple[Tensor, Tensor]:
    """Return what `judge` does, by the rule `lantern_coupled`.

    chosen: (images, 1 + nodes) by the target after every node.
    """
    outputs, sizes, options = _launch(log_p, tree, *borrowing)
    tokens, parents, _, scores = (column.contiguous() for column in tree)
    _substitute[log_p.shape[:2]](
        log_p.contiguous(), chosen, tokens, parents, scores, *outputs, *sizes, **options
    )
    return outputs[2], outputs[3]


def _launch(
    log_p: Tensor, tree: Columns, settings: LanternSettings, nearest: Tensor | None
) -> tuple[tuple[Tensor, ...], tuple[float, ...], dict[str, Any]]:
    """Return memory and sizes that both kernels are given."""
    images, nodes, vocab = log_p.shape
    empty = partial(torch.empty, device=log_p.device)
    left = empty(images, nodes, vocab, dtype=torch.float32)
    right, choices = empty(images, nodes, dtype=torch.bool), empty(images, nodes, dtype=torch.long)
    k, columns = (0, 0) if nearest is None else (settings.k, nearest.shape[1])
    width = triton.next_power_of_2(vocab)
    options = {
        "SHARED": settings.budget != "per_candidate",
        "CODES": max(triton.next_power_of_2(columns), 16),
        "NODES": max(triton.next_power_of_2(nodes), 16),
        "WIDTH": width,
        "num_warps": min(max(width // 1024, 4), 32),
        **early(log_p.device),
    }
    memory = tree[0] if nearest is None else nearest.contiguous(), left, right, choices
    return memory, (vocab, k, columns, float(settings.delta)), options


def build(log_p: Tensor) -> Kernels:
    """Run both once, and return them; raises what Triton does where it cannot compile them."""
    zeros = torch.zeros(log_p.shape[:2], dtype=torch.long, device=log_p.device)
    tree = zeros, zeros, zeros, log_p[..., 0]
    nearest = zeros.expand(-1, 1000).int()
    exact, published = LanternSettings(k=999), LanternSettings(k=999, residual="reference")
    for log_q, settings, greedy in (
        (None, exact, True), (None, exact, False), (log_p, published, False)
    ):  # fmt: skip
        judge(log_p, log_q, tree, (zeros.repeat(1, 2), zeros), (settings, nearest), greedy)
    substitute(log_p, zeros, tree, (exact, nearest))
    return {"judge": judge, "substitute": substitute}


@triton.jit
def _number(key, position, column):
    """Return the number of (0, 1) that `decoding.noise.uniform` has there."""
    x = ((position << 32) + column).to(tl.uint64) * 0x9E3779B97F4A7C15 + key.to(tl.uint64)
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB
    x = (x ^ (x >> 31)) >> 12
    return (x.to(tl.float64) + 0.5) * 2.220446049250313e-16


@triton.jit
def _children(parents, scores, place, nodes, node):
    """Return which nodes are children of one, and which of these are present."""
    own = tl.load(parents + place, mask=place < nodes, other=-1) == node
    score = tl.load(scores + place, mask=own, other=float("-inf"))
    return own, own & (place > 0) & (score > float("-inf"))


@triton.jit
def _weigh(log_p, p, code, inside):
    """Write what a distribution is proportional to; return its sum and the likeliest token."""
    x = tl.load(log_p + code, mask=inside, other=float("-inf")).to(tl.float32)
    x = tl.where(x == x, x, float("inf"))  # NaN, which the round reports
    weights = tl.exp(x - tl.max(x, 0))
    tl.store(p + code, weights, mask=inside)
    tl.debug_barrier()
    best = tl.min(tl.where(inside & (x == tl.max(x, 0)), code, 2**30), 0)
    return tl.sum(weights.to(tl.float64), 0), best


@triton.jit
def _claimed(p, codes, near, total, bound):
    """Return which of the nearest codes fit into the bound, and their mass."""
    mass = tl.load(p + codes, mask=near, other=0.0).to(tl.float64) * (1 / total)
    fits = near & (tl.cumsum(mass, 0) <= bound)
    return fits, tl.sum(tl.where(fits, mass, 0.0), 0)


@triton.jit
def _open_q(logs, code, token):
    """Return the drafter's distribution, and what it gives to a token; zeros if nothing is left."""
    top = tl.max(logs, 0)
    weights = tl.exp(logs - tl.where(top > float("-inf"), top, 0.0))
    total = tl.maximum(tl.sum(weights.to(tl.float64), 0), 1e-30)
    share = tl.sum(tl.where(code == token, weights, 0.0), 0).to(tl.float64) / total
    return weights * (1 / total).to(tl.float32), share


@triton.jit
def _refuse(
    p, q, total, code, inside, token, codes, near, DRAWN: tl.constexpr, REFERENCE: tl.constexpr
):
    """Leave of p what a refused token and the codes that are gone with it leave; return its sum.

    near: those that it claimed; and as many as published code takes out if it claimed any.
    """
    gone, more = near
    if REFERENCE:
        gone = tl.where(tl.sum(gone.to(tl.int32), 0) > 0, more, gone)
    if DRAWN:
        kept = tl.load(p + codes, mask=gone, other=0.0) * (1 / total).to(tl.float32)
        rest = tl.load(p + code, mask=inside, other=0.0) * (1 / total).to(tl.float32) - q
    tl.debug_barrier()
    if DRAWN:
        tl.store(p + code, tl.maximum(rest, 0.0), mask=inside)
        if REFERENCE:  # they leave q
            tl.debug_barrier()
            tl.store(p + codes, kept, mask=gone)
    else:
        tl.store(p + token, 0.0)
        tl.store(p + codes, 0.0, mask=gone)
    tl.debug_barrier()
    left = tl.sum(tl.load(p + code, mask=inside, other=0.0).to(tl.float64), 0)
    if REFERENCE and left == 0:  # published code goes on with the uniform distribution
        tl.store(p + code, inside.to(tl.float32), mask=inside)
        tl.debug_barrier()
        left = tl.sum(inside.to(tl.float64), 0)
    return left


@triton.jit
def _draw(p, code, inside, number):
    """Return the token that a number of (0, 1) stands for; one without weight never."""
    weights = tl.load(p + code, mask=inside, other=0.0).to(tl.float64)
    running = tl.cumsum(weights, 0)
    some = weights > 0
    behind = some & (running > number * tl.sum(weights, 0))
    last = tl.max(tl.where(some, code, 0), 0)
    return tl.min(tl.where(behind, code, last), 0)


@triton.jit(**changing("decided_image", "k", "columns", addresses=("decided",)))
def _judge(
    log_p, log_q, tokens, parents, depths, scores, keys, decided, decided_image, nearest, left,
    right, choices, vocab, k, columns, delta, GREEDY: tl.constexpr, DRAWN: tl.constexpr,
    SHARED: tl.constexpr, REFERENCE: tl.constexpr, CODES: tl.constexpr, NODES: tl.constexpr,
    WIDTH: tl.constexpr, EARLY: tl.constexpr = False,
):  # fmt: skip
    """Judge a node's children in their order, and choose the token after it."""
    wait_for_inputs(EARLY)
    image, node, nodes = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    code, place, rank = tl.arange(0, WIDTH), tl.arange(0, NODES), tl.arange(0, CODES)
    inside, first = code < vocab, image * nodes
    row = (first + node) * vocab
    logs = tl.load(log_q + row + code, mask=inside, other=float("-inf")).to(tl.float32)
    p = left + row
    total, best = _weigh(log_p + row, p, code, inside)
    at = tl.load(decided + image * decided_image) + tl.load(depths + first + node)
    own, drafts = _children(parents + first, scores + first, place, nodes, node)
    accepted, moved, undecided = place * 0, total * 0, total * 0 + 1
    child = tl.min(tl.where(drafts, place, NODES), 0)
    while child < NODES:
        token = tl.load(tokens + first + child)
        chance = tl.load(p + token).to(tl.float64) / total
        codes = tl.load(nearest + token * columns + rank, mask=rank < columns, other=0)
        bound = tl.where(delta > 1, (delta - 1) * chance, (delta - moved) / undecided)
        fits, mass = _claimed(p, codes, rank < k, total, bound)
        relaxed = chance + mass
        if GREEDY:
            likelier = (relaxed > 1 / total) | ((relaxed == 1 / total) & (token < best))
            stays = tl.where(likelier | (token == best), 1, 0)
        else:
            number, q = _number(tl.load(keys + 2 * image), at, token), logs
            if DRAWN:
                q, share = _open_q(logs, code, token)
                number *= share
                logs = tl.where(code == token, float("-inf"), logs)
            stays = tl.where(number < relaxed, 1, 0)
            if stays == 0:
                near = fits, rank < columns
                total = _refuse(p, q, total, code, inside, token, codes, near, DRAWN, REFERENCE)
                stays = tl.where(total == 0, 1, 0)  # only rounding has refused it
            if SHARED:
                moved += undecided * mass
                undecided = tl.maximum(undecided * (1 - relaxed), 1e-300)
        accepted = tl.where(place == child, stays, accepted)
        child = tl.min(tl.where(drafts & (place > child), place, NODES), 0)
        if not GREEDY:
            child = tl.where(stays > 0, NODES, child)

    taken = tl.max(accepted * place, 0)
    choice = tl.load(tokens + first + taken)
    if GREEDY:
        choice = best.to(tl.int64)
    elif taken == 0:
        number = _number(tl.load(keys + 2 * image + 1), at, 0)
        choice = _draw(p, code, inside, number).to(tl.int64)
    tl.store(right + first + place, accepted > 0, mask=own)
    tl.store(choices + first + node, choice)


@triton.jit(**changing("k", "columns"))
def _substitute(
    log_p, chosen, tokens, parents, scores, nearest, left, right, choices, vocab, k, columns, delta,
    SHARED: tl.constexpr, CODES: tl.constexpr, NODES: tl.constexpr, WIDTH: tl.constexpr,
    EARLY: tl.constexpr = False,
):  # fmt: skip
    """Accept the child that carries the choice after a node, or else one that claims it."""
    wait_for_inputs(EARLY)
    image, node, nodes = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    code, place, rank = tl.arange(0, WIDTH), tl.arange(0, NODES), tl.arange(0, CODES)
    inside, first = code < vocab, image * nodes
    row = (first + node) * vocab
    p = left + row
    total, _ = _weigh(log_p + row, p, code, inside)
    own, drafts = _children(parents + first, scores + first, place, nodes, node)
    carried = tl.load(tokens + first + place, mask=drafts, other=0)
    chances = tl.load(p + carried, mask=drafts, other=0.0).to(tl.float64) / total
    tl.debug_barrier()
    tl.store(p + carried, 0.0, mask=drafts)  # no sibling is a neighbour
    tl.debug_barrier()
    choice, moved = tl.load(chosen + first + node), total * 0
    found = tl.min(tl.where(drafts & (carried == choice), place, NODES), 0)
    child = tl.where(found < NODES, NODES, tl.min(tl.where(drafts, place, NODES), 0))
    while child < NODES:
        token = tl.load(tokens + first + child)
        chance = tl.sum(tl.where(place == child, chances, 0.0), 0)
        codes = tl.load(nearest + token * columns + rank, mask=rank < columns, other=0)
        bound = tl.where(delta > 1, (delta - 1) * chance, delta - moved)
        fits, mass = _claimed(p, codes, rank < k, total, bound)
        hits = tl.sum(tl.where(fits & (codes == choice), 1, 0), 0)
        found = tl.where(hits > 0, child, NODES)
        tl.debug_barrier()
        tl.store(p + codes, 0.0, mask=fits)  # neighbourhoods do not overlap
        tl.debug_barrier()
        moved += mass if SHARED else 0.0
        child = tl.min(tl.where(drafts & (place > child), place, NODES), 0)
        child = tl.where(hits > 0, NODES, child)
    accepted = tl.load(tokens + first + found, mask=found < NODES, other=0)
    tl.store(right + first + place, place == found, mask=own)
    tl.store(choices + first + node, tl.where(found < NODES, accepted, choice))
