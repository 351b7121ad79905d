"""What is recalled by similarity: the mean over the nodes of the last tree, by definition."""

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from fakes import tree_of
from memory import Rounds, rounds_of, verdict_of
from torch import Tensor

from decoding.proposals import TopK
from decoding.round import TreeShape
from decoding.tree import DraftTree, GrowingTree
from drafters.jacobi import JacobiDrafter
from drafters.recall import CANDIDATES, FITTED_TO_TINY, RecallDrafter
from drafters.recall import SHARE as BY_POSITION
from drafters.similarity import SHARPNESS
from models.base import ImageVocab

SHARE, TRUST_MIXED, TRUST_ALONE = vars(FITTED_TO_TINY).values()
VOCAB, TEXT = 6, 2  # codes, and ids before them
GENERATOR = torch.Generator().manual_seed(0)
EMBEDDING = torch.randn(TEXT + VOCAB, 5, generator=GENERATOR, dtype=torch.float64)
Path = tuple[int, ...]
ROOT = torch.zeros(1, 1, dtype=torch.long)


RANKING = partial(RecallDrafter, proposal=TopK())  # whose drafts come with their distributions


def drafter(kind: Callable[..., JacobiDrafter] = RANKING) -> Rounds:
    shape = TreeShape(6, 3, 9, 6)
    rounds = rounds_of(kind, ImageVocab(TEXT, VOCAB), shape, embedding=EMBEDDING)
    rounds.drafter.prefill(0, None, None, torch.tensor([3]))
    return rounds


def growing(code: int, *children: int) -> GrowingTree:
    """A root of this code, and a level of children below it."""
    tree = GrowingTree.root(torch.tensor([code]), torch.float64)
    if children:
        scores = -torch.ones(1, 1, len(children), dtype=torch.float64)
        tree = tree.extend(ROOT, torch.tensor([[children]]), scores)
    return tree


def predictions(nodes: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, nodes, VOCAB, generator=generator, dtype=torch.float64).log_softmax(-1)


def similarity(tokens: Path, path: Path) -> float:
    """The cosines of the last tokens, weighted by their sharpness; 1 for the same tokens."""
    cosine = torch.nn.functional.cosine_similarity
    pairs = zip(SHARPNESS, tokens[::-1], path[::-1], strict=True)
    merits = [s * cosine(EMBEDDING[TEXT + a], EMBEDDING[TEXT + b], dim=0) for s, a, b in pairs]
    return float(sum(merits)) / sum(SHARPNESS)


def expected(tokens: Path, others: dict[Path, Tensor]) -> Tensor:
    """Softmax-weighted mean of predictions (vocab,); paths end with the newest token."""
    similarities = torch.tensor([similarity(tokens, path) for path in others], dtype=torch.float64)
    weights = (sum(SHARPNESS) * similarities).softmax(0)
    return (weights[:, None] * torch.stack(list(others.values()))).sum(0).log_softmax(-1)


# After code 3 the tree 3 -> (1 -> (4, 5), 2 -> 0); the target chose 1 and then 2.
TREE = tree_of([3, 1, 2, 4, 5, 0], [0, 0, 0, 1, 1, 2])
LOG_P = predictions(6, 1)


def observed(tree: DraftTree = TREE, log_p: Tensor = LOG_P, path=(0, 1), bonus: int = 2) -> Rounds:
    rounds = drafter()
    rounds.observe(tree, log_p, verdict_of([list(path)], 6, tree, (bonus,)))
    return rounds


def test_the_root_recalls_all_nodes_at_its_position() -> None:
    rounds = observed()
    log_q = rounds.drafter.expand(growing(2), ROOT, rounds.round()).log_q
    others = {(3, 1, 4): LOG_P[0, 3], (3, 1, 5): LOG_P[0, 4], (3, 2, 0): LOG_P[0, 5]}
    torch.testing.assert_close(log_q[0, 0], expected((3, 1, 2), others))


def test_absent_nodes_are_not_recalled() -> None:
    rounds = observed(tree_of([3, 1, 2, 4, 5, 0], [0, 0, 0, 1, 1, 2], absent=(4, 5)))
    log_q = rounds.drafter.expand(growing(2), ROOT, rounds.round()).log_q
    torch.testing.assert_close(log_q[0, 0], LOG_P[0, 3])


