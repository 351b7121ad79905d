"""Many images at once through one round: small distributions by prefix, trees grown from them, all
streams of noise random.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch
from fakes import Unseeing
from torch import Tensor

from decoding.grow import Grower
from decoding.noise import NoiseShape, PositionalNoise, gumbel_of, stream_key
from decoding.policies.base import TreePlan, TreePolicy
from decoding.proposals import PROPOSALS
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict, Verifier

ROLES = ("target", "accept", "residual", "draft")


class Distributions(Unseeing):
    """Target's and drafter's distributions (rows, vocab) after every prefix of up to `length`
    tokens, in heap order: the root is row 0, and token t after row r leads to row r vocab + 1 + t.
    """

    def __init__(self, vocab: int, length: int, spread: float = 1.0, cut: bool = False):
        generator = torch.Generator().manual_seed(vocab)
        self.vocab = vocab
        rows = sum(vocab**n for n in range(length + 1))
        p, noise = torch.randn(2, rows, vocab, generator=generator, dtype=torch.float64) * spread
        if cut:  # each distribution lacks a token, not always the same
            p = p.masked_fill(p == p.amin(1, keepdim=True), -torch.inf)
            noise = noise.masked_fill(noise == noise.amin(1, keepdim=True), -torch.inf)
        self.log_p, self.log_q = p.log_softmax(1), (p.clamp(min=-2) + 1.2 * noise).log_softmax(1)

    roots: Tensor | int = 0  # (images,) the rows of the trees' roots

    def rows(self, tree: DraftTree) -> Tensor:
        """(images, 1 + nodes) the row of every node's path."""
        rows = torch.zeros_like(tree.tokens)
        rows[:, 0] = self.roots
        for depth in range(1, tree.height + 1):
            rows = torch.where(
                tree.depths == depth,
                rows.gather(1, tree.parents) * self.vocab + 1 + tree.tokens,
                rows,
            )
        return rows

    def expand(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        return self.log_q[self.rows(tree).gather(1, nodes)]

    def joint(self, length: int) -> Tensor:
        """The probabilities (vocab ** length,) of the first tokens."""
        joint, rows = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
        for _ in range(length):
            joint = (joint[:, None] * self.log_p[rows].exp()).flatten()
            rows = (rows[:, None] * self.vocab + 1 + torch.arange(self.vocab)).flatten()
        return joint


def filled_noise(seeds: Sequence[int], positions: int, vocab: int) -> PositionalNoise:
    """The noise of images with these seeds, all at once."""
    shape = NoiseShape(positions, vocab, False, torch.float64, torch.device("cpu"))
    noise = PositionalNoise(shape, len(seeds), ROLES[:3])
    noise.seeds = list(seeds)
    for role, table in noise.tables.items():
        keys = torch.tensor([[[stream_key(seed, role)]] for seed in seeds])
        table.copy_(gumbel_of(keys, torch.arange(positions).expand(len(seeds), -1), vocab))
    return noise


def random_noise(
    images: int, positions: int, vocab: int, seed: int, greedy: bool = False
) -> PositionalNoise:
    """Noise of all roles from torch's generator: filling tables image by image would take long."""
    noise = PositionalNoise(
        NoiseShape(positions, vocab, greedy, torch.float64, torch.device("cpu")), images, ROLES
    )
    generator = torch.Generator().manual_seed(seed)
    for table in noise.tables.values() if not greedy else ():
        table.copy_(
            -torch.rand(table.shape, generator=generator, dtype=torch.float64).log().neg().log()
        )
    # what the children of a level's first parent are drawn with, for controls that misuse it
    at = torch.arange(positions).expand(images, -1)
    noise.tables["draft"] = noise.draft(draft_keys(images), at, torch.zeros_like(at[0]))
    return noise


def draft_keys(images: int) -> Tensor:
    """Keys (images, 1) of the streams that a round draws children with."""
    return torch.arange(images)[:, None] * 2**40


def one_round(
    distributions: Distributions,
    policy: TreePolicy,
    proposal: str,
    verifier: Verifier,
    noise: PositionalNoise,
) -> tuple[DraftTree, Verdict]:
    """Grow and judge one tree per image."""
    images = len(noise.table)
    drawing = noise.drawing(PROPOSALS[proposal].stream, draft_keys(images))
    root = DraftTree.root(torch.zeros(images, dtype=torch.long), torch.float64)
    grower = Grower(
        policy, distributions, PROPOSALS[proposal](), distributions=verifier.reads_distributions
    )
    tree = grower(
        root,
        TreePlan.of((policy.largest,) * images),
        drawing,
        torch.zeros(images, 1, dtype=torch.long),
    )
    return tree, verifier(
        tree, distributions.log_p[distributions.rows(tree)], partial(noise, tree.depths)
    )


def decided(distributions: Distributions, verdict: Verdict, length: int, seed: int = 0) -> Tensor:
    """The first tokens (images, length): those of the verdict, then plain samples of the target's
    distribution.
    """
    generator = torch.Generator().manual_seed(seed)
    rows, tokens = torch.zeros_like(verdict.accepted), []
    for position in range(length):
        token = torch.multinomial(distributions.log_p[rows].exp(), 1, generator=generator)[:, 0]
        if position < verdict.emitted.shape[1]:
            token = torch.where(position <= verdict.accepted, verdict.emitted[:, position], token)
        tokens.append(token)
        rows = rows * distributions.vocab + 1 + token
    return torch.stack(tokens, 1)


def outcome_counts(tokens: Tensor, vocab: int) -> Tensor:
    """How often (vocab ** length,) each sequence (images, length) occurs."""
    index = torch.zeros_like(tokens[:, 0])
    for token in tokens.unbind(1):
        index = index * vocab + token
    return torch.bincount(index, minlength=vocab ** tokens.shape[1]).double()


def emitted(verdict: Verdict) -> Tensor:
    """The decided tokens (images, 1 + nodes), -1 after them."""
    place = torch.arange(verdict.emitted.shape[1])
    return verdict.emitted.masked_fill(place > verdict.accepted[:, None], -1)
