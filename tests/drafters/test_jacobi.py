"""The training-free drafter remembers the branch that shares most of the accepted path."""

import pytest
import torch
from fakes import tree_of
from memory import Rounds, rounds_of, verdict_of
from torch import Tensor

from decoding.round import TreeShape
from drafters.jacobi import JacobiDrafter
from models.base import ImageVocab

VOCAB = 4


def drafter(guess: str = "above") -> Rounds:
    return rounds_of(JacobiDrafter, ImageVocab(0, VOCAB), TreeShape(0, 1, 6, 6), guess)


def distributions(nodes: int, first: float = 0.0) -> Tensor:
    """Distributions (1, nodes, vocab) that can be told from each other by their first entry."""
    names = first + torch.arange(nodes, dtype=torch.float64)
    rest = torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64).expand(nodes, -1)
    return torch.cat([names[:, None], rest], 1)[None]


TREE = tree_of([0] * 8, [0, 0, 0, 1, 2, 3, 4, 6])


def test_distributions_come_from_the_branch_that_shares_most_of_the_accepted_path() -> None:
    """Node 1 is accepted; its branch 1-3-5 is renewed, not the longer one below node 2."""
    rounds = drafter()
    rounds.observe(TREE, distributions(8, 10), verdict_of([[0, 1]], 8))
    assert rounds.decided == [3]  # node 1 and the bonus token
    assert rounds.drafter.reached.item() == 4
    assert rounds.names()[:2] == [13, 15]  # after nodes 3 and 5: positions 3 and 4


@pytest.mark.parametrize(
    ("guess", "expected"),
    # positions 3 and 4 are known; 5 to 8: above them 0 (without distribution), 1, 2, 3
    [
        ("above", [13, 15, 15, 10, 11, 13]),
        ("left", [13, 15] + 4 * [15]),
        ("random", [13, 15] + 4 * [None]),
    ],
)
def test_positions_that_no_pass_has_reached(guess, expected) -> None:
    rounds = drafter(guess)
    rounds.observe(TREE, distributions(8, 10), verdict_of([[0, 1]], 8))
    uniform = pytest.approx(-torch.tensor(VOCAB).log().item())
    assert rounds.names() == [uniform if name is None else name for name in expected]


def test_a_later_round_renews_and_never_forgets() -> None:
    """After a rejected draft the branch is the tree's; a shorter one leaves far positions."""
    rounds = drafter()
    rounds.observe(tree_of([0] * 5, [0, 0, 1, 2, 3]), distributions(5), verdict_of([[0]], 5))
    assert (rounds.decided, rounds.names()[:4]) == ([2], [1, 2, 3, 4])
    rounds.observe(tree_of([0] * 2, [0, 0]), distributions(2, 20), verdict_of([[0, 1]], 2))
    assert (rounds.decided, rounds.names()[:2]) == ([4], [3, 4])