def test_candidates_below_the_root_recall_by_their_own_path() -> None:
    """A round that accepts nothing (the target chose 5) leaves deeper nodes to the next one."""
    rounds = observed(path=(0,), bonus=5)
    window = rounds.drafter.recall_window(rounds.round()).drafts
    beside = {(3, 3, 1): LOG_P[0, 1], (3, 3, 2): LOG_P[0, 2]}
    # before the first code nothing is known: both read the same there
    recent = {(0, *path[1:]): value for path, value in beside.items()}
    root = expected((0, 3, 5), recent)
    torch.testing.assert_close(window.draft.log_q[0, 0], root.expand(CANDIDATES, -1))
    assert window.codes[0, 1].tolist() == root.topk(CANDIDATES).indices.tolist()
    deeper = {(3, 1, 4): LOG_P[0, 3], (3, 1, 5): LOG_P[0, 4], (3, 2, 0): LOG_P[0, 5]}
    for recalled, code in zip(window.draft.log_q[0, 1], window.codes[0, 1].tolist(), strict=True):
        torch.testing.assert_close(recalled, expected((3, 5, code), deeper))


def test_nodes_read_what_stands_after_their_tokens() -> None:
    """A token that is no candidate reads the best one's; with a head beside it, nothing."""
    rounds = observed(path=(0,), bonus=5)
    found, round = rounds.drafter, rounds.round()
    window = found.recall_window(round).drafts
    best, other = window.codes[0, 1, :2].tolist()
    (missing,) = {*range(VOCAB)} - {*window.codes[0, 1].tolist()}
    tree, picked = growing(5, missing, other, best), torch.tensor([[0, 1, 2]])
    log_q = found.expand(tree, picked, round).log_q[0]
    torch.testing.assert_close(log_q, window.draft.log_q[0, 1, [0, 1, 0]])
    draft, share = found.recall(tree, picked, round)
    assert share[0, 0] == 0 != share[0, 1]
    assert draft.trust[0, 0] == 1
    torch.testing.assert_close(draft.log_q[0], log_q)


def test_positions_that_the_last_tree_has_not_reached_are_jacobis() -> None:
    rounds, plain = observed(), drafter(JacobiDrafter)
    plain.observe(TREE, LOG_P, verdict_of([[0, 1]], 6, TREE, (2,)))
    for each in (rounds, plain):
        each.drafter.reached.fill_(4)  # by an earlier, deeper tree
    round = rounds.round()
    recalled = rounds.drafter.recall_window(round)
    assert recalled.known[0].tolist() == [True] + [False] * 5
    by_position = plain.ahead()[:, 1:, None].expand(-1, -1, CANDIDATES, -1)
    torch.testing.assert_close(recalled.drafts.draft.log_q[:, 1:], by_position)
    code = recalled.drafts.codes[0, 1, 0].item()
    draft, share = rounds.drafter.recall(growing(2, code), ROOT, round)
    assert share.item() == pytest.approx(BY_POSITION)
    assert draft.trust.item() == 1


def test_codes_that_every_prediction_excludes_stay_nearly_impossible() -> None:
    rounds = observed(log_p=LOG_P.masked_fill(torch.arange(VOCAB) == 4, -torch.inf))
    log_q = rounds.drafter.expand(growing(2), ROOT, rounds.round()).log_q
    assert log_q.isfinite().all() and log_q[0, 0, 4] < -50


def test_more_similar_nodes_have_a_greater_share_and_are_trusted_more() -> None:
    rounds = observed()
    draft, share = rounds.drafter.recall(growing(2), ROOT, rounds.round())
    m = max(similarity((3, 1, 2), path) for path in [(3, 1, 4), (3, 1, 5), (3, 2, 0)])
    assert share.item() == pytest.approx(min(max(SHARE[0] + SHARE[1] * m, 0), 1))
    trust = draft.trust.item()
    assert trust == pytest.approx(math.exp(TRUST_MIXED[1] * max(m, 0) ** 3))
    least, slope = TRUST_ALONE
    alone = rounds.drafter.expand(growing(2), ROOT, rounds.round()).trust.item()
    assert alone == pytest.approx(math.exp(least + slope * max(m, 0) ** 3))


def test_a_model_of_few_codes_has_as_many_candidates() -> None:
    rounds = rounds_of(RANKING, ImageVocab(0, 3), TreeShape(3, 3, 6), embedding=EMBEDDING[:3])
    rounds.drafter.prefill(0, None, None, torch.tensor([1]))
    assert rounds.drafter.recall_window(rounds.round()).drafts.codes.shape == (1, 3, 3)
