"""GSD, PathExplore, PathRelax against their formulas, with controls; their lossless limits."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import pytest
import torch
from browser import ALL
from torch import Tensor

from decoding.noise import HostNoise
from decoding.policies.static import StaticTree, rank_paths
from decoding.rules import GsdSettings, PathSettings
from decoding.rules.block_verification import first_chain
from decoding.rules.gsd import Gsd
from decoding.rules.path_explore import PathExplore
from decoding.rules.path_relax import PathRelax
from decoding.verifiers.base import Verdict, Verifier
from decoding.verifiers.host import Array, ImageTree
from decoding.verifiers.sampled import Sampled
from scripts.rules.rounds import (
    Distributions,
    decided,
    emitted,
    noise_of,
    one_round,
    outcome_counts,
)
from scripts.rules.statistics import p_value
from scripts.rules.whole_rounds import fast

VOCAB, LENGTH = 6, 2
IMAGES = 40_000 if ALL else 2_500
SMALL = Distributions(VOCAB, 2, spread=0.8)
P, Q = SMALL.log_p.exp(), SMALL.log_q.exp()
CHAIN, PATHS = StaticTree(rank_paths("root:1 0:1")), StaticTree(rank_paths("root:2 0:1 1:1"))
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
RULES: dict[str, Verifier] = {
    "gsd": Gsd(GSD),
    "gsd of wide clusters": Gsd(GsdSettings(reach=2, gap=0.3)),
    "gsd of reach 0": Gsd(GsdSettings(reach=0)),
    "gsd of gap 0": Gsd(GsdSettings(gap=0.0)),
    "sampled": Sampled(),
    "path_explore": PathExplore(),
    "path_relax": PathRelax(RELAXED),
    "path_relax of delta 0": PathRelax(PathSettings(delta=0.0)),
    "the first path": FirstPath(),
}


@pytest.fixture(scope="module", autouse=True)
def cached_distributions() -> Iterator[None]:
    with fast():
        yield


@cache
def judged(rule: str, policy: StaticTree = CHAIN) -> Verdict:
    noise = noise_of(range(IMAGES), LENGTH, VOCAB)
    return one_round(SMALL, policy, "sampled", RULES[rule], noise)[1]


def fit(verdict: Verdict, promised: Tensor) -> float:
    """The p-value of two tokens' joint distribution (vocab²,)."""
    counts = outcome_counts(decided(SMALL, verdict, LENGTH), VOCAB)
    return p_value(counts, promised)


def below(row: int, token: int) -> int:
    return row * VOCAB + 1 + token


@cache
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
        taken = Q[row] * torch.tensor([min(1.0, rate(row, x, None)) for x in range(VOCAB)])
        return taken, (1 - taken.sum()) * rest(row)

    taken, left = step(0)
    lower = [sum(step(below(0, token))) for token in range(VOCAB)]
    plain = P[below(0, 0) : below(0, VOCAB)]
    return (taken[:, None] * torch.stack(lower) + left[:, None] * plain).flatten()


@cache
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
    promised = chain_promise(clustered)
    assert fit(judged("gsd"), promised) > 1e-4
    assert fit(judged("gsd"), SMALL.joint(LENGTH)) < 1e-8  # it is no lossless rule
    assert fit(judged("gsd of wide clusters"), promised) < 1e-8


def test_the_longest_path_comes_up_as_enumerated() -> None:
    verdict = judged("path_explore", PATHS)
    assert fit(verdict, paths_promise(single)) > 1e-4
    assert fit(verdict, SMALL.joint(LENGTH)) < 1e-8  # it is no lossless rule
    assert torch.bincount(verdict.accepted, minlength=3).amin() > IMAGES // 50
    assert fit(judged("the first path", PATHS), paths_promise(single)) < 1e-8


def test_siblings_are_judged_by_what_they_were_drawn_from() -> None:
    """The second counts if it is accepted. With q = p it comes up as if drawn with replacement."""
    laws, noise = Distributions(VOCAB, 2, spread=2.0), noise_of(range(IMAGES), LENGTH, VOCAB)
    laws.log_q, policy = laws.log_p, StaticTree(rank_paths("root:2 1:1"))
    right, wrong = (
        outcome_counts(one_round(laws, policy, "sampled", rule, noise)[1].emitted[:, :1], VOCAB)
        for rule in (PathExplore(), FirstDraws())
    )
    assert p_value(right, laws.log_p[0].exp()) > 1e-4 > 1e-8 > p_value(wrong, laws.log_p[0].exp())


def test_relaxed_paths_come_up_as_enumerated() -> None:
    assert fit(judged("path_relax", PATHS), paths_promise(crossed)) > 1e-4
    assert fit(judged("path_relax", PATHS), paths_promise(single)) < 1e-8


@pytest.mark.parametrize("rule", ["gsd of reach 0", "path_explore", "path_relax"])
def test_in_a_chain_the_limits_are_lossless(rule) -> None:
    assert fit(judged(rule), SMALL.joint(LENGTH)) > 1e-4


@pytest.mark.parametrize("policy", [CHAIN, PATHS], ids=["chain", "paths"])
@pytest.mark.parametrize("rule", ["gsd of reach 0", "gsd of gap 0"])
def test_clusters_of_one_code_are_the_lossless_rule(rule, policy) -> None:
    assert torch.equal(emitted(judged(rule, policy)), emitted(judged("sampled", policy)))


def test_delta_0_is_path_explore() -> None:
    relaxed, plain = judged("path_relax of delta 0", PATHS), judged("path_explore", PATHS)
    assert torch.equal(emitted(relaxed), emitted(plain))
