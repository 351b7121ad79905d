"""Randomised lossless rules: the joint distribution of three tokens against enumeration, with
controls that must fail.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from fakes import p_value, random_tree, streams
from rules import Distributions, decided, emitted, one_round, outcome_counts, random_noise
from torch import Tensor

from decoding.figures import Sources, read_figures
from decoding.policies.base import Shape
from decoding.policies.dynamic import DynamicTree
from decoding.policies.static import StaticTree, rank_paths
from decoding.tree import DraftTree
from decoding.verifiers.base import Verifier
from decoding.verifiers.exact import Exact
from decoding.verifiers.rejection import PointMasses, Rejection
from decoding.verifiers.sampled import Draws, Sampled

VOCAB, LENGTH, IMAGES = 4, 3, 20_000
DISTRIBUTIONS = {"full": Distributions(VOCAB, 2), "cut": Distributions(VOCAB, 2, cut=True)}
DYNAMIC, STATIC = DynamicTree(Shape(2, 3, 5)), StaticTree(rank_paths("root:3 0:2 1:1"))
CASES = [(Rejection(), proposal, DYNAMIC) for proposal in ("topk", "coupled", "sampled")]
CASES += [(Rejection(), "topk", STATIC), (Sampled(), "sampled", STATIC)]
NAMES = [f"{verifier.name} {proposal} {policy.name}" for verifier, proposal, policy in CASES]


def figures(
    distributions: Distributions, verifier: Verifier, proposal: str, policy, accept: str = "accept"
) -> tuple[float, Tensor]:
    """The p-value of three tokens' joint distribution, and how often 0, 1 and 2 drafts were
    accepted.
    """
    noise = random_noise(IMAGES, LENGTH, VOCAB, seed=5)
    noise.tables["accept"] = noise.tables[accept]
    verdict = one_round(distributions, policy, proposal, verifier, noise)[1]
    counts, p = (
        outcome_counts(decided(distributions, verdict, LENGTH), VOCAB),
        distributions.joint(LENGTH),
    )
    assert not counts[p == 0].any()
    return p_value(counts[p > 0], p[p > 0]), torch.bincount(verdict.accepted, minlength=3)


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_three_tokens_have_the_targets_distribution(case, distribution) -> None:
    """At the root and below it, after refusals and without."""
    found, accepted = figures(DISTRIBUTIONS[distribution], *case)
    assert found > 1e-4
    assert min(accepted[0], accepted[2]) > IMAGES // 50


class Forgetful(PointMasses):
    """Refuses a child and leaves it in the distribution."""

    def leave(self, refused: Tensor, distribution: Tensor) -> None:
        pass


class ForgetfulRejection(Rejection):
    def siblings(
        self, distribution: Tensor, accept: Tensor, tree: DraftTree, node: Tensor
    ) -> PointMasses:
        return Forgetful(distribution, accept)


class WithReplacement(Draws):
    """Takes children for draws with replacement."""

    def visit(self, tokens: Tensor, asked: Tensor) -> Tensor:
        draft = self.draft
        hit = super().visit(tokens, asked)
        self.draft = draft
        return hit


class WrongSampled(Sampled):
    def siblings(
        self, distribution: Tensor, accept: Tensor, tree: DraftTree, node: Tensor
    ) -> Draws:
        right = super().siblings(distribution, accept, tree, node)
        return WithReplacement(right.distribution, right.noise, right.draft)


@pytest.mark.parametrize(
    ("verifier", "proposal", "policy", "accept"),
    [
        (ForgetfulRejection(), "topk", DYNAMIC, "accept"),
        (WrongSampled(), "sampled", STATIC, "accept"),
        (Rejection(), "sampled", STATIC, "draft"),
        (Rejection(), "coupled", DYNAMIC, "target"),
    ],
    ids=[
        "residual that keeps the refused",
        "draws with replacement",
        "noise of the draws",
        "noise of the target",
    ],
)
def test_wrong_rules_are_found_out(verifier, proposal, policy, accept) -> None:
    assert figures(DISTRIBUTIONS["full"], verifier, proposal, policy, accept)[0] < 1e-8


def test_drawn_trees_of_other_shapes_are_not_lossless_with_the_rule_for_draws() -> None:
    """Why the settings refuse them: pruning by value drops draws after they were seen."""
    assert (
        figures(DISTRIBUTIONS["full"], Sampled(), "sampled", DynamicTree(Shape(2, 3, 3)))[0] < 1e-8
    )


@pytest.mark.parametrize("case", CASES, ids=NAMES)
def test_temperature_0_is_greedy_decoding(case) -> None:
    verifier, proposal, policy = case
    noise = random_noise(1, LENGTH, VOCAB, 0, greedy=True)
    for seed in range(8):
        distributions = Distributions(VOCAB, 2, spread=1 + seed)
        tree, verdict = one_round(distributions, policy, proposal, verifier, noise)
        exact = Exact()(
            tree, distributions.log_p[distributions.rows(tree)], partial(noise, tree.depths)
        )
        assert torch.equal(emitted(verdict), emitted(exact))


@pytest.mark.parametrize("absent", [0.0, 0.4])
def test_verdicts_are_paths_of_present_nodes(absent) -> None:
    """On trees of any shape, with absent nodes and an unknown number of children per node."""
    generator = torch.Generator().manual_seed(1)
    for nodes in (0, 1, 6, 20):
        tree = random_tree(generator, 200, nodes, VOCAB, absent)
        log_p = torch.randn(200, nodes + 1, VOCAB, generator=generator).log_softmax(-1)
        noise = -torch.rand(3, 200, nodes + 1, VOCAB, generator=generator).log().neg().log()
        verdict = Rejection()(tree, log_p, streams(*noise))
        assert (
            verdict.path.shape == verdict.emitted.shape == verdict.choices.shape == (200, nodes + 1)
        )
        assert torch.equal(verdict.choices, (log_p + noise[0]).argmax(-1))
        for image, accepted in enumerate(verdict.accepted.tolist()):
            path = verdict.path[image, : accepted + 1].tolist()
            assert path[0] == 0 and all(
                int(tree.parents[image, b]) == a for a, b in zip(path, path[1:], strict=False)
            )
            assert tree.present[image, path].all()
            assert (
                tree.tokens[image, path[1:]].tolist() == verdict.emitted[image, :accepted].tolist()
            )
        assert nodes == 0 or 0 < float(verdict.accepted.double().mean()) < nodes


def test_an_empty_residual_is_an_error() -> None:
    """The distribution holds one token, the noise says that it is refused: only rounding can do
    so.
    """
    tree = DraftTree.root(torch.zeros(1, dtype=torch.long), torch.float64).extend(
        torch.zeros(1, 1, dtype=torch.long),
        torch.tensor([[[2]]]),
        torch.zeros(1, 1, 1, dtype=torch.float64),
    )
    log_p = torch.full((1, 2, VOCAB), -torch.inf)
    log_p[..., 2] = 0
    noise = torch.full((1, 2, VOCAB), 50.0, dtype=torch.float64)
    with pytest.raises(FloatingPointError, match="--verifier rejection: all children were refused"):
        read_figures(tree, Rejection()(tree, log_p, streams(noise, noise, noise)), log_p, Sources())
