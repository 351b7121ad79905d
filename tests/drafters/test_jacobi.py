"""What the training-free drafter remembers: the distributions along the branch that shares most of
the accepted path.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from drafters.jacobi import JacobiDrafter
from models.base import ImageGrid, ImageVocab

VOCAB = 4


def drafter(guess: str = "above", window: int = 6, images: int = 1) -> JacobiDrafter:
    cpu = torch.device("cpu")
    target = SimpleNamespace(
        grid=ImageGrid(4, 5),
        vocab=ImageVocab(0, VOCAB),
        device=cpu,
        dtype=torch.float64,
        name="made",
    )
    found = JacobiDrafter(target, window, guess)
    found.open(images, Stopwatch(cpu))
    return found


def distribution(name: float) -> Tensor:
    """A distribution that can be told from others."""
    return torch.tensor([name, 0.0, 1.0, 2.0], dtype=torch.float64)


def tree_of(parents: list[int]) -> DraftTree:
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    size = torch.zeros(1, len(parents), dtype=torch.long)
    return DraftTree(
        size, torch.tensor([parents]), torch.tensor([depths]), size.double(), height=max(depths)
    )


def verdict(path: list[int], nodes: int, rest: int | None = None) -> Verdict:
    """The accepted path, from the root on; the other entries are rubbish, or one node again and
    again.
    """
    entries = torch.tensor([path + [nodes if rest is None else rest] * (nodes + 1 - len(path))])
    return Verdict(torch.tensor([len(path) - 1]), entries, entries)


def names(distributions: Tensor) -> list[float]:
    return distributions[0, :, 0].tolist()


def test_distributions_come_from_the_branch_that_shares_most_of_the_accepted_path() -> None:
    """Node 1 is accepted; its branch 1-3-5 is renewed, not the longer one below node 2."""
    found = drafter()
    tree = tree_of([0, 0, 0, 1, 2, 3, 4, 6])
    found.observe(
        tree, torch.stack([distribution(10 + n) for n in range(8)])[None], verdict([0, 1], 7)
    )
    assert found.root.item() == 2  # node 1 and the bonus token
    assert found.reached.item() == 4
    assert names(found.foresee())[:2] == [13, 15]  # after nodes 3 and 5: positions 3 and 4


def test_entries_behind_the_accepted_path_mean_nothing() -> None:
    """A walk repeats the last node for images that are done while others go on."""
    tree, distributions = (
        tree_of([0, 0, 0, 1, 2, 3, 4, 6]),
        torch.stack([distribution(10 + n) for n in range(8)])[None],
    )
    once, again = drafter(), drafter()
    once.observe(tree, distributions, verdict([0, 1], 7))
    again.observe(tree, distributions, verdict([0, 1], 7, rest=1))
    assert torch.equal(once.foresee(), again.foresee())


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
    found = drafter(guess)
    tree = tree_of([0, 0, 0, 1, 2, 3, 4, 6])
    found.observe(
        tree, torch.stack([distribution(10 + n) for n in range(8)])[None], verdict([0, 1], 7)
    )
    uniform = pytest.approx(-torch.tensor(VOCAB).log().item())
    assert names(found.foresee()) == [uniform if name is None else name for name in expected]


def test_an_image_starts_without_distributions() -> None:
    found = drafter("above")
    assert torch.allclose(found.foresee().exp(), torch.tensor(1 / VOCAB, dtype=torch.float64))


def test_a_later_round_renews_and_never_forgets() -> None:
    """After a rejected first draft the branch is as long as the tree; a shorter tree leaves the far
    distributions.
    """
    found = drafter()
    chain = tree_of([0, 0, 1, 2, 3])
    found.observe(chain, torch.stack([distribution(n) for n in range(5)])[None], verdict([0], 4))
    assert (found.root.item(), names(found.foresee())[:4]) == (1, [1, 2, 3, 4])
    found.observe(
        tree_of([0, 0]), torch.stack([distribution(20), distribution(21)])[None], verdict([0, 1], 1)
    )
    assert (found.root.item(), names(found.foresee())[:2]) == (3, [3, 4])


def test_the_images_end_is_no_trouble() -> None:
    """Distributions after the last position are dropped, not written over others."""
    found = drafter(window=30)
    found.root += 17
    found.observe(
        tree_of([0, 0, 1, 2]),
        torch.stack([distribution(n) for n in range(4)])[None],
        verdict([0], 3),
    )
    assert names(found._distributions(torch.tensor([[18, 19]]))) == [0.0, 1.0]
    assert found.foresee().shape == (1, 30, VOCAB)
    found.start(0, None, None, None)  # the next image begins with the uniform distribution
    assert torch.allclose(found.foresee().exp(), torch.tensor(1 / VOCAB, dtype=torch.float64))


def test_images_of_a_batch_go_their_own_ways() -> None:
    found, alone = drafter(images=2), [drafter(), drafter()]
    tree = tree_of([0, 0, 0, 1, 2, 3, 4, 6])
    distributions = [
        torch.stack([distribution(100 * image + n) for n in range(8)]) for image in range(2)
    ]
    paths = [[0, 1], [0, 2, 4]]
    both = [verdict(path, 7) for path in paths]
    for single, own, judged in zip(alone, distributions, both, strict=True):
        single.observe(tree, own[None], judged)
    joined = Verdict(
        *(torch.cat([getattr(v, n) for v in both]) for n in ("accepted", "path", "emitted"))
    )
    twice = DraftTree(
        *(torch.cat([t, t]) for t in (tree.tokens, tree.parents, tree.depths, tree.scores)),
        tree.height,
    )
    found.observe(twice, torch.stack(distributions), joined)
    for image in range(2):
        assert torch.equal(found.foresee()[image], alone[image].foresee()[0])
    found.select([1])
    assert torch.equal(found.foresee(), alone[1].foresee())
