"""Whole rounds of every lossless rule, proposal and tree against the target's distribution.

`python -m scripts.rules.whole_rounds --images 200000 --output FILE` prints and writes the table.
"""

import gc
import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from multiprocessing import Pool
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from configs.rules import PROPOSALS, RULES, loaded
from decoding.drafter import TreeDrafter
from decoding.noise import HostNoise, stream_key
from decoding.noise_table import NoiseTable
from decoding.policies.base import TreePolicy
from decoding.policies.dynamic import DynamicTree
from decoding.policies.static import StaticTree, rank_paths
from decoding.proposals import Proposal
from decoding.round import Round, TreeShape
from decoding.rules import spectr
from decoding.rules.block_verification import BlockVerification
from decoding.rules.path_explore import PathExplore
from decoding.rules.spectr import SpecTr, selection_ratio
from decoding.rules.traversal import Traversal
from decoding.tree import DraftTree
from decoding.verifiers import host, sampled
from decoding.verifiers.base import Verifier
from decoding.verifiers.host import Array, ImageTree, Walk, point_mass
from decoding.verifiers.rejection import Rejection
from decoding.verifiers.sampled import Sampled
from scripts.rules.rounds import Roots, Unfavourable, noise_of, one_round, outcome_counts
from scripts.rules.statistics import p_value
from support.script import run_script

VOCAB, TOKENS, REACH = 4, 3, 3
CHUNK = 20_000  # images at a time
noise_of_chunk = cache(noise_of)
LEAST, MOST = 1e-5, 1e-8  # a right rule's p-value is above the first, a wrong one's below the other


class Doubled(StaticTree):
    """A static tree whose second node carries the token of the first, its sibling."""

    def grow(self, round: Round, drafter: TreeDrafter, proposal: Proposal) -> DraftTree:
        tree = super().grow(round, drafter, proposal)
        tokens = tree.tokens.clone()
        tokens[:, 2] = tokens[:, 1]
        return replace(tree, tokens=tokens)


def static(description: str, policy: type[StaticTree] = StaticTree) -> StaticTree:
    """Return a static tree from its description."""
    return policy(rank_paths(description))


KINDS = ("near", "cut", "sharp", "disjoint", "blind")
QS = {kind: Unfavourable(kind, VOCAB, TOKENS + REACH - 1) for kind in KINDS}
TREES: dict[str, TreePolicy] = {
    "chain": static("root:1 0:1 00:1"),
    "siblings": static("root:3"),
    "cousins": static("root:2 0:1 1:1"),
    "three levels": static("root:2 0:2 1:1 00:1 10:1"),
    "pruned": DynamicTree(TreeShape(2, 3, 5)),
    "doubled": static("root:2 0:1 1:1", Doubled),
}


@dataclass(frozen=True)
class Cell:
    """A rule, with the proposal, tree and drafter that it is tried with."""

    rule: str
    proposal: str
    tree: str
    q: str
    verifier: Verifier
    broken: Callable[[], AbstractContextManager] = nullcontext  # what a control breaks

    def __str__(self) -> str:
        return f"{self.rule}, {self.proposal}, {self.tree}, {self.q}"


def cells() -> Iterator[Cell]:
    """Every combination that the settings allow."""
    for name, rule in RULES.items():
        if not rule.lossless:
            continue
        verifier = loaded(rule.code)()
        reads = verifier.reads_distributions
        for proposal in PROPOSALS:
            for tree, policy in TREES.items():
                static_shape = isinstance(policy, StaticTree)
                fits = rule.fits("static" if static_shape else "eagle2", proposal)
                # siblings that are drawn differ
                if not fits or (tree == "doubled" and reads):
                    continue
                for q in QS if reads else ("near", "cut"):
                    yield Cell(name, proposal, tree, q, verifier)


@dataclass(frozen=True)
class Outcome:
    """What a cell's images came to."""

    p_value: float  # of the joint distribution of the first tokens
    after_refusal: float  # p-value of the tokens after those that a refused draft left
    distance: float  # total variation from the target's distribution
    scatter: float  # the distance that as many samples of the target would have, about
    accepted: float  # draft tokens in the first round

    @property
    def exact(self) -> bool:
        return min(self.p_value, self.after_refusal) > LEAST

    @property
    def wrong(self) -> bool:
        return min(self.p_value, self.after_refusal) < MOST


