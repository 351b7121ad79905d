"""What the tables of n-grams propose: smoothed means after the same neighbours, by definition."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from test_similar import predictions, target, tree_of, verdict
from torch import Tensor

from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from drafters import ngram
from drafters.ngram import MEMORY, PRIOR, NgramDrafter, classes_of

VOCAB, COLUMNS = 6, 5
OUTSIDE = VOCAB
# After code 3 the tree 3 -> (1 -> (4, 5), 2 -> 0); the target chose 1 and then 2.
TREE = tree_of([3, 1, 2, 4, 5, 0], [0, 0, 0, 1, 1, 2])
LOG_P = predictions(6, 1)
# Of an image of 5 columns, more than its first row.
LONG = [3, 1, 2, 4, 5, 0, 1, 1, 2, 4]


def drafter(images: int = 1) -> NgramDrafter:
    found = NgramDrafter(target())
    begin(found, images)
    return found


def begin(found: NgramDrafter, images: int = 1) -> None:
    found.open(images, Stopwatch(torch.device("cpu")))
    for image in range(images):
        found.start(image, None, None, torch.tensor([3]))


def chain(tokens: list[int]) -> DraftTree:
    return tree_of(tokens, [0, *range(len(tokens) - 1)])


def neighbours(codes: list[int]) -> tuple[int, int, int]:
    """Left, above and above left of the code that comes after these."""
    place = len(codes)
    column = place % COLUMNS

    def at(back: int, there: bool) -> int:
        return codes[place - back] if there else OUTSIDE

    top = place < COLUMNS
    return at(1, column > 0), at(COLUMNS, not top), at(COLUMNS + 1, not top and column > 0)


class Reference:
    """The tables as dictionaries."""

    def __init__(self, classes: Tensor):
        self.classes = classes.tolist()
        self.known: list[dict] = [{}, {}, {}, {}]

    def contexts(self, codes: list[int]) -> Iterator[tuple]:
        near = neighbours(codes)
        alike = tuple(self.classes[code] for code in near)
        yield from ((), alike[:2], alike, near)

    def add(self, seen: list[tuple[list[int], Tensor]]) -> None:
        """What one round has predicted after these codes."""
        touched = set()
        for codes, p in seen:
            for order, context in enumerate(self.contexts(codes)):
                total, count = self.known[order].get(context, (torch.zeros(VOCAB), 0.0))
                self.known[order][context] = total + p.float(), count + 1
                touched.add((order, context))
        for order, context in touched:
            total, count = self.known[order][context]
            faded = min(1.0, MEMORY / count)
            self.known[order][context] = total * faded, count * faded

    def log_q(self, codes: list[int]) -> Tensor:
        q = torch.full((VOCAB,), 1 / VOCAB)
        for known, context in zip(self.known, self.contexts(codes), strict=True):
            total, count = known.get(context, (torch.zeros(VOCAB), 0.0))
            q = (total + PRIOR * q) / (count + PRIOR)
        return q.log()


def test_nodes_are_drafted_by_their_neighbours() -> None:
    """Two rounds in an image, the second one across its row's end, and ten of a later image."""
    found = drafter()
    reference = Reference(found.classes)
    paths = [[3], [3, 1], [3, 2], [3, 1, 4], [3, 1, 5], [3, 2, 0]]
    found.observe(TREE, LOG_P, verdict(TREE, [0, 1], 2))
    p = LOG_P[0].exp()
    reference.add(list(zip(paths, p, strict=True)))
    tree, second = chain([2, 4, 5, 0]), predictions(4, 2)
    found.observe(tree, second, verdict(tree, [0, 1, 2, 3], 1))
    decided = [3, 1, 2, 4, 5, 0, 1]
    reference.add([(decided[: 3 + n], second[0, n].exp()) for n in range(4)])
    root = DraftTree.root(torch.tensor([1]), torch.float64)
    log_q = found.expand(root, torch.zeros(1, 1, dtype=torch.long))
    assert log_q.dtype == torch.float64
    torch.testing.assert_close(log_q[0, 0].float(), reference.log_q(decided))
    begin(found)  # the table stays
    for seed in range(10):
        root = chain([LONG[seed]])
        log_q = found.expand(root, torch.zeros(1, 1, dtype=torch.long))
        torch.testing.assert_close(log_q[0, 0].float(), reference.log_q(LONG[: seed + 1]))
        log_p = predictions(1, seed)
        if seed + 1 < len(LONG):
            found.observe(root, log_p, verdict(root, [0], LONG[seed + 1]))
        reference.add([(LONG[: seed + 1], log_p[0, 0].exp())])


