"""The cache of a batch whose images differ in length, against single images and against no cache at
all.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from fakes import random_tree
from small import randomised
from torch import Tensor

from decoding.cache import CacheShape, CacheView, KVCache
from decoding.tree import DraftTree, GrowingTree
from models.base import Context, TransformerSpec
from models.transformer import Transformer

SPEC = TransformerSpec(
    vocab=30, hidden=16, intermediate=24, layers=2, heads=2, kv_heads=1, max_positions=64
)
CPU = torch.device("cpu")
PROMPTS = [(5, 2), (3, 0), (8, 6)]  # length, first slot of the second row


@pytest.fixture(scope="module")
def model() -> Transformer:
    return randomised(Transformer(SPEC, 30), 0).double()


class Cache(KVCache):
    """A cache that knows its images' lengths, as a batch does."""

    def __init__(self, images: int, slots: int = 60):
        super().__init__(SPEC, CacheShape(images, 2, slots), torch.float64, CPU)
        self.lengths = [0] * images

    def now(self, room: int) -> CacheView:
        return self.view(torch.tensor(self.lengths), max(self.lengths), room)

    def keep(self, paths: list[list[int]]) -> None:
        """Commit the tokens of the last pass at these offsets."""
        longest = max(map(len, paths))
        padded = [path + [0] * (longest - len(path)) for path in paths]
        self.move(torch.tensor(self.lengths), torch.tensor(padded))
        self.lengths = [a + len(path) for a, path in zip(self.lengths, paths, strict=True)]


class Image:
    """An image in a batch and alone: its tokens by row, and how it is prefilled."""

    def __init__(self, number: int):
        length, self.start = PROMPTS[number]
        generator = torch.Generator().manual_seed(number)
        self.prompt = torch.randint(30, (2, length), generator=generator)
        self.rows = [self.prompt[0].tolist(), self.prompt[1, self.start :].tolist()]

    def prefill(self, model: Transformer, cache: Cache, index: int = 0) -> None:
        length = self.prompt.shape[1]
        model(self.prompt, cache.prefill(index, length, torch.tensor([0, self.start])))
        cache.lengths[index] = length

    def accept(self, tokens: list[int]) -> None:
        for row in self.rows:
            row += tokens

    def features(self, model: Transformer, n: int) -> Tensor:
        """The last n features of both rows (2, n, hidden), without cache, padding or mask."""
        parts = []
        for row in self.rows:
            ids = torch.tensor([row])
            parts.append(model(ids, Context(torch.arange(len(row))[None]))[0, -n:])
        return torch.stack(parts)


def verify(model: Transformer, cache: Cache, tree: DraftTree) -> Tensor:
    """Features (images, 2, 1 + nodes, hidden) of a tree."""
    ids = tree.tokens.repeat_interleave(2, 0)
    context = cache.now(tree.nodes + 1).open(tree.depths, tree.visible)
    return model(ids, context).unflatten(0, (-1, 2))


def random_path(tree: DraftTree, image: int, generator: torch.Generator) -> list[int]:
    node, path = int(torch.randint(tree.nodes + 1, (1,), generator=generator)), []
    while node:
        path.insert(0, node)
        node = int(tree.parents[image, node])
    return [0, *path]


def of(tree: DraftTree, image: int) -> DraftTree:
    """The tree of one image."""
    row = slice(image, image + 1)
    columns = (tree.tokens, tree.parents, tree.depths, tree.scores)
    return DraftTree(*(column[row] for column in columns), tree.height, width=tree.width)


@pytest.mark.parametrize("numbers", [[0, 1, 2], [0, 0]], ids=["ragged", "equal lengths"])
def test_batches_equal_single_images_and_no_cache(numbers, model) -> None:
    """Random trees and accepted paths, round after round."""
    generator, count = torch.Generator().manual_seed(1), len(numbers)
    ragged = count > 2
    images, batch, alone = [Image(n) for n in numbers], Cache(count), [Cache(1) for _ in numbers]
    for i, image in enumerate(images):
        image.prefill(model, batch, i)
        image.prefill(model, alone[i])
    for nodes in (0, 6, 3, 0, 9):
        tree = random_tree(generator, count, nodes, 30)
        features = verify(model, batch, tree)
        paths = [random_path(tree, i, generator) for i in range(count)]
        if not ragged:  # the first node is a child of the root
            paths = [[0, 1] if nodes else [0]] * count
        for i, image in enumerate(images):
            single = verify(model, alone[i], of(tree, i))
            torch.testing.assert_close(features[i : i + 1], single, rtol=0, atol=1e-12)
            alone[i].keep([paths[i]])
            image.accept(tree.tokens[i, paths[i]].tolist())
            expected = image.features(model, len(paths[i]))
            # 1e-6: rotations are kept in fp32
            torch.testing.assert_close(features[i][:, paths[i]], expected, rtol=0, atol=1e-6)
        batch.keep(paths)
    assert len(set(batch.lengths)) == (3 if ragged else 1)
    assert batch.lengths == [cache.lengths[0] for cache in alone]


