"""SpecTr, block and traversal verification: the joint distribution of the first tokens against
enumeration, with controls that must fail.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import test_distribution as engine_level
import torch
from fakes import p_value, random_tree
from rules import Distributions, decided, emitted, one_round, outcome_counts, random_noise
from test_distribution import PLAIN, drafter, enumerated, sampled, target  # noqa: F401
from torch import Tensor

from configs.schema import MethodSettings
from decoding.noise import PositionalNoise
from decoding.policies import static
from decoding.policies.static import StaticTree, rank_paths
from decoding.tree import DraftTree
from decoding.verifiers import spectr, traversal
from decoding.verifiers.base import Verdict, Verifier
from decoding.verifiers.block import Block, first_chain
from decoding.verifiers.exact import Exact
from decoding.verifiers.sampled import Sampled
from decoding.verifiers.spectr import SpecTr, selection_ratio
from decoding.verifiers.traversal import Journey, Traversal, tour

VOCAB, LENGTH, IMAGES = 8, 3, 20_000
DISTRIBUTIONS = {"full": Distributions(VOCAB, 2), "cut": Distributions(VOCAB, 2, cut=True)}
TREE = StaticTree(rank_paths("root:3 0:2 1:1"))
CHAIN = StaticTree(rank_paths("root:1 0:1"))
CASES = {
    "spectr": (SpecTr(), TREE),
    "spectr, one draw": (SpecTr(), CHAIN),
    "block": (Block(), CHAIN),
    "block in a tree": (Block(), TREE),
    "traversal": (Traversal(), TREE),
    "traversal of a chain": (Traversal(), CHAIN),
}


def judged(
    distributions: Distributions, verifier: Verifier, policy: StaticTree, accept: str = "accept"
) -> Verdict:
    noise = random_noise(IMAGES, LENGTH, VOCAB, seed=5)
    noise.tables["accept"] = noise.tables[accept]
    return one_round(distributions, policy, "sampled", verifier, noise)[1]


def fit(distributions: Distributions, verdict: Verdict) -> float:
    """The p-value of three tokens' joint distribution."""
    counts = outcome_counts(decided(distributions, verdict, LENGTH), VOCAB)
    p = distributions.joint(LENGTH)
    assert not counts[p == 0].any()
    return p_value(counts[p > 0], p[p > 0])


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("case", CASES)
def test_three_tokens_have_the_targets_distribution(case, distribution) -> None:
    distributions = DISTRIBUTIONS[distribution]
    verdict = judged(distributions, *CASES[case])
    assert fit(distributions, verdict) > 1e-4
    accepted = torch.bincount(verdict.accepted, minlength=3)
    assert min(accepted[0], accepted[2]) > IMAGES // 50
    assert not verdict.emptied.any()


def cousins(monkeypatch: pytest.MonkeyPatch, shared: bool) -> float:
    """The p-value of traversal where two nodes of a level have a child each, and level 2 is drafted
    whatever level 1 holds.
    """
    laws = Distributions(5, 2)
    g = torch.Generator().manual_seed(3)
    laws.log_p = (
        1.5 * torch.randn(laws.log_p.shape, generator=g, dtype=torch.float64)
    ).log_softmax(1)
    q = torch.randn(laws.log_p.shape, generator=g, dtype=torch.float64).log_softmax(1)
    laws.log_q = torch.cat([q[:1], q[1:2].expand(len(q) - 1, -1)])
    draft = PositionalNoise.draft
    if shared:

        def level_wise(noise, keys: Tensor, positions: Tensor, parents: Tensor) -> Tensor:
            return draft(noise, keys, positions, torch.zeros_like(parents))

        monkeypatch.setattr(PositionalNoise, "draft", level_wise)
    tree, noise = StaticTree(rank_paths("root:2 0:1 1:1")), random_noise(60_000, 3, 5, seed=1)
    verdict = one_round(laws, tree, "sampled", Traversal(), noise)[1]
    return p_value(outcome_counts(decided(laws, verdict, 2), 5), laws.joint(2))


