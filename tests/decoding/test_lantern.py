"""Relaxed acceptance: the distribution with one candidate and with several; delta 0; T = 0."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from browser import ALL, only_in_all
from fakes import DictatedStreams, emitted, random_tree, tree_of
from torch import Tensor

from configs.schema import LanternSettings
from decoding.noise import HostNoise
from decoding.noise_table import NodeNoise
from decoding.policies.dynamic import DynamicTree
from decoding.policies.static import StaticTree, rank_paths
from decoding.round import TreeShape
from decoding.tree import DraftTree
from decoding.verifiers.base import Verifier
from decoding.verifiers.exact import Exact
from decoding.verifiers.host import Choice, ImageTree, trees_on_host
from decoding.verifiers.lantern import Lantern, LanternCoupled
from decoding.verifiers.nodewise import longest_path
from decoding.verifiers.rejection import Rejection
from scripts.rules.enumeration import Case, EnumeratedNoise, enumerated
from scripts.rules.rounds import Distributions, noise_of, one_round, outcome_counts

VOCAB, DELTA = 24, 0.1
# With few images the bound has to be wider, because sampling alone moves the distance more.
IMAGES, ABOVE = (20_000, 0.015) if ALL else (4_000, 0.03)
DISTRIBUTIONS = Distributions(VOCAB, 1)
P = DISTRIBUTIONS.log_p[0].exp()


class ByChoice(LanternCoupled):
    """Enumerates the target's choice after a node, which its noise makes."""

    def choose_child(self, tree: ImageTree, node: int, noise: EnumeratedNoise) -> Choice:
        certain = np.full(VOCAB, -np.inf)
        certain[noise.chance.choose(tree.p(node))] = 0
        return super().choose_child(tree, node, SimpleNamespace(target=lambda depth: certain))


ENUMERATED = {"lantern": Lantern, "lantern_coupled": ByChoice}


def nearest(codes: int = VOCAB) -> Tensor:
    """(codes, codes - 1) the other codes, nearest first, in a plane."""
    latents = torch.rand(codes, 2, generator=torch.Generator().manual_seed(0))
    return torch.cdist(latents, latents).argsort(dim=1)[:, 1:].int()


def siblings(children: int) -> StaticTree:
    return StaticTree(rank_paths(f"root:{children}"))


def first_token(name: str, settings: LanternSettings, children: int = 1) -> Tensor:
    """The first token's distribution (vocab,) after the likeliest drafts, over all outcomes."""
    case = Case(DISTRIBUTIONS, siblings(children), "topk")
    return torch.from_numpy(enumerated(ENUMERATED[name](settings, nearest()), case).joint.sum(1))


def distance(distribution: Tensor) -> float:
    """Total variation from the target's p."""
    return float((distribution - P).abs().sum() / 2)


def claimed(delta: float, k: int) -> tuple[int, Tensor]:
    """The drafter's first candidate and the codes that it claims, in plain Python."""
    p, x = P.tolist(), int(DISTRIBUTIONS.log_q[0].argmax())
    bound, mass, codes = delta if delta <= 1 else (delta - 1) * p[x], 0.0, []
    for code in nearest()[x, :k].tolist():
        mass += p[code]
        if mass > bound:
            break
        codes.append(code)
    return x, torch.tensor(codes, dtype=torch.long)


@pytest.mark.parametrize(
    ("delta", "k"), [(0.1, 23), (0.4, 3), (0.4, 23), (1.0, 5), (1.5, 23), (4.0, 23)]
)
@pytest.mark.parametrize("name", ENUMERATED)
def test_one_candidate_moves_just_the_mass_of_its_neighbours(name, delta, k) -> None:
    """For lambda = delta > 1 as for delta <= 1; codes that are not claimed keep their p."""
    x, codes = claimed(delta, k)
    expected = P.clone()
    expected[codes] = 0
    expected[x] += P[codes].sum()
    found = first_token(name, LanternSettings(k=k, delta=delta))
    assert len(codes) > 0
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    assert delta <= 1 or float(expected[x]) <= delta * float(P[x]) + 1e-12


