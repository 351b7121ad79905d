"""Many images at once through one round: distributions by prefix, trees, the noise of seeds."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from configs.rules import PROPOSALS, loaded
from decoding.drafter import TreeDrafter
from decoding.noise import ACCEPTING, NoiseShape, gumbel_of, stream_key
from decoding.noise_table import NodeNoise, NoiseTable
from decoding.policies.base import TreePolicy
from decoding.proposals import Predictions
from decoding.round import Round, RoundInputs, RoundShape
from decoding.tree import DraftTree, GrowingTree
from decoding.verifiers.base import Verdict, Verifier


class Distributions(TreeDrafter):
    """Target's and drafter's distributions (rows, vocab) after every prefix of up to `length`
    tokens, in heap order: the root is row 0, and token t after row r leads to row r vocab + 1 + t.
    """

    def __init__(
        self, vocab: int, length: int, spread: float = 1.0, cut: bool = False, seed: int = 0
    ):
        generator = torch.Generator().manual_seed(seed or vocab)
        self.vocab = vocab
        rows = sum(vocab**n for n in range(length + 1))
        p, noise = torch.randn(2, rows, vocab, generator=generator, dtype=torch.float64) * spread
        if cut:  # each distribution lacks a token, not always the same
            p = p.masked_fill(p == p.amin(1, keepdim=True), -torch.inf)
            noise = noise.masked_fill(noise == noise.amin(1, keepdim=True), -torch.inf)
        self.log_p, self.log_q = p.log_softmax(1), (p.clamp(min=-2) + 1.2 * noise).log_softmax(1)

    roots: Tensor | int = 0  # (images,) the rows of the trees' roots
    dtype = torch.float64

    def rows(self, tree: DraftTree) -> Tensor:
        """(images, 1 + nodes) the row of every node's path."""
        rows = torch.zeros_like(tree.tokens)
        rows[:, 0] = self.roots
        for depth in range(1, tree.height + 1):
            below = rows.gather(1, tree.parents) * self.vocab + 1 + tree.tokens
            rows = torch.where(tree.depths == depth, below, rows)
        return rows

    def expand(self, tree: GrowingTree, picked: Tensor, round: Round) -> Predictions:
        whole = self.rows(tree.complete())
        return Predictions(self.log_q[whole.gather(1, picked + tree.newest.first)])

    def joint(self, length: int) -> Tensor:
        """The probabilities (vocab ** length,) of the first tokens."""
        joint, rows = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.long)
        for _ in range(length):
            joint = (joint[:, None] * self.log_p[rows].exp()).flatten()
            rows = (rows[:, None] * self.vocab + 1 + torch.arange(self.vocab)).flatten()
        return joint


class Unfavourable(Distributions):
    """Targets and drafters that differ as much as the name says, after every prefix."""

    def __init__(self, kind: str, vocab: int, length: int):
        super().__init__(vocab, length, spread=1.3, cut=kind == "cut")
        other = Distributions(vocab, length, spread=1.3).log_q.flip(0)
        if kind == "true":
            self.log_q = self.log_p
        if kind == "ties":  # tokens that are as likely as others, for both
            self.log_p, self.log_q = (x.round().log_softmax(1) for x in (self.log_p, self.log_q))
        if kind == "sharp":  # nearly always the same draft, often a wrong one
            self.log_q = (4 * other).log_softmax(1)
        if kind == "disjoint":  # what q drafts, p hardly has, and nothing of what it has most
            away = self.log_p.masked_fill(self.log_p == self.log_p.amax(1, keepdim=True), torch.inf)
            self.log_q = (-1.5 * away).log_softmax(1)
        if kind == "blind":  # drafts do not depend on the prefix, on which p depends much
            last = torch.arange(len(self.log_p))[:, None] - 1
            liked = torch.arange(vocab) // 2 == last % 2  # other codes after an even one
            self.log_p = (0.3 * self.log_p + 1.5 * liked).log_softmax(1)
            self.log_q = torch.zeros_like(self.log_p).log_softmax(1)
            roots = torch.tensor([[0.3, 0.5, 0.1, 0.1], [0.8, 0.15, 0.03, 0.02]]).double()
            self.log_p[0], self.log_q[0] = roots[:, :vocab].log().log_softmax(1)


def noise_of(seeds: Sequence[int], positions: int, vocab: int, greedy: bool = False) -> NoiseTable:
    """The noise of images with these seeds, all at once: filling image by image would take long."""
    shape = NoiseShape(positions, vocab, greedy, torch.float64, torch.device("cpu"))
    noise = NoiseTable(shape, len(seeds))
    noise.seeds = list(seeds)
    noise.keys = torch.tensor([[stream_key(seed, role) for role in ACCEPTING] for seed in seeds])
    if not greedy:
        keys = torch.tensor([[[stream_key(seed, "target")]] for seed in seeds])
        noise.table.copy_(gumbel_of(keys, torch.arange(positions).expand(len(seeds), -1), vocab))
    return noise


@dataclass
class Roots:
    """The rows of the trees' prefixes, the images' positions, how many rounds came before."""

    rows: Tensor
    decided: Tensor
    rounds: int = 0

    @staticmethod
    def first(images: int) -> "Roots":
        zero = torch.zeros(images, dtype=torch.long)
        return Roots(zero, zero[:, None])


def one_round(
    distributions: Distributions,
    policy: TreePolicy,
    proposal: str,
    verifier: Verifier,
    noise: NoiseTable,
    roots: Roots | None = None,
) -> tuple[DraftTree, Verdict]:
    """Grow and judge one tree per image."""
    roots = roots or Roots.first(len(noise.seeds))
    distributions.roots = roots.rows
    taken = loaded(PROPOSALS[proposal])()
    round = round_at(roots, policy, noise, taken.samples and verifier.reads_distributions)
    tree = policy.grow(round, distributions, taken)
    log_p = distributions.log_p[distributions.rows(tree)]
    return tree, verifier(tree, log_p, NodeNoise(noise, tree.depths, roots.decided))


def round_at(roots: Roots, policy: TreePolicy, noise: NoiseTable, keep_q: bool) -> Round:
    """The round of images at these roots, all with the policy's largest tree."""
    images, largest = len(noise.seeds), policy.largest
    streams = torch.tensor([[stream_key(seed, f"draft {roots.rounds}")] for seed in noise.seeds])
    limits = torch.tensor([largest]).expand(images, -1)
    zero = torch.zeros_like(roots.decided)
    table = torch.cat([zero, roots.decided, zero, zero + 1, streams, limits], 1)
    shape = RoundShape(images, *largest, 1, 1)
    return Round(shape, RoundInputs(table), noise, keep_q)


def outcome_counts(tokens: Tensor, vocab: int) -> Tensor:
    """How often (vocab ** length,) each sequence (images, length) occurs."""
    index = torch.zeros_like(tokens[:, 0])
    for token in tokens.unbind(1):
        index = index * vocab + token
    return torch.bincount(index, minlength=vocab ** tokens.shape[1]).double()
