"""Rules that judge on the host: verdicts, temperature 0, published formulas. Their distributions
are in `test_exactness`, their images in `test_distribution`.
"""

from __future__ import annotations

import pytest
import torch
from fakes import DictatedStreams, random_tree, tree_of
from rules import Distributions, emitted, noise_of, one_round

from configs.acceptance import GsdSettings, PathSettings
from decoding.graphs import TreeShape
from decoding.noise import ImageNoise, NodeNoise, NoiseShape, stream_key, uniform, uniform_at
from decoding.policies.dynamic import DynamicTree
from decoding.policies.static import StaticTree, rank_paths
from decoding.verifiers.base import Verifier
from decoding.verifiers.exact import Exact
from decoding.verifiers.host import trees_on_host
from decoding.verifiers.paths import PathExplore, PathRelax
from decoding.verifiers.rejection import Rejection
from decoding.verifiers.sampled import Gsd, Sampled
from decoding.verifiers.spectr import SpecTr, selection_ratio
from decoding.verifiers.traversal import Block, Traversal, first_chain

VOCAB = 8
TREE, CHAIN = StaticTree(rank_paths("root:3 0:2 1:1")), StaticTree(rank_paths("root:1 0:1"))
CASES = [
    (Rejection(), "topk", DynamicTree(TreeShape(2, 3, 5))),
    (Rejection(), "coupled", TREE),
    (Sampled(), "sampled", TREE),
    (SpecTr(), "sampled", TREE),
    (Block(), "sampled", CHAIN),
    (Traversal(), "sampled", TREE),
    (Gsd(GsdSettings(reach=1, gap=0.3)), "sampled", TREE),
    (PathExplore(), "sampled", TREE),
    (PathRelax(PathSettings(delta=0.4)), "sampled", TREE),
]


@pytest.mark.parametrize(("verifier", "proposal", "policy"), CASES)
def test_temperature_0_is_greedy_decoding(verifier, proposal, policy) -> None:
    noise = noise_of([0], 3, VOCAB, greedy=True)
    for seed in range(8):
        laws = Distributions(VOCAB, 2, spread=1 + seed)
        tree, verdict = one_round(laws, policy, proposal, verifier, noise)
        log_p, root = laws.log_p[laws.rows(tree)], torch.zeros(1, 1, dtype=torch.long)
        exact = Exact()(tree, log_p, NodeNoise(noise, tree.depths, root))
        assert torch.equal(emitted(verdict), emitted(exact))


@pytest.mark.parametrize("absent", [0.0, 0.4])
def test_verdicts_are_paths_of_present_nodes(absent) -> None:
    generator = torch.Generator().manual_seed(1)
    for nodes in (0, 1, 6, 20):
        tree, root = random_tree(generator, 200, nodes, VOCAB, absent), torch.zeros(200, 1).long()
        log_p = torch.randn(200, nodes + 1, VOCAB, generator=generator).log_softmax(-1)
        streams = NodeNoise(noise_of(range(200), nodes + 1, VOCAB), tree.depths, root)
        verdict = Rejection()(tree, log_p, streams)
        assert verdict.path.shape == verdict.emitted.shape == (200, nodes + 1)
        for image, accepted in enumerate(verdict.accepted.tolist()):
            path = verdict.path[image, : accepted + 1].tolist()
            pairs = zip(path, path[1:], strict=False)
            assert path[0] == 0 and all(int(tree.parents[image, b]) == a for a, b in pairs)
            assert tree.present[image, path].all()
            drafts = tree.tokens[image, path[1:]].tolist()
            assert drafts == verdict.emitted[image, :accepted].tolist()
        assert nodes == 0 or 0 < float(verdict.accepted.double().mean()) < nodes


def test_an_empty_residual_is_an_error() -> None:
    """p holds one token, the number says that it is refused: only rounding can do so."""
    tree = tree_of([0, 2], [0, 0])
    log_p = torch.full((1, 2, VOCAB), -torch.inf)
    log_p[..., 2] = 0
    with pytest.raises(FloatingPointError, match="--verifier rejection: all children were refused"):
        Rejection()(tree, log_p, DictatedStreams(torch.zeros(1, 2, VOCAB), number=1.0))


def test_single_numbers_are_those_of_whole_rows() -> None:
    for seed in (0, 7, 2**62 + 5):
        key, positions = stream_key(seed, "accept"), torch.arange(40)
        rows = uniform(key, positions, 30)
        assert [[uniform_at(key, p, c) for c in range(30)] for p in range(40)] == rows.tolist()
        shape = NoiseShape(99, 30, False, torch.float64, torch.device("cpu"))
        assert ImageNoise(seed, 5, shape).accept(3, 2) == rows[8, 2]


def accepted_length(verifier: Verifier, policy: StaticTree) -> float:
    noise = noise_of(range(3000), 3, VOCAB)
    verdict = one_round(Distributions(VOCAB, 2), policy, "sampled", verifier, noise)[1]
    return float(verdict.accepted.double().mean())


def test_joint_rules_accept_more_than_the_rule_token_by_token() -> None:
    """Block verification is never worse on a chain, nor traversal in a tree."""
    assert accepted_length(Block(), CHAIN) > 1.01 * accepted_length(Sampled(), CHAIN)
    assert accepted_length(Traversal(), TREE) > 1.01 * accepted_length(Sampled(), TREE)


def test_the_ratio_of_spectr_solves_its_equation() -> None:
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randn(2, 50, 9, generator=generator, dtype=torch.float64).mul(2).softmax(-1)
    for image, (p, q) in enumerate(zip(*pairs.numpy(), strict=True)):
        count = 1 + image % 4
        rho = selection_ratio(p, q, count)
        beta = torch.minimum(torch.tensor(q), torch.tensor(p / rho)).sum()
        assert 1 <= rho <= count
        torch.testing.assert_close(1 - (1 - beta) ** count, rho * beta)


def test_blocks_are_accepted_by_the_published_formula() -> None:
    """p_i and h_i of a chain, computed as the paper writes them, in a tree with other nodes."""
    laws, images, steps = Distributions(VOCAB, 3), 200, 3
    policy, noise = StaticTree(rank_paths("root:2 0:2 00:1 01:1")), noise_of(range(200), 4, VOCAB)
    tree, verdict = one_round(laws, policy, "sampled", Block(), noise)
    root = torch.zeros(images, 1, dtype=torch.long)
    numbers = NodeNoise(noise, tree.depths, root).images()
    for image, one in enumerate(trees_on_host(tree, laws.log_p[laws.rows(tree)])):
        weight, longest, node = 1.0, 0, 0
        for i in range(1, steps + 1):
            p, q = one.p(node), one.q(node)
            node = one.children[node][0]
            weight = min(weight * p[one.tokens[node]] / q[one.tokens[node]], 1.0)
            total = float((weight * one.p(node) - one.q(node)).clip(min=0).sum())
            chance = weight if i == steps else total / (total + 1 - weight)
            if numbers[image].accept(0, node) < chance:
                longest = i
        assert int(verdict.accepted[image]) == longest


def test_the_first_chain_of_a_tree() -> None:
    tree = random_tree(torch.Generator().manual_seed(4), 50, 9, VOCAB, 0.3)
    for one in trees_on_host(tree, torch.zeros(50, 10, VOCAB)):
        chain = first_chain(one)
        assert chain.children == [children[:1] for children in one.children]
        assert chain.tokens == one.tokens