@pytest.mark.parametrize("children", [1, 2, 4, 10])
@pytest.mark.parametrize("name", ENUMERATED)
def test_siblings_share_the_bound(name, children) -> None:
    settings = LanternSettings(k=23, delta=DELTA)
    assert 0.02 < distance(first_token(name, settings, children)) <= DELTA + 1e-13


@pytest.mark.parametrize("name", ENUMERATED)
def test_a_bound_for_each_candidate_adds_up(name) -> None:
    settings = LanternSettings(k=23, delta=DELTA, budget="per_candidate")
    assert distance(first_token(name, settings, 10)) > 1.5 * DELTA


@pytest.mark.parametrize("children", [*(pytest.param(n, marks=only_in_all) for n in (1, 2, 4)), 10])
@pytest.mark.parametrize("rule", [Lantern, LanternCoupled])
def test_so_do_coupled_siblings(rule, children, monkeypatch) -> None:
    """They are chosen by the target's noise: what holds for `lantern_coupled` was measured."""
    verifier = rule(LanternSettings(k=23, delta=DELTA), nearest())
    noise = noise_of(range(IMAGES), 1, VOCAB)
    rows = noise.table[:, 0].numpy()  # by seed; one after the other they take long
    monkeypatch.setattr(HostNoise, "target", lambda image, depth: rows[image.seed])
    verdict = one_round(DISTRIBUTIONS, siblings(children), "coupled", verifier, noise)[1]
    counts = outcome_counts(verdict.emitted[:, :1], VOCAB)
    assert distance(counts / IMAGES) <= DELTA + ABOVE  # sampling alone: 0.01, or 0.023


@pytest.mark.parametrize("proposal", ["topk", "coupled"])
@pytest.mark.parametrize("budget", ["shared", "per_candidate"])
@pytest.mark.parametrize(("relaxed", "lossless"), [(Lantern, Rejection), (LanternCoupled, Exact)])
def test_delta_0_is_the_lossless_rule(relaxed, lossless, budget, proposal) -> None:
    """Token for token; in cut distributions a neighbour may have no probability at all."""
    distributions = Distributions(4, 2, cut=True)
    noise = noise_of(range(2000 if ALL else 200), 3, 4)
    settings = LanternSettings(k=3, delta=0.0, budget=budget)
    tree = DynamicTree(TreeShape(2, 3, 5))
    found = one_round(distributions, tree, proposal, relaxed(settings, nearest(4)), noise)[1]
    expected = one_round(distributions, tree, proposal, lossless(), noise)[1]
    assert torch.equal(emitted(found), emitted(expected)) and expected.accepted.max() == 2


def published(p: list[float], children: list[int], uniform: dict[int, float], k: int) -> tuple:
    """The published rule at one node, in plain Python: the accepted child, None if all are refused,
    and what is left of p. Every child has the whole delta, and takes k + 1 codes along.
    """
    for x in children:
        mass, fitting = 0.0, 0
        for code in nearest()[x, :k].tolist():
            if mass + p[code] > DELTA:
                break
            mass, fitting = mass + p[code], fitting + 1
        if uniform[x] < p[x] + mass:
            return x, p
        gone = {x, *(nearest()[x, : k + 1].tolist() if fitting else ())}
        p = [0.0 if code in gone else share for code, share in enumerate(p)]
        p = [share / sum(p) for share in p]
    return None, p


def test_the_published_rule_in_plain_python() -> None:
    """Node by node, with the same random numbers: accepted drafts and the bonus token."""
    k, distributions = 5, Distributions(VOCAB, 2, spread=2.0)
    settings = LanternSettings(k=k, delta=DELTA, budget="per_candidate", residual="reference")
    verifier, noise = Lantern(settings, nearest()[:, : k + 1]), noise_of(range(300), 3, VOCAB)
    policy = DynamicTree(TreeShape(2, 4, 9))
    tree, verdict = one_round(distributions, policy, "topk", verifier, noise)
    images = NodeNoise(noise, tree.depths, torch.zeros(300, 1, dtype=torch.long)).images()
    log_p = distributions.log_p[distributions.rows(tree)]
    for image in range(300):
        node, decided = 0, []
        while True:
            at_node = [
                n for n in range(1, tree.nodes + 1)
                if tree.parents[image, n] == node and tree.present[image, n]
            ]  # fmt: skip
            children = {int(tree.tokens[image, n]): n for n in at_node}
            drawn = {x: images[image].accept(len(decided), x) for x in range(VOCAB)}
            hit, p = published(log_p[image, node].exp().tolist(), list(children), drawn, k)
            if hit is None:
                break
            node, decided = children[hit], [*decided, hit]
        number = images[image].residual(len(decided))
        bonus = next(code for code in range(VOCAB) if number < sum(p[: code + 1]))
        found = verdict.emitted[image, : int(verdict.accepted[image]) + 1].tolist()
        assert found == [*decided, bonus]
    assert set(verdict.accepted.tolist()) == {0, 1, 2}


