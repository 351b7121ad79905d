"""What is recalled by similarity: the mean over the nodes of the last tree, by definition."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from drafters.jacobi import JacobiDrafter
from drafters.likeness import SHARPNESS
from drafters.similar import SHARE, TRUST_ALONE, TRUST_MIXED, SimilarDrafter
from models.base import ImageGrid, ImageVocab

VOCAB, TEXT = 6, 2  # codes, and ids before them
GENERATOR = torch.Generator().manual_seed(0)
EMBEDDING = torch.randn(TEXT + VOCAB, 5, generator=GENERATOR, dtype=torch.float64)
Path = tuple[int, ...]
ROOT = torch.zeros(1, 1, dtype=torch.long)


def target() -> SimpleNamespace:
    return SimpleNamespace(
        grid=ImageGrid(4, 5),
        vocab=ImageVocab(TEXT, VOCAB),
        device=torch.device("cpu"),
        dtype=torch.float64,
        embedding=lambda: EMBEDDING,
    )


def drafter(kind: type[JacobiDrafter] = SimilarDrafter, images: int = 1) -> JacobiDrafter:
    found = kind(target(), 6, "above")
    found.open(images, Stopwatch(torch.device("cpu")))
    for image in range(images):
        found.start(image, None, None, torch.tensor([3]))
    return found


def tree_of(tokens: list[int], parents: list[int], absent: tuple[int, ...] = ()) -> DraftTree:
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    scores = torch.zeros(1, len(tokens), dtype=torch.float64)
    scores[:, list(absent)] = -torch.inf
    rows = (torch.tensor([values]) for values in (tokens, parents, depths))
    return DraftTree(*rows, scores, height=max(depths))


def predictions(nodes: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(1, nodes, VOCAB, generator=generator, dtype=torch.float64).log_softmax(-1)


def verdict(tree: DraftTree, path: list[int], bonus: int) -> Verdict:
    """The accepted path, from the root on, and the bonus token; other entries mean nothing."""
    rest = [0] * (tree.nodes + 1 - len(path))
    emitted = [int(tree.tokens[0, node]) for node in path[1:]] + [bonus]
    entries = torch.tensor([path + rest])
    return Verdict(torch.tensor([len(path) - 1]), entries, torch.tensor([emitted + rest]))


def expected(tokens: Path, others: dict[Path, Tensor]) -> Tensor:
    """Softmax-weighted mean of predictions (vocab,) by the last tokens that they were made after;
    paths end with the newest token.
    """
    merits = []
    for path in others:
        merit = 0.0
        for back, sharpness in enumerate(SHARPNESS, 1):
            pair = EMBEDDING[TEXT + tokens[-back]], EMBEDDING[TEXT + path[-back]]
            merit += sharpness * torch.cosine_similarity(*pair, dim=0)
        merits.append(merit)
    weights = torch.stack(merits).softmax(0)
    return (weights[:, None] * torch.stack(list(others.values()))).sum(0).log_softmax(-1)


# After code 3 the tree 3 -> (1 -> (4, 5), 2 -> 0); the target chose 1 and then 2.
TREE = tree_of([3, 1, 2, 4, 5, 0], [0, 0, 0, 1, 1, 2])
LOG_P = predictions(6, 1)


def observed(tree: DraftTree = TREE) -> SimilarDrafter:
    found = drafter()
    found.observe(tree, LOG_P[:, : tree.nodes + 1], verdict(tree, [0, 1], 2))
    return found


def test_the_root_recalls_all_nodes_in_its_place() -> None:
    root = DraftTree.root(torch.tensor([2]), torch.float64)
    found = observed().recall(root, ROOT)
    others = {(3, 1, 4): LOG_P[0, 3], (3, 1, 5): LOG_P[0, 4], (3, 2, 0): LOG_P[0, 5]}
    torch.testing.assert_close(found.log_q[0, 0], expected((3, 1, 2), others))


def test_absent_nodes_are_not_recalled() -> None:
    tree = tree_of([3, 1, 2, 4, 5, 0], [0, 0, 0, 1, 1, 2], absent=(4, 5))
    root = DraftTree.root(torch.tensor([2]), torch.float64)
    log_q = observed(tree).expand(root, ROOT)
    torch.testing.assert_close(log_q[0, 0], LOG_P[0, 3])


def test_nodes_below_the_root_recall_by_their_own_path() -> None:
    """A round that accepts nothing leaves the deeper nodes of its tree in the next one's places."""
    found = drafter()
    found.observe(TREE, LOG_P, verdict(TREE, [0], 5))  # the target chose 5, which nobody drafted
    root = found.expand(DraftTree.root(torch.tensor([5]), torch.float64), ROOT)
    beside = {(3, 3, 1): LOG_P[0, 1], (3, 3, 2): LOG_P[0, 2]}
    # before the first code nothing is known: both read the same there
    recent = {(0, *path[1:]): value for path, value in beside.items()}
    torch.testing.assert_close(root[0, 0], expected((0, 3, 5), recent))
    log_q = found.expand(tree_of([5, 0, 4], [0, 0, 0]), torch.tensor([[2, 1]]))
    deeper = {(3, 1, 4): LOG_P[0, 3], (3, 1, 5): LOG_P[0, 4], (3, 2, 0): LOG_P[0, 5]}
    for own, code in zip(log_q[0], (4, 0), strict=True):
        torch.testing.assert_close(own, expected((3, 5, code), deeper))