def decode(cell: Cell, seeds: range) -> tuple[Tensor, Tensor, float]:
    """Tokens (images, TOKENS), which of them followed a refused draft, draft tokens in round 1."""
    everyone = noise_of_chunk(seeds, TOKENS + REACH, VOCAB)
    drafter, images = QS[cell.q], len(seeds)
    tokens = torch.zeros(images, TOKENS + REACH + 1, dtype=torch.long)
    refused = torch.zeros_like(tokens, dtype=torch.bool)
    rows, decided = torch.zeros(images, dtype=torch.long), torch.zeros(images, 1, dtype=torch.long)
    active, accepted = torch.arange(images), 0.0
    for rounds in range(TOKENS):
        roots = Roots(rows[active], decided[active], rounds)
        tree, verdict = one_round(
            drafter, TREES[cell.tree], cell.proposal, cell.verifier, subset(everyone, active), roots
        )
        if rounds == 0:
            accepted = float(verdict.accepted.sum())
        count = verdict.accepted + 1
        for step in range(int(count.max())):
            image = active[count > step]
            emitted = verdict.emitted[count > step, step]
            rows[image] = rows[image] * VOCAB + 1 + emitted
            tokens[image, decided[image, 0] + step] = emitted
        last = verdict.path.gather(1, verdict.accepted[:, None])
        had_children = ((tree.parents == last) & tree.present & (tree.depths > 0)).any(1)
        refused[active, decided[active, 0] + count - 1] = had_children
        decided[active, 0] += count
        active = active[decided[active, 0] < TOKENS]
        if not len(active):
            break
    return tokens[:, :TOKENS], refused[:, :TOKENS], accepted


def subset(noise: NoiseTable, images: Tensor) -> NoiseTable:
    """Return the noise of some of the images."""
    some = NoiseTable(noise.shape, 0)
    some.table, some.seeds = noise.table[images], [noise.seeds[i] for i in images.tolist()]
    some.keys = noise.keys[images]
    return some


@contextmanager
def fast() -> Iterator[None]:
    """Without garbage collection; few distributions come up, so each is computed once."""

    @cache
    def ratio(p: bytes, q: bytes, count: int) -> float:
        return selection_ratio(np.frombuffer(p), np.frombuffer(q), count)

    compute = host.softmax

    @cache
    def softmax(log_weights: bytes) -> Array:
        return compute(np.frombuffer(log_weights))

    def ratio_of(p: Array, q: Array, count: int) -> float:
        return ratio(p.tobytes(), q.tobytes(), count)

    gc.disable()
    try:
        with (
            patch.object(spectr, "selection_ratio", ratio_of),
            patch.object(host, "softmax", lambda w: softmax(w.tobytes()).copy()),
        ):
            yield
    finally:
        gc.enable()


def outcome(cell: Cell, images: int, first_seed: int = 0) -> Outcome:
    """Decode images of a cell and test their distribution."""
    with fast(), cell.broken():
        seeds = range(first_seed, first_seed + images)
        chunks = [decode(cell, seeds[at : at + CHUNK]) for at in range(0, images, CHUNK)]
    tokens = torch.cat([chunk[0] for chunk in chunks])
    refused = torch.cat([chunk[1] for chunk in chunks])
    accepted = sum(chunk[2] for chunk in chunks) / images
    p = QS[cell.q].joint(TOKENS)
    counts = outcome_counts(tokens, VOCAB)
    # where nodes are kept by the target's noise, it says what will be refused and what follows
    by_noise = cell.rule == "exact" and (cell.proposal, cell.tree) == ("coupled", "pruned")
    after = 1.0 if by_noise else p_value(*after_refusals(QS[cell.q], tokens, refused))
    distance = float((counts / images - p).abs().sum() / 2)
    scatter = float((2 / torch.pi * p * (1 - p) / images).sqrt().sum() / 2)
    return Outcome(p_value(counts, p), after, distance, scatter, accepted)


def after_refusals(laws: Unfavourable, tokens: Tensor, refused: Tensor) -> tuple[Tensor, Tensor]:
    """Counts and the target's p (prefixes, vocab) of tokens after prefixes with a refusal last."""
    counts, p, first = [], [], 1
    for length in range(1, tokens.shape[1]):
        prefixes = VOCAB**length
        kept = refused[:, length - 1]
        following = outcome_counts(tokens[kept, : length + 1], VOCAB)
        counts.append(following.view(prefixes, VOCAB))
        p.append(laws.log_p[first : first + prefixes].exp())
        first += prefixes
    return torch.cat(counts), torch.cat(p)


def row(cell: Cell, result: Outcome) -> str:
    """A row of the table: p of all tokens and after refusals, distance (and scatter), accepted."""
    verdict = "exact" if result.exact else "WRONG" if result.wrong else "unsure"
    return (
        f"{verdict:6} {result.p_value:8.1e} {result.after_refusal:8.1e}  {result.distance:.4f} "
        f"({result.scatter:.4f})  {result.accepted:.2f}  {cell}"
    )


class Keeps(Rejection):
    """Leaves refused children in the distribution."""

    def choose_child(self, tree: ImageTree, node: int, noise: HostNoise) -> tuple:
        child, left = super().choose_child(tree, node, noise)
        return child, tree.p(node) if child is None else left