def test_cousins_are_drawn_independently(monkeypatch) -> None:
    """Else a traversal, which refuses a branch because of its leaves, is biased."""
    assert cousins(monkeypatch, shared=False) > 1e-4
    assert cousins(monkeypatch, shared=True) < 1e-8


def accepted_length(verifier: Verifier, policy: StaticTree) -> float:
    return float(judged(DISTRIBUTIONS["full"], verifier, policy).accepted.double().mean())


def test_joint_rules_accept_more_than_the_rule_token_by_token() -> None:
    """Block verification is never worse on a chain, nor traversal in a tree."""
    assert accepted_length(Block(), CHAIN) > 1.01 * accepted_length(Sampled(), CHAIN)
    assert accepted_length(Traversal(), TREE) > 1.01 * accepted_length(Sampled(), TREE)


class KeepsRest(Journey):
    """Refuses a leaf and leaves the target's distribution as it is."""

    def _refuse(self, node: Tensor, refused: Tensor) -> None:
        before = self.target.clone()
        super()._refuse(node, refused)
        self.target = before


class ForgetsBranch(Journey):
    """Gives the next sibling the chance of a first one."""

    def _refuse(self, node: Tensor, refused: Tensor) -> None:
        before = self.weight.clone()
        super()._refuse(node, refused)
        self.weight = before


@pytest.mark.parametrize("journey", [KeepsRest, ForgetsBranch])
def test_wrong_traversals_are_found_out(journey, monkeypatch) -> None:
    monkeypatch.setattr(traversal, "Journey", journey)
    distributions = DISTRIBUTIONS["full"]
    assert fit(distributions, judged(distributions, Traversal(), TREE)) < 1e-8
    assert fit(distributions, judged(distributions, Block(), CHAIN)) < 1e-8


@pytest.mark.parametrize("verifier", [SpecTr(), Traversal(), Block()], ids=lambda v: v.name)
def test_noise_of_the_draws_is_found_out(verifier) -> None:
    distributions = DISTRIBUTIONS["full"]
    assert fit(distributions, judged(distributions, verifier, TREE, "draft")) < 1e-8


def test_selection_without_its_ratio_is_found_out(monkeypatch) -> None:
    """Accepting each draw with min(1, p / q) takes likely drafts too often."""
    wrong = lambda p, q, count: torch.ones_like(p[:, :1])  # noqa: E731
    monkeypatch.setattr(spectr, "selection_ratio", wrong)
    distributions = DISTRIBUTIONS["full"]
    assert fit(distributions, judged(distributions, SpecTr(), TREE)) < 1e-8


def test_the_ratio_solves_its_equation() -> None:
    generator = torch.Generator().manual_seed(0)
    p, q = torch.randn(2, 50, 9, generator=generator, dtype=torch.float64).mul(2).softmax(-1)
    count = torch.arange(50)[:, None] % 5
    rho = selection_ratio(p, q, count)
    assert ((rho >= 1) & (rho <= count.clamp(min=1))).all()
    beta = torch.minimum(q, p / rho).sum(1, keepdim=True)
    some = count > 0
    torch.testing.assert_close((1 - (1 - beta) ** count)[some], (rho * beta)[some])


def around(tree: DraftTree, image: int, node: int) -> Iterator[tuple[int, bool]]:
    for child in range(1, tree.nodes + 1):
        if tree.parents[image, child] == node and tree.present[image, child]:
            yield child, False
            yield from around(tree, image, child)
            yield child, True


def test_a_tree_is_walked_around() -> None:
    """Children after their parents are entered, before these are left; absent nodes never."""
    generator = torch.Generator().manual_seed(2)
    for nodes in (1, 5, 12):
        tree = random_tree(generator, 40, nodes, VOCAB, 0.3)
        found, leaving = tour(tree)
        for image in range(40):
            steps = zip(found[image].tolist(), leaving[image].tolist(), strict=True)
            assert [step for step in steps if step[0]] == list(around(tree, image, 0))


