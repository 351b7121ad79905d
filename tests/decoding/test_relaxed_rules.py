"""GSD, PathExplore and PathRelax against their formulas, over all outcomes, with wrong rules."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from decoding.noise import HostNoise
from decoding.policies.static import StaticTree, rank_paths
from decoding.rules import GsdSettings, PathSettings
from decoding.rules.block_verification import first_chain
from decoding.rules.gsd import Gsd
from decoding.rules.path_explore import PathExplore
from decoding.rules.path_relax import PathRelax
from decoding.verifiers.host import Array, HostRule, ImageTree
from scripts.rules.enumeration import Case, enumerated
from scripts.rules.rounds import Distributions

VOCAB = 4
SMALL = Distributions(VOCAB, 2, spread=0.8)
P, Q = SMALL.log_p.exp(), SMALL.log_q.exp()
TREES = {"chain": "root:1 0:1", "paths": "root:2 0:1 1:1", "siblings": "root:2 1:1"}
GSD, RELAXED = GsdSettings(reach=1, gap=0.3), PathSettings(delta=0.4)


class FirstPath(PathExplore):
    """A wrong rule: the first path counts, even if it is the shorter one."""

    def judge(self, tree: ImageTree, noise: HostNoise) -> tuple:
        return super().judge(first_chain(tree), noise)


class WithoutSiblings(ImageTree):
    def q(self, node: int, drawn: Sequence[int] = ()) -> Array:
        return super().q(node)


class FirstDraws(PathExplore):
    """A wrong rule: every sibling is judged as if it had been drawn first."""

    def judge(self, tree: ImageTree, noise: HostNoise) -> tuple:
        return super().judge(WithoutSiblings(**vars(tree)), noise)


Rate = Callable[[int, int, int | None], float]  # row, draft, the other path's draft -> p / q


def two_tokens(rule: HostRule, tree: str, laws: Distributions = SMALL) -> Array:
    """The joint distribution (vocab, vocab) of the first tokens."""
    case = Case(laws, StaticTree(rank_paths(TREES[tree])), "sampled")
    return enumerated(rule, case).joint.sum(2)


def apart(found: Array, promised: Tensor) -> float:
    """Total variation of two joint distributions."""
    return float(np.abs(found.ravel() - promised.numpy().ravel()).sum() / 2)


def below(row: int, token: int) -> int:
    return row * VOCAB + 1 + token


def rest(row: int) -> Tensor:
    """What is left of p after a refusal."""
    left = (P[row] - Q[row]).clamp(min=0)
    return left / left.sum()


def clustered(row: int, draft: int, other: int | None = None) -> float:
    """GSD's ratio, by sorting: a likelier neighbour less; the least likely tokens have none."""
    order = sorted(range(VOCAB), key=lambda token: -float(P[row, token]))
    place = order.index(draft)
    alone = place + GSD.reach >= VOCAB
    near = [draft] if alone else order[max(0, place - GSD.reach + 1) : place + GSD.reach + 1]
    cluster = [t for t in near if abs(float(P[row, t] - P[row, draft])) < GSD.gap]
    return float(P[row, cluster].sum() / Q[row, cluster].sum())


def single(row: int, draft: int, other: int | None = None) -> float:
    return float(P[row, draft] / Q[row, draft])


def crossed(row: int, draft: int, other: int) -> float:
    return float((P[row, draft] + RELAXED.delta * P[row, other]) / Q[row, draft])


def chain_promise(rate: Rate) -> Tensor:
    """The joint distribution of two tokens after a chain of two drafts."""

    def step(row: int) -> tuple[Tensor, Tensor]:
        accepted = [min(1.0, rate(row, x, None)) for x in range(VOCAB)]
        taken = Q[row] * torch.tensor(accepted, dtype=torch.float64)
        return taken, (1 - taken.sum()) * rest(row)

    taken, left = step(0)
    lower = [sum(step(below(0, token))) for token in range(VOCAB)]
    plain = P[below(0, 0) : below(0, VOCAB)]
    return (taken[:, None] * torch.stack(lower) + left[:, None] * plain).flatten()


def paths_promise(rate: Rate) -> Tensor:
    """The joint distribution of two tokens after two chains of two drafts, by enumeration."""
    joint = torch.zeros(VOCAB, VOCAB, dtype=torch.float64)
    for first in itertools.permutations(range(VOCAB), 2):
        drawn = float(Q[0, first[0]] * Q[0, first[1]] / (1 - Q[0, first[0]]))
        for second in itertools.product(range(VOCAB), repeat=2):
            rows = [below(0, token) for token in first]
            chance = drawn * float(Q[rows[0], second[0]] * Q[rows[1], second[1]])
            left = 1 - float(Q[0, first[0]])  # the second sibling is drawn from what is left
            rates = [rate(0, *first), rate(0, *first[::-1]) * left]
            rates += [rate(rows[0], *second), rate(rows[1], *second[::-1])]
            accepts = [min(1.0, r) for r in rates]
            for hits in itertools.product((True, False), repeat=4):
                weight = chance
                for hit, accept in zip(hits, accepts, strict=True):
                    weight *= accept if hit else 1 - accept
                if not weight:  # a draft that p likes better than q is always accepted
                    continue
                lengths = [hits[i] * (1 + hits[2 + i]) for i in (0, 1)]
                best = 0 if lengths[0] >= lengths[1] else 1
                if lengths[best] == 0:
                    joint += weight * rest(0)[:, None] * P[below(0, 0) : below(0, VOCAB)]
                elif lengths[best] == 1:
                    joint[first[best]] += weight * rest(rows[best])
                else:
                    joint[first[best], second[best]] += weight
    return joint.flatten()


def test_clusters_come_up_as_their_formula_says() -> None:
    found, promised = two_tokens(Gsd(GSD), "chain"), chain_promise(clustered)
    assert apart(found, promised) < 1e-12
    assert apart(found, SMALL.joint(2)) > 1e-3, "it is no lossless rule"
    assert apart(two_tokens(Gsd(GsdSettings(reach=2, gap=0.3)), "chain"), promised) > 1e-3


def test_the_longest_path_comes_up_as_enumerated() -> None:
    found, promised = two_tokens(PathExplore(), "paths"), paths_promise(single)
    assert apart(found, promised) < 1e-12
    assert apart(found, SMALL.joint(2)) > 1e-3, "it is no lossless rule"
    assert apart(two_tokens(FirstPath(), "paths"), promised) > 1e-3


def test_siblings_are_judged_by_what_they_were_drawn_from() -> None:
    """The second counts if it is accepted. With q = p it comes up as if drawn with replacement."""
    laws = Distributions(VOCAB, 2, spread=2.0)
    laws.log_q = laws.log_p
    right, wrong = (two_tokens(rule, "siblings", laws) for rule in (PathExplore(), FirstDraws()))
    assert apart(right.sum(1), laws.joint(1)) < 1e-12
    assert apart(wrong.sum(1), laws.joint(1)) > 1e-3


def test_relaxed_paths_come_up_as_enumerated() -> None:
    found = two_tokens(PathRelax(RELAXED), "paths")
    assert apart(found, paths_promise(crossed)) < 1e-12
    assert apart(found, paths_promise(single)) > 1e-3


def test_delta_0_is_path_explore() -> None:
    rules = PathRelax(PathSettings(delta=0.0)), PathExplore()
    relaxed, plain = (two_tokens(rule, "paths") for rule in rules)
    assert np.array_equal(relaxed, plain)