class KeepsRest(Traversal):
    """Refuses a leaf and leaves the target's distribution as it is."""

    def refuse(self, weight: float, p: Array, q: Array) -> tuple[float, Array]:
        return super().refuse(weight, p, q)[0], p


class ForgetsBranch(Traversal):
    """Gives the next sibling the chance of a first one."""

    def refuse(self, weight: float, p: Array, q: Array) -> tuple[float, Array]:
        return weight, super().refuse(weight, p, q)[1]


class BlockKeepsRest(BlockVerification, KeepsRest):
    """Block verification with the wrong rest."""


def shared_by_cousins() -> AbstractContextManager:
    """All children of a level are drawn with the same numbers."""
    draft = NoiseTable.draft

    def level_wise(noise: NoiseTable, keys: Tensor, at: Tensor, parents: Tensor) -> Tensor:
        return draft(noise, keys, at, torch.zeros_like(parents))

    return patch.object(NoiseTable, "draft", level_wise)


def accepts_with(role: str) -> AbstractContextManager:
    """Drafts are accepted with numbers of another stream."""
    key = property(lambda noise: stream_key(noise.seed, role))
    return patch.object(HostNoise, "_accept_key", key)


def residual_is_target() -> AbstractContextManager:
    """What is left of p is drawn from with the target's noise, which drafts were chosen with."""

    def judged(rule: Walk, tree: ImageTree, noise: HostNoise) -> tuple[list[int], Array]:
        path, left = judge(rule, tree, noise)
        with np.errstate(divide="ignore"):
            choice = int((np.log(left) + noise.target(len(path) - 1)).argmax())
        return path, point_mass(choice, len(left))

    judge = Walk.judge
    return patch.object(Walk, "judge", judged)


def control(name: str, verifier: Verifier, where: str, broken: Callable = nullcontext) -> Cell:
    """Return a cell with a planted fault."""
    proposal, tree, q = where.split(", ")
    return Cell(f"{name}: {verifier.name}", proposal, tree, q, verifier, broken)


TARGET, DRAWS = partial(accepts_with, "target"), partial(accepts_with, "draft 0")
P_STAYS = partial(patch.object, sampled, "residual", lambda p, q: p)
RATIO_1 = partial(patch.object, spectr, "selection_ratio", lambda *_: 1.0)
# Each has to fail: the test could not see that fault otherwise.
CONTROLS = (
    control("cousins share noise", Traversal(), "sampled, cousins, blind", shared_by_cousins),
    control("target's noise draws", Rejection(), "coupled, chain, blind", residual_is_target),
    control("target's noise accepts", Rejection(), "coupled, siblings, near", TARGET),
    control("draws' noise accepts", Sampled(), "sampled, chain, blind", DRAWS),
    control("draws' noise accepts", Traversal(), "sampled, siblings, blind", DRAWS),
    control("the refused stay", Keeps(), "topk, siblings, near"),
    control("p stays", Sampled(), "sampled, siblings, near", P_STAYS),
    control("p stays", KeepsRest(), "sampled, cousins, near"),
    control("p stays", BlockKeepsRest(), "sampled, chain, near"),
    control("a refused branch is forgotten", ForgetsBranch(), "sampled, three levels, disjoint"),
    control("min(1, p / q) of every draw", SpecTr(), "sampled, siblings, near", RATIO_1),
    control("path by path", PathExplore(), "sampled, cousins, near"),
    control("pruned by value", Sampled(), "sampled, pruned, near"),
)


def names(cell: Cell) -> dict[str, str]:
    """Return what identifies a cell in the stored table."""
    return {"rule": cell.rule, "proposal": cell.proposal, "tree": cell.tree, "q": cell.q}


def tried(cell: int, images: int) -> Outcome:
    """Compute the outcome of a cell by its number, in a process of its own."""
    torch.set_num_threads(1)
    return outcome((*CONTROLS, *cells())[cell], images)


def sample(images: int, output: str) -> None:
    """Sample whole rounds of every cell and control, and write a table.

    Args:
        images: per cell.
        output: JSON file.
    """
    every, table = (*CONTROLS, *cells()), []
    with Pool(2) as pool:
        found = pool.imap(partial(tried, images=images), range(len(every)))
        for cell, result in zip(every, found, strict=True):
            print(row(cell, result), flush=True)
            cause = {"control": cell in CONTROLS, "images": images}
            table.append(names(cell) | cause | asdict(result))
    # a cell a line, so that changes show
    rows = ",\n".join(json.dumps(line) for line in table)
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"tokens": {TOKENS}, "vocabulary": {VOCAB}, "cells": [\n{rows}\n]}}\n')


if __name__ == "__main__":
    run_script(sample)