def published_of_drawn(
    p: list, q: list, children: list[int], u: dict, k: int, factor: float
) -> tuple:
    """LANTERN++'s published rule at one node, in plain Python, as `published`."""
    for place, x in enumerate(children):
        mass, fitting = 0.0, 0
        for code in nearest()[x, :k].tolist():
            if mass + p[code] > (factor - 1) * p[x]:
                break
            mass, fitting = mass + p[code], fitting + 1
        open_q = [0.0 if code in children[:place] else share for code, share in enumerate(q)]
        open_q = [share / sum(open_q) for share in open_q]
        if u[x] < (p[x] + mass) / open_q[x]:
            return x, p
        gone = nearest()[x, : k + 1].tolist() if fitting else []
        open_q = [0.0 if code in gone else share for code, share in enumerate(open_q)]
        p = [max(a - b, 0.0) for a, b in zip(p, open_q, strict=True)]
        p = [share / sum(p) for share in p] if sum(p) else [1 / VOCAB] * VOCAB
    return None, p


def test_drawn_children_are_judged_by_the_published_rule() -> None:
    """Of trees of two levels, with the same random numbers: what is accepted, and what is left."""
    k, factor, laws = 5, 3.0, Distributions(VOCAB, 2, spread=2.0)
    settings = LanternSettings(k=k, delta=factor, residual="reference")
    verifier, noise = Lantern(settings, nearest()[:, : k + 1]), noise_of(range(200), 3, VOCAB)
    policy = StaticTree(rank_paths("root:3 0:2 1:2"))
    tree, _ = one_round(laws, policy, "sampled", verifier, noise)
    images = NodeNoise(noise, tree.depths, torch.zeros(200, 1, dtype=torch.long)).images()
    lengths = set()
    for one, numbers in zip(trees_on_host(tree, laws.log_p[laws.rows(tree)]), images, strict=True):
        path, rest = verifier.judge(one, numbers)
        node = 0
        while True:
            children = {one.tokens[n]: n for n in one.children[node]}
            drawn = {x: numbers.accept(one.depths[node], x) for x in range(VOCAB)}
            p, q = one.p(node).tolist(), one.q(node).tolist()
            hit, p = published_of_drawn(p, q, list(children), drawn, k, factor)
            if hit is None:
                break
            node = children[hit]
        assert path[-1] == node
        assert rest == pytest.approx(p, abs=1e-12)
        lengths.add(len(path))
    assert lengths == {1, 2, 3}


# the target's distribution after the root; elsewhere token 3 is certain
ROOT = [0.40, 0.35, 0.15, 0.10]
NEAR = torch.tensor([[2, 3, 1], [2, 3, 0], [3, 1, 0], [2, 1, 0]], dtype=torch.int32)


def greedy(verifier: Verifier, tree: DraftTree) -> list[int]:
    """What a verifier decides at temperature 0."""
    distribution = torch.tensor([ROOT] + [[0.01, 0.01, 0.01, 0.97]] * tree.nodes)
    noise = torch.zeros(1, tree.nodes + 1, 1)
    verdict = verifier(tree, distribution.log()[None], DictatedStreams(noise))
    return verdict.emitted[0, : int(verdict.accepted[0]) + 1].tolist()