def test_places_that_the_last_tree_has_not_reached_are_jacobis() -> None:
    tree, plain = tree_of([2, 0, 4], [0, 0, 0]), drafter(JacobiDrafter)
    plain.observe(TREE, LOG_P, verdict(TREE, [0, 1], 2))
    found = observed()
    one, other = (each.recall(tree, torch.tensor([[1, 2]])) for each in (found, plain))
    torch.testing.assert_close(one.log_q, other.log_q)
    assert torch.equal(one.share, other.share.expand_as(one.share))
    assert (one.trust == 1).all() and other.trust is None
    assert torch.equal(found.foresee(), plain.foresee())


def test_codes_that_every_prediction_excludes_stay_nearly_impossible() -> None:
    cut = LOG_P.masked_fill(torch.arange(VOCAB) == 4, -torch.inf)
    found = drafter()
    found.observe(TREE, cut, verdict(TREE, [0, 1], 2))
    root = DraftTree.root(torch.tensor([2]), torch.float64)
    log_q = found.expand(root, ROOT)
    assert log_q.isfinite().all() and log_q[0, 0, 4] < -50


def test_images_of_a_batch_go_their_own_ways() -> None:
    found, second = drafter(images=2), predictions(6, 2)
    verdicts = verdict(TREE, [0, 1], 2), verdict(TREE, [0, 2, 5], 1)
    names = "accepted", "path", "emitted"
    joined = Verdict(*(torch.cat([getattr(v, name) for v in verdicts]) for name in names))
    fields = TREE.tokens, TREE.parents, TREE.depths, TREE.scores
    twice = DraftTree(*(torch.cat([values, values]) for values in fields), TREE.height)
    found.observe(twice, torch.cat([LOG_P, second]), joined)
    alone = drafter()
    alone.observe(TREE, second, verdicts[1])
    root = DraftTree.root(torch.tensor([1]), torch.float64)
    for trees in (root, tree_of([1, 0], [0, 0])):
        both = DraftTree(
            *(torch.cat([v, v]) for v in (trees.tokens, trees.parents, trees.depths, trees.scores)),
            trees.height,
        )
        log_q = found.expand(both, torch.full((2, 1), trees.height))
        wanted = alone.expand(trees, torch.full((1, 1), trees.height))
        torch.testing.assert_close(log_q[1], wanted[0])
    found.select([1])
    torch.testing.assert_close(found.expand(root, ROOT), alone.expand(root, ROOT))


@pytest.mark.parametrize("image", [0, 1])
def test_a_new_image_recalls_nothing_of_the_one_before(image) -> None:
    found = drafter(images=2)
    fields = TREE.tokens, TREE.parents, TREE.depths, TREE.scores
    twice = DraftTree(*(torch.cat([values, values]) for values in fields), TREE.height)
    one = verdict(TREE, [0, 1], 2)
    names = "accepted", "path", "emitted"
    found.observe(
        twice,
        torch.cat([LOG_P, LOG_P]),
        Verdict(*(torch.cat([getattr(one, name)] * 2) for name in names)),
    )
    found.start(image, None, None, torch.tensor([1]))
    root = DraftTree.root(torch.tensor([2, 2]), torch.float64)
    share = found.recall(root, torch.zeros(2, 1, dtype=torch.long)).share
    assert (share[:, 0] == 0).tolist() == [image == 0, image == 1]


def likeness(tokens: Path, path: Path) -> float:
    """The cosines of the last tokens, weighted by their sharpness; 1 for the same tokens."""
    cosine = torch.nn.functional.cosine_similarity
    pairs = zip(SHARPNESS, tokens[::-1], path[::-1], strict=True)
    merits = [s * cosine(EMBEDDING[TEXT + a], EMBEDDING[TEXT + b], dim=0) for s, a, b in pairs]
    return float(sum(merits)) / sum(SHARPNESS)


def test_more_similar_nodes_have_a_greater_share_and_are_trusted_more() -> None:
    found, root = observed(), DraftTree.root(torch.tensor([2]), torch.float64)
    recalled = found.recall(root, ROOT)
    m = max(likeness((3, 1, 2), path) for path in [(3, 1, 4), (3, 1, 5), (3, 2, 0)])
    assert recalled.share.item() == pytest.approx(min(max(SHARE[0] + SHARE[1] * m, 0), 1))
    assert recalled.trust.item() == pytest.approx(math.exp(TRUST_MIXED[1] * max(m, 0) ** 3))
    found.expand(root, ROOT)
    least, slope = TRUST_ALONE
    assert found.trust.item() == pytest.approx(math.exp(least + slope * max(m, 0) ** 3))


def test_the_same_tokens_are_recalled_nearly_alone() -> None:
    """The target's choice was drafted as another node's child: the prediction after it is its."""
    found = drafter()
    found.observe(TREE, LOG_P, verdict(TREE, [0], 2))
    root = DraftTree.root(torch.tensor([2]), torch.float64)
    recalled = found.recall(root, ROOT)
    assert recalled.share.item() > 0.9 and recalled.trust.item() > 5
