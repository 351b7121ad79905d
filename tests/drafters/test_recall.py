"""What is recalled by similarity: the mean over the nodes of the last tree, by definition."""

import math

import pytest
import torch
from fakes import tree_of
from memory import Rounds, rounds_of, verdict_of
from torch import Tensor

from decoding.proposals import Predictions, Proposal, TopK
from decoding.round import Round, TreeShape
from decoding.tree import DraftTree, GrowingTree
from drafters.jacobi import JacobiDrafter
from drafters.recall import CANDIDATES, FITTED_TO_TINY, RecallDrafter
from drafters.recall import SHARE as BY_POSITION
from drafters.similarity import COSINE_WEIGHTS
from models.base import ImageVocab

SHARE, MIXED, ALONE = vars(FITTED_TO_TINY).values()
VOCAB, TEXT = 6, 2  # codes, and ids before them
GENERATOR = torch.Generator().manual_seed(0)
EMBEDDING = torch.randn(TEXT + VOCAB, 5, generator=GENERATOR, dtype=torch.float64)
Path = tuple[int, ...]
ROOT = torch.zeros(1, 1, dtype=torch.long)


def drafter(kind: type[JacobiDrafter] = RecallDrafter) -> Rounds:
    shape = TreeShape(6, 3, 9, 6)
    rounds = rounds_of(kind, ImageVocab(TEXT, VOCAB), shape, embedding=EMBEDDING)
    rounds.drafter.prefill(0, None, None, torch.tensor([3]))
    rounds.code = 3
    return rounds


def begun(rounds: Rounds, proposal: Proposal = TopK()) -> Round:  # noqa: B008 (frozen)
    """A round whose window is drafted; with `topk`, candidates are not chosen by the noise."""
    round = rounds.round()
    rounds.drafter.begin(round, proposal)
    return round


def expand(rounds: Rounds, tree: GrowingTree, picked: Tensor = ROOT) -> Predictions:
    return rounds.drafter.expand(tree, picked, begun(rounds))


def mixed(rounds: Rounds, tree: GrowingTree, picked: Tensor = ROOT) -> tuple[Tensor, Tensor]:
    """How a drafter that stands beside mixes nodes: the shares and the sharpness."""
    mixing, window = rounds.drafter.mixing(), rounds.drafter.window
    candidates, is_candidate = window.look_up(tree, picked)
    sharpness, share, other = (values[:, tree.height] for values in mixing)
    share = share.gather(1, candidates).where(is_candidate, other)
    return share, sharpness.gather(1, candidates).where(is_candidate, 1)


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
    pairs = zip(COSINE_WEIGHTS, tokens[::-1], path[::-1], strict=True)
    terms = [s * cosine(EMBEDDING[TEXT + a], EMBEDDING[TEXT + b], dim=0) for s, a, b in pairs]
    return float(sum(terms)) / sum(COSINE_WEIGHTS)


def expected(tokens: Path, others: dict[Path, Tensor]) -> Tensor:
    """Softmax-weighted mean of predictions (vocab,); paths end with the newest token."""
    similarities = torch.tensor([similarity(tokens, path) for path in others], dtype=torch.float64)
    weights = (sum(COSINE_WEIGHTS) * similarities).softmax(0)
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
    log_q = expand(rounds, growing(2)).log_q
    others = {(3, 1, 4): LOG_P[0, 3], (3, 1, 5): LOG_P[0, 4], (3, 2, 0): LOG_P[0, 5]}
    torch.testing.assert_close(log_q[0, 0], expected((3, 1, 2), others))


def test_absent_nodes_are_not_recalled() -> None:
    rounds = observed(tree_of([3, 1, 2, 4, 5, 0], [0, 0, 0, 1, 1, 2], absent=(4, 5)))
    log_q = expand(rounds, growing(2)).log_q
    torch.testing.assert_close(log_q[0, 0], LOG_P[0, 3])