@pytest.mark.parametrize(
    ("delta", "k", "token", "published", "coupled"),
    [
        (0.20, 3, 1, [1, 3], [0]),  # 0.35 + 0.15 > 0.40; the argmax is no neighbour
        (0.20, 3, 0, [0, 3], [0, 3]),
        (0.10, 3, 1, [0], [0]),  # the nearest code alone is too much
        (0.30, 2, 2, [0], [0]),  # 0.15 + 0.10 < 0.40, and token 1 does not fit
        (0.50, 3, 2, [2, 3], [0]),  # 0.15 + 0.10 + 0.35
        (1.00, 3, 2, [2, 3], [2, 3]),  # the argmax among the neighbours
        (2.00, 3, 1, [1, 3], [0]),  # lambda: at most 0.35 more, so 0.15 + 0.10
    ],
)
def test_temperature_0_by_hand(delta, k, token, published, coupled) -> None:
    settings = LanternSettings(k=k, delta=delta)
    tree = tree_of([0, token], [0, 0])
    assert greedy(Lantern(settings, NEAR), tree) == published
    assert greedy(LanternCoupled(settings, NEAR), tree) == coupled


@pytest.mark.parametrize(
    ("tokens", "parents", "dynamic", "static"),
    [
        ([1, 2, 0], [0, 0, 1], [2, 3], [1, 3]),  # token 1's child is refused; token 2 is a leaf
        ([1, 2, 0, 0], [0, 0, 2, 1], [2, 3], [1, 3]),  # the leaf of 2 comes first
        ([1, 2, 0, 0], [0, 0, 1, 2], [1, 3], [1, 3]),
        ([1, 2, 3, 3], [0, 0, 2, 1], [2, 3, 3], [2, 3, 3]),  # the longer ones, in their order
        ([1, 2, 3], [0, 0, 1], [1, 3, 3], [1, 3, 3]),  # the longest counts
        ([], [], [0], [0]),
    ],
)
def test_of_equally_long_paths_the_published_one_counts(tokens, parents, dynamic, static) -> None:
    """At temperature 0: in dynamic trees that to the first leaf, in static ones the first by rank.

    With delta 0.5 tokens 1 and 2 are both accepted after the root.
    """
    verifier = Lantern(LanternSettings(k=3, delta=0.5), NEAR)
    tree = tree_of([0, *tokens], [0, *parents])
    assert greedy(verifier, tree) == dynamic
    assert greedy(verifier, replace(tree, by_rank=True)) == static


class Told(Lantern):
    """A rule that is told which nodes are accepted if their parents are."""

    def __init__(self, right: Tensor):
        self.right = right.tolist()

    def _is_argmax(self, tree: ImageTree, node: int) -> bool:
        return self.right[node]


@pytest.mark.parametrize("by_rank", [True, False])
def test_all_trees_at_once_have_the_paths_of_every_tree(by_rank) -> None:
    generator = torch.Generator().manual_seed(0)
    tree = replace(random_tree(generator, 200, 9, 4, absent=0.2), by_rank=by_rank)
    log_p = torch.randn(200, 10, 4, generator=generator)
    right = (torch.rand(200, 10, generator=generator) < 0.7) & tree.present
    verdict = longest_path(tree, right, log_p.argmax(-1))
    for image, one in enumerate(trees_on_host(tree, log_p)):
        path, bonus = Told(right[image]).judge_greedily(one, None)
        assert verdict.path[image, : len(path)].tolist() == path
        tokens = [*(one.tokens[node] for node in path[1:]), int(bonus.argmax())]
        assert verdict.emitted[image, : len(path)].tolist() == tokens
    assert len(verdict.accepted.unique()) > 3


def test_a_residual_without_a_token_is_uniform_as_published() -> None:
    """A refused child takes k + 1 codes along, here all that the distribution has."""
    log_p = torch.tensor([0.5, 0.5, 0.0, 0.0]).log().expand(1, 2, 4)
    tree, streams = tree_of([0, 0], [0, 0]), DictatedStreams(torch.zeros(1, 2, 4), number=0.99)
    settings = LanternSettings(k=2, delta=0.1, residual="reference")
    published = Lantern(settings, NEAR)
    assert (
        published.judge(trees_on_host(tree, log_p)[0], streams.images()[0])[1].tolist()
        == [0.25] * 4
    )
    exact = Lantern(LanternSettings(k=2, delta=0.1), NEAR)(tree, log_p, streams)
    assert exact.emitted[0, 0] == 1
