"""Full enumeration: the distribution of a round's tokens, over all outcomes of its random numbers.

A program asks a `Chance` for its random decisions. It is run once per outcome of them, and every
run is weighed with the product of its decisions' probabilities. So a right rule is off by rounding
alone, about 1e-15, and a fault in one node of a thousand is as visible as one in every node.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import permutations
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from configs.rules import PROPOSALS, loaded
from decoding.noise import NoiseShape
from decoding.noise_table import NoiseTable
from decoding.policies.base import TreePolicy
from decoding.proposals import Predictions, Proposal
from decoding.round import Round
from decoding.tree import DraftTree
from decoding.verifiers.host import Array, HostRule, ImageTree, trees_on_host
from scripts.rules.rounds import Distributions, Roots, round_at


class Chance:
    """The random decisions of one run: those of a script first, then the first that can happen."""

    def __init__(self, script: Sequence[int]):
        self.script, self.taken, self.weight = script, list(script), 1.0
        self.decided = 0
        # scripts of the decisions that this run did not take
        self.others: list[tuple[int, ...]] = []

    def choose(self, probabilities: Sequence[float] | Array) -> int:
        """Return the index of an outcome; each that can happen is returned in one of the runs."""
        possible = [index for index, p in enumerate(probabilities) if p > 0]
        if self.decided < len(self.script):
            choice = self.script[self.decided]
        else:
            choice = possible[0]
            self.others += [(*self.taken, other) for other in possible[1:]]
            self.taken.append(choice)
        self.decided += 1
        self.weight *= float(probabilities[choice])
        return choice


Result = TypeVar("Result")


def runs(program: Callable[[Chance], Result]) -> Iterator[tuple[Result, float]]:
    """Yield a program's result and weight in each outcome of its random decisions."""
    scripts: list[tuple[int, ...]] = [()]
    while scripts:
        chance = Chance(scripts.pop())
        result = program(chance)
        scripts += chance.others
        yield result, chance.weight


class Uniform:
    """A uniform number of (0, 1) that is not drawn: every comparison narrows where it is.

    Rules compare it, scaled and shifted, with probabilities; `scale` must not be negative.
    """

    __array_ufunc__ = None  # else numpy's numbers would not leave the products to this class

    def __init__(self, chance: Chance, bounds: list[float], scale: float = 1.0, shift: float = 0.0):
        self.chance, self.bounds, self.scale, self.shift = chance, bounds, scale, shift

    def __mul__(self, factor: float) -> "Uniform":
        return Uniform(self.chance, self.bounds, self.scale * factor, self.shift * factor)

    def __sub__(self, other: float) -> "Uniform":
        return Uniform(self.chance, self.bounds, self.scale, self.shift - other)

    def __lt__(self, other: float) -> bool:
        low, high = self.bounds
        if not self.scale:
            return bool(self.shift < other)
        at = float(other - self.shift) / float(self.scale)
        if at <= low or at >= high:
            return at >= high
        below = (at - low) / (high - low)
        less = self.chance.choose((below, 1 - below)) == 0
        self.bounds[less] = at  # the upper bound if it is less
        return less


@dataclass
class EnumeratedNoise:
    """An image's numbers for rules that judge on the host, as `decoding.noise.HostNoise`.

    A number that is read twice is the same number.
    """

    chance: Chance
    decided: int = 1
    greedy: bool = False
    numbers: dict[tuple[int, int], list[float]] = field(default_factory=dict)

    def accept(self, depth: int, column: int) -> Uniform:
        return Uniform(self.chance, self.numbers.setdefault((depth, column), [0.0, 1.0]))


class Every:
    """Draws children without replacement, in every order: one image of the batch per outcome.

    The weight of an image's outcome is the product of its draws' probabilities.
    """

    name, samples = "sampled", True

    def __init__(self, vocab: int, images: int):
        self.vocab, self.weights = vocab, torch.ones(images, dtype=torch.float64)
        self.outcomes = 1  # of the nodes so far

    def noise(self, round: Round, levels: slice, nodes: int) -> None:
        return None

    def children(
        self, predictions: Predictions, noise: Tensor | None, count: int
    ) -> tuple[Tensor, Tensor]:
        images, nodes, _ = predictions.log_q.shape
        orders = torch.tensor(list(permutations(range(self.vocab), min(count, self.vocab))))
        tokens = torch.empty(images, nodes, orders.shape[1], dtype=torch.long)
        for node in range(nodes):
            digit = torch.arange(images) // self.outcomes % len(orders)
            tokens[:, node] = orders[digit]
            self.outcomes *= len(orders)
        q = predictions.log_q.exp()
        for place in range(tokens.shape[2]):
            token = tokens[..., place, None]
            mass = q.sum(-1)
            # nothing is left to draw: the rest is absent, in one order only
            lowest = torch.ones_like(q).scatter(2, tokens[..., :place], 0).argmax(-1)
            alone = (token[..., 0] == lowest).double()
            drawn = torch.where(
                mass > 0, q.gather(2, token)[..., 0] / mass.clamp(min=1e-300), alone
            )
            self.weights *= drawn.prod(1)
            q = q.scatter(2, token, 0)
        return tokens, predictions.log_q.gather(-1, tokens)