def test_blocks_are_accepted_by_the_published_formula() -> None:
    """p_i and h_i of a chain, computed as the paper writes them."""
    generator = torch.Generator().manual_seed(3)
    images, steps = 200, 4
    tokens = torch.randint(VOCAB, (images, steps + 1), generator=generator)
    parents = torch.tensor([0, *range(steps)]).expand(images, -1)
    p, q = torch.randn(2, images, steps + 1, VOCAB, generator=generator, dtype=torch.float64)
    p, q = p.log_softmax(-1), q.log_softmax(-1)
    depths = torch.arange(steps + 1).expand(images, -1)
    tree = DraftTree(
        tokens, parents, depths, torch.zeros(images, steps + 1), steps, distributions=q
    )
    noise = -torch.rand(images, steps + 1, VOCAB, generator=generator).double().log().neg().log()
    noise = noise.clamp(-50, 50)
    verdict = Block()(tree, p, lambda role: noise)
    uniform = (-(-noise[:, 0]).exp()).exp()
    for image in range(images):
        weight, longest = 1.0, 0
        for i in range(1, steps + 1):
            token = tokens[image, i]
            ratio = (p[image, i - 1, token] - q[image, i - 1, token]).exp()
            weight = min(weight * float(ratio), 1.0)
            total = float((weight * p[image, i].exp() - q[image, i].exp()).clamp(min=0).sum())
            chance = weight if i == steps else total / (total + 1 - weight)
            if float(uniform[image, i]) < chance:
                longest = i
        assert int(verdict.accepted[image]) == longest


def test_the_first_chain_of_a_tree() -> None:
    tree = random_tree(torch.Generator().manual_seed(4), 50, 9, VOCAB, 0.3)
    chain = first_chain(tree)
    for image in range(50):
        node, expected = 0, {0}
        while True:
            found = [c for c in range(1, 10)
                     if tree.parents[image, c] == node and tree.present[image, c]]  # fmt: skip
            if not found:
                break
            node = found[0]
            expected.add(node)
        assert set(chain.present[image].nonzero()[:, 0].tolist()) == expected


@pytest.mark.parametrize("case", CASES)
def test_temperature_0_is_greedy_decoding(case) -> None:
    verifier, policy = CASES[case]
    noise = random_noise(1, LENGTH, VOCAB, 0, greedy=True)
    for seed in range(8):
        distributions = Distributions(VOCAB, 2, spread=1 + seed)
        tree, verdict = one_round(distributions, policy, "sampled", verifier, noise)
        tree = first_chain(tree) if isinstance(verifier, Block) else tree
        log_p = distributions.log_p[distributions.rows(tree)]
        exact = Exact()(tree, log_p, partial(noise, tree.depths))
        assert torch.equal(emitted(verdict), emitted(exact))


def test_more_nodes_than_codes_are_refused() -> None:
    tree = random_tree(torch.Generator().manual_seed(0), 1, VOCAB, VOCAB, 0.0)
    noise = torch.zeros(1, VOCAB + 1, VOCAB)
    with pytest.raises(ValueError, match="--verifier traversal: found 8 nodes and 8 codes"):
        Traversal()(tree, noise, lambda role: noise)


METHODS = {
    "block": MethodSettings(method="jacobi", proposal="sampled", verifier="block", window=2),
    "traversal": MethodSettings(method="static", proposal="sampled", verifier="traversal"),
    "spectr": MethodSettings(method="static", proposal="sampled", verifier="spectr"),
}


@pytest.mark.parametrize("name", METHODS)
def test_images_of_many_rounds_have_the_targets_distribution(
    name,
    target,  # noqa: F811
    drafter,  # noqa: F811
    monkeypatch,
) -> None:
    """Through the engine: what a round has refused is judged anew by the next one."""
    monkeypatch.setitem(static.NAMED_TREES, "mc_sim_7b_63", "root:2 0:1")
    monkeypatch.setattr(engine_level, "SEEDS", 4000)
    counts = sampled(target, drafter, PLAIN, METHODS[name])
    assert p_value(counts, enumerated(target, PLAIN)) > 1e-4