def test_trees_deeper_than_a_row_read_their_own_paths() -> None:
    """A node of the second row, above which is another node, is drafted as after decided codes."""
    found, codes = drafter(), [3, 1, 2, 4, 5, 0, 1, 2]
    found.observe(chain(codes), predictions(8, 1), verdict(chain(codes), [0], 1))
    begin(found)
    drafted = found.expand(chain(codes), torch.tensor([[7]]))
    found.history[0, : len(codes)], found.root[0] = torch.tensor(codes), len(codes) - 1
    decided = found.expand(chain(codes[-1:]), torch.tensor([[0]]))
    assert torch.equal(drafted, decided)
    found.history[0, len(codes) - COLUMNS] = 5
    assert not torch.equal(drafted, found.expand(chain(codes[-1:]), torch.tensor([[0]])))


def test_absent_nodes_teach_nothing() -> None:
    tree = tree_of([3, 1, 2, 4, 5, 0], [0, 0, 0, 1, 1, 2], absent=(2, 4, 5))
    found, reference = drafter(), Reference(drafter().classes)
    found.observe(tree, LOG_P, verdict(tree, [0, 1], 2))
    reference.add(
        [(path, LOG_P[0, n].exp()) for n, path in ((0, [3]), (1, [3, 1]), (3, [3, 1, 4]))]
    )
    log_q = found.expand(TREE, torch.tensor([[0, 2, 5]]))
    for place, path in enumerate(([3, 1, 3], [3, 1, 3, 2], [3, 1, 3, 2, 0])):
        torch.testing.assert_close(log_q[0, place].float(), reference.log_q(path))


def test_images_of_a_batch_share_the_tables_and_keep_their_codes() -> None:
    found = drafter(images=2)
    trees = DraftTree.root(torch.tensor([3, 3]), torch.float64)
    verdicts = verdict(chain([3]), [0], 1), verdict(chain([3]), [0], 4)
    names = "choices", "accepted", "path", "emitted"
    joined = type(verdicts[0])(*(torch.cat([getattr(v, n) for v in verdicts]) for n in names))
    both = torch.cat([predictions(1, 1), predictions(1, 2)])
    found.observe(trees, both, joined)
    reference = Reference(found.classes)
    reference.add([([3], both[0, 0].exp()), ([3], both[1, 0].exp())])
    found.select([1])
    log_q = found.expand(chain([4]), torch.zeros(1, 1, dtype=torch.long))
    torch.testing.assert_close(log_q[0, 0].float(), reference.log_q([3, 4]))
    assert found.history[0, :2].tolist() == [3, 4]


def test_tables_stay_small_and_hold_the_newest_contexts(monkeypatch) -> None:
    monkeypatch.setattr(ngram, "_BYTES", 4 * VOCAB * 16)  # rows of 16 contexts
    table = ngram.Means(1000, VOCAB, torch.device("cpu"))
    assert table.sums.shape == (16, VOCAB)
    p = predictions(400, 3)[0].float().exp()
    keys = torch.arange(400)
    for part in keys.split(50):
        table.add(part, p[part])
    flat = torch.full((400, VOCAB), 1 / VOCAB)
    q = table.smooth(keys, flat)
    known = (q != flat).any(1)
    assert 8 <= int(known.sum()) <= 16 and not known[:300].any()
    torch.testing.assert_close(q[known], ((p + PRIOR * flat) / (1 + PRIOR))[known])
    torch.testing.assert_close(q.sum(1), torch.ones(400))


def test_a_context_forgets_what_is_long_ago() -> None:
    table = ngram.Means(4, VOCAB, torch.device("cpu"))
    old, new = torch.eye(VOCAB)[:1], torch.eye(VOCAB)[1:2]
    for p in [old] * 20 + [new] * 20:
        table.add(torch.tensor([2]), p)
    q = table.smooth(torch.tensor([2]), old)[0]
    assert q[1] > 0.65 and float(table.counts[2]) == pytest.approx(MEMORY)


def test_classes_gather_similar_codes() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(4, 16, generator=generator)
    points = centres.repeat_interleave(10, 0) + 0.05 * torch.randn(40, 16, generator=generator)
    found = classes_of(points, 8).view(4, 10)
    groups = [set(row.tolist()) for row in found]
    assert sum(len(group) for group in groups) == len(set().union(*groups)) <= 8