class Drawn(NamedTuple):
    """A tree and the probability that it is drafted."""

    tree: ImageTree
    weight: float


@dataclass(frozen=True)
class Case:
    """Target and drafter, the trees of a policy and how their children are taken."""

    laws: Distributions
    policy: TreePolicy
    proposal: str  # `sampled`, or `topk`, which makes one tree

    @property
    def tokens(self) -> int:
        """Tokens whose joint distribution is compared: all that a round can decide."""
        return self.policy.largest.reach + 1

    @cached_property
    def every(self) -> tuple[DraftTree, Tensor]:
        """Every outcome of the draws, an image each, and their probabilities (outcomes,)."""
        if self.proposal != "sampled":
            return self._grown(1, loaded(PROPOSALS[self.proposal])()), torch.ones(1)
        probe = Every(self.laws.vocab, 1)
        self._grown(1, probe)
        every = Every(self.laws.vocab, probe.outcomes)
        return self._grown(probe.outcomes, every), every.weights

    @cached_property
    def trees(self) -> list[Drawn]:
        """Every tree that can be drafted; outcomes with the same present nodes are one tree."""
        tree, weights = self.every
        nodes = torch.cat([tree.tokens.where(tree.present, -1), tree.parents], 1)
        kinds, kind = nodes.unique(dim=0, return_inverse=True)
        chances = torch.zeros(len(kinds), dtype=weights.dtype).index_add(0, kind, weights)
        first = torch.empty(len(kinds), dtype=torch.long)
        first[kind.flip(0)] = torch.arange(len(kind)).flip(0)
        first = first[chances > 0]
        some = replace(
            tree,
            tokens=tree.tokens[first],
            parents=tree.parents[first],
            depths=tree.depths[first],
            scores=tree.scores[first],
            log_q=None if tree.log_q is None else tree.log_q[first],
        )
        log_p = self.laws.log_p[self.laws.rows(some)]
        return list(map(Drawn, trees_on_host(some, log_p), chances[chances > 0].tolist()))

    def _grown(self, images: int, proposal: Proposal) -> DraftTree:
        shape = NoiseShape(1, self.laws.vocab, False, torch.float64, torch.device("cpu"))
        noise = NoiseTable(shape, 0)
        noise.seeds = [0] * images
        round = round_at(Roots.first(images), self.policy, noise, proposal.samples)
        return self.policy.grow(round, self.laws, proposal)


class Enumerated(NamedTuple):
    """A rule's round."""

    joint: Array  # of the first tokens
    distance: float  # total variation of the first tokens' joint distribution from the target's
    accepted: float  # mean accepted length, without the bonus token
    outcomes: int


def enumerated(rule: HostRule, case: Case) -> Enumerated:
    """Return how far a rule's tokens are from the target's, over all outcomes of a round.

    Tokens that the round does not decide follow as the target samples them. A rule that does not
    read the drafter's distributions has to be right for every single tree, however it was drafted:
    for such a rule the distance is that of the worst tree.
    """
    laws = case.laws
    whole, worst, accepted, outcomes = np.zeros((laws.vocab,) * case.tokens), 0.0, 0.0, 0
    for tree, drafted in case.trees:
        joint = np.zeros_like(whole)

        def round(chance: Chance, tree: ImageTree = tree) -> tuple[list[int], Array]:
            noise = EnumeratedNoise(chance)
            return rule.judge(tree, noise)  # type: ignore[arg-type]  # rules only compare numbers

        for (path, bonus), weight in runs(round):
            add_outcome(joint, laws, [tree.tokens[node] for node in path[1:]], bonus, weight)
            accepted += drafted * weight * (len(path) - 1)
            outcomes += 1
        if not rule.reads_distributions:
            worst = max(worst, off(joint, laws))
        whole += drafted * joint
    return Enumerated(whole, max(worst, off(whole, laws)), accepted, outcomes)


def add_outcome(
    joint: Array, laws: Distributions, tokens: Sequence[int], bonus: Array, weight: float
) -> None:
    """Add decided tokens, their next token's distribution, and the target's samples after it."""
    left = joint.ndim - len(tokens)
    row = 0
    for token in tokens:
        row = row * laws.vocab + 1 + token
    if left > 0:
        following = [
            bonus[token] * continued(laws, row * laws.vocab + 1 + token, left - 1)
            for token in range(laws.vocab)
        ]
        joint[tuple(tokens)] += weight * np.stack(following)
    else:
        joint[tuple(tokens[: joint.ndim])] += weight


def continued(laws: Distributions, row: int, length: int) -> Array:
    """Return the joint distribution (vocab, ... vocab) of tokens that the target samples."""
    known = laws.__dict__.setdefault("continuations", {})
    if (row, length) not in known:
        if not length:
            return np.ones(())
        p = laws.log_p[row].exp().numpy()
        below = [continued(laws, row * laws.vocab + 1 + t, length - 1) for t in range(laws.vocab)]
        known[row, length] = np.stack([p[t] * below[t] for t in range(laws.vocab)])
    return known[row, length]


def off(joint: Array, laws: Distributions) -> float:
    """Return the total variation between a joint distribution of first tokens and the target's."""
    return float(np.abs(joint - continued(laws, 0, joint.ndim)).sum() / 2)