def test_candidates_below_the_root_recall_by_their_own_path() -> None:
    """A round that accepts nothing (the target chose 5) leaves deeper nodes to the next one."""
    rounds = observed(path=(0,), bonus=5)
    begun(rounds)
    window = rounds.drafter.window.result
    beside = {(3, 3, 1): LOG_P[0, 1], (3, 3, 2): LOG_P[0, 2]}
    # before the first code nothing is known: both read the same there
    recent = {(0, *path[1:]): value for path, value in beside.items()}
    root = expected((0, 3, 5), recent)
    torch.testing.assert_close(window.log_q[0, 0], root.expand(CANDIDATES, -1))
    assert window.codes[0, 1].tolist() == root.topk(CANDIDATES).indices.tolist()
    deeper = {(3, 1, 4): LOG_P[0, 3], (3, 1, 5): LOG_P[0, 4], (3, 2, 0): LOG_P[0, 5]}
    for recalled, code in zip(window.log_q[0, 1], window.codes[0, 1].tolist(), strict=True):
        torch.testing.assert_close(recalled, expected((3, 5, code), deeper))


def test_nodes_read_what_stands_after_their_tokens() -> None:
    """A token that is no candidate reads the best one's; with a head beside it, nothing."""
    rounds = observed(path=(0,), bonus=5)
    begun(rounds)
    window = rounds.drafter.window.result
    best, other = window.codes[0, 1, :2].tolist()
    (missing,) = {*range(VOCAB)} - {*window.codes[0, 1].tolist()}
    tree, picked = growing(5, missing, other, best), torch.tensor([[0, 1, 2]])
    log_q = expand(rounds, tree, picked).log_q[0]
    torch.testing.assert_close(log_q, window.log_q[0, 1, [0, 1, 0]])
    share, sharpness = mixed(rounds, tree, picked)
    assert share[0, 0] == 0 != share[0, 1]
    assert sharpness[0, 0] == 1


def test_positions_that_the_last_tree_has_not_reached_are_jacobis() -> None:
    rounds, plain = observed(), drafter(JacobiDrafter)
    plain.observe(TREE, LOG_P, verdict_of([[0, 1]], 6, TREE, (2,)))
    for each in (rounds, plain):
        each.drafter.reached.fill_(4)  # by an earlier, deeper tree
    begun(rounds)
    window = rounds.drafter.window.result
    by_position = plain.ahead()[:, 1:, None].expand(-1, -1, CANDIDATES, -1)
    torch.testing.assert_close(window.log_q[:, 1:], by_position)
    share, sharpness = mixed(rounds, growing(2, window.codes[0, 1, 0].item()))
    assert share.item() == pytest.approx(BY_POSITION)
    assert sharpness.item() == 1


def test_codes_that_every_prediction_excludes_stay_nearly_impossible() -> None:
    rounds = observed(log_p=LOG_P.masked_fill(torch.arange(VOCAB) == 4, -torch.inf))
    log_q = expand(rounds, growing(2)).log_q
    assert log_q.isfinite().all() and log_q[0, 0, 4] < -50


def test_more_similar_nodes_have_a_greater_share_and_sharper_estimates() -> None:
    rounds = observed()
    alone = expand(rounds, growing(2)).sharpness.item()
    share, sharpness = mixed(rounds, growing(2))
    m = max(similarity((3, 1, 2), path) for path in [(3, 1, 4), (3, 1, 5), (3, 2, 0)])
    assert share.item() == pytest.approx(min(max(SHARE[0] + SHARE[1] * m, 0), 1))
    assert sharpness.item() == pytest.approx(math.exp(MIXED[1] * max(m, 0) ** 3))
    assert alone == pytest.approx(math.exp(ALONE[0] + ALONE[1] * max(m, 0) ** 3))


def test_a_model_of_few_codes_has_as_many_candidates() -> None:
    vocab, shape = ImageVocab(0, 3), TreeShape(3, 3, 6)
    rounds = rounds_of(RecallDrafter, vocab, shape, embedding=EMBEDDING[:3])
    rounds.drafter.prefill(0, None, None, torch.tensor([1]))
    begun(rounds)
    assert rounds.drafter.window.result.codes.shape == (1, 3, 3)