def continued(model: Transformer, cache: Cache, token: int) -> Tensor:
    """Features after one more token per image; nothing is committed."""
    root = torch.full((len(cache.lengths),), token)
    return verify(model, cache, GrowingTree.root(root, torch.float64).complete())


def test_a_cache_that_grows_keeps_what_it_holds(model) -> None:
    batch, wide = Cache(2), Cache(2)
    for cache in (batch, wide):
        for i in range(2):
            Image(i).prefill(model, cache, i)
    assert wide.grow(61)
    assert batch.slots == 60 and wide.slots >= 61
    assert torch.equal(continued(model, wide, 7), continued(model, batch, 7))
    assert not wide.grow(60)
    wide.lengths = [40, 59]
    wide.now(2)


def test_a_row_is_reused_without_traces(model) -> None:
    """An image's view shares memory; a reset row forgets the longer image that it held."""
    batch = Cache(2)
    for i in range(2):
        Image(2).prefill(model, batch, i)
    Image(1).prefill(model, batch, 1)
    assert batch.lengths == [8, 3]
    fresh = Cache(1)
    Image(1).prefill(model, fresh)
    reused, expected = continued(model, batch, 7)[1:], continued(model, fresh, 7)
    torch.testing.assert_close(reused, expected, rtol=0, atol=1e-12)


def test_several_passes_before_a_commit_see_each_other(model) -> None:
    """As a drafter grows a tree: level by level, each level sees its own ancestors of earlier
    passes.
    """
    generator = torch.Generator().manual_seed(3)
    tree, batch, levelwise = random_tree(generator, 2, 9, 30), Cache(2), Cache(2)
    for i, number in enumerate((0, 2)):
        for cache in (batch, levelwise):
            Image(number).prefill(model, cache, i)
    expected, view = verify(model, batch, tree), levelwise.now(10)
    # in the order of depth a prefix is closed under parents
    for start, stop in ((0, 1), (1, 4), (4, 5), (5, 10)):
        ids = tree.tokens[:, start:stop].repeat_interleave(2, 0)
        context = view.open(tree.depths[:, start:stop], tree.visible[:, start:stop, :stop])
        features = model(ids, context).unflatten(0, (-1, 2))
        torch.testing.assert_close(features, expected[:, :, start:stop], rtol=0, atol=1e-12)


@pytest.mark.parametrize("devices", [None, (CPU, torch.device("cpu", 0), CPU)])
@pytest.mark.parametrize("lengths", [[7, 7], [7, 4]])
def test_tokens_move_in_all_layers_on_all_devices(lengths, devices) -> None:
    spec = replace(SPEC, layers=3, layer_devices=devices)
    cache = KVCache(spec, CacheShape(2, 2, 20), torch.float64, CPU)
    for memory in cache.memory:
        memory.copy_(torch.randn(memory.shape, dtype=memory.dtype))
    before, path = torch.cat(cache.memory), torch.tensor([[0, 3], [0, 2]])
    cache.move(torch.tensor(lengths), path)
    after = torch.cat(cache.memory)
    for row in range(4):
        first, slots = lengths[row // 2], path[row // 2] + lengths[row // 2]
        expected = before[:, row].clone()
        expected[:, :, first : first + 2] = before[:, row][:, :, slots]
        assert torch.equal(after[:, row], expected)


def test_overflow_is_caught() -> None:
    cache = Cache(1)
    cache.lengths = [59]
    cache.now(1)
    with pytest.raises(AssertionError, match="overflow"):
        cache.now(2)


def test_bf16_images_of_different_lengths_share_a_cache() -> None:
    """On a CPU their keys are kept in fp32, so what is written must be converted."""
    cache = KVCache(SPEC, CacheShape(2, 1, 20), torch.bfloat16, CPU)
    view, steps = cache.view(torch.tensor([5, 3]), 5, 2), torch.arange(2)
    context = view.open(steps.expand(2, -1), (steps <= steps[:, None]).expand(2, -1, -1))
    new = torch.randn(2, SPEC.kv_heads, 2, SPEC.head_dim, dtype=torch.bfloat16)
    keys, _ = context.cache.write(0, new, new)
    assert torch.equal(keys[0, :, 5:7], new[0].to(keys.dtype))
    assert torch.equal(keys[1, :, 3:5], new[1].to(keys.dtype))
