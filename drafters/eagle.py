"""EAGLE head (arXiv 2401.15077): a small decoder that extrapolates the target's features.

Slot i reads the target's feature i and the embedding of token i + 1, and predicts feature i + 1.
The target's own head turns that into the distribution of token i + 2. Below the root of a tree,
where the target has not been yet, predicted features take the place of the target's.
"""

from functools import partial

import torch
from torch import Tensor

from decoding.cache import CacheShape, Fixed, KVCache
from decoding.cache_pass import chain
from decoding.drafter import Decided
from decoding.policies.base import Shape
from decoding.sampling import SamplingDistribution
from decoding.slots import ends_row
from decoding.timing import Stopwatch
from decoding.transfer import on_device
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from decoding.whole_pass import Slice, WholePass
from drafters.branches import Level, Unread
from drafters.eagle_head import EagleHead
from models.base import Context, ImageGrid, PromptRows, TargetModel, TransformerSpec


def drafted_nodes(largest: Shape) -> int:
    """Return the most nodes that one round expands, of trees up to this size."""
    return largest.depth * largest.width + largest.nodes


def cache_slots(spec: TransformerSpec, grid: ImageGrid, room: int, deepest: int) -> int:
    """Return the slots per row that a head's cache takes; arguments as of `EagleDrafter`."""
    drafts = room if grid.row_end is None else 2 * room
    # a round without drafts may leave its token to the next one
    return spec.max_positions + drafts + grid.block(deepest + 1)


class EagleDrafter:
    """Drafts with an EAGLE head next to the target, both guidance rows in one batch.

    In recorded rounds it keeps what it needs of an image on the device, in `unread` and `root`, and
    passes have the shapes of the largest round.
    """

    window, replays, trust = 0, True, None

    def __init__(
        self,
        head: EagleHead,
        target: TargetModel,
        distribution: SamplingDistribution,
        room: int,
        deepest: int,
    ):
        """room: the most tree nodes that one round expands. deepest: the most draft tokens of one
        path."""
        self.head, self.target, self.distribution = head, target, distribution
        self.room, self.deepest = room, deepest
        self.reads = head.spec.target_layers
        self.whole = WholePass(head, target, distribution)

    def open(self, images: int, watch: Stopwatch, fixed: bool = False) -> None:
        self.watch, self.fixed = watch, fixed
        spec, grid, device = self.head.spec, self.target.grid, self.target.device
        most = grid.block(self.deepest + 1)
        slots = cache_slots(spec, grid, self.room, self.deepest)
        shape = CacheShape(images, self.distribution.guidance, slots)
        self.cache = KVCache(spec, shape, self.target.dtype, device)
        size = images, shape.guidance, most, (1 + len(self.reads)) * spec.hidden
        codes = torch.zeros(images, most, dtype=torch.long, device=device)
        self.unread = Unread(codes, torch.zeros(size, dtype=self.target.dtype, device=device))
        self.read = [0] * images  # slots of the image, row ends included, before its root
        self.root = torch.zeros_like(codes[:, :1])  # (images, 1) its position, if fixed
        self.lengths = torch.zeros_like(codes[:, 0])  # (images,) of the cache, if fixed
        self.level: Level | None = None
        self.last: tuple[PromptRows, int] | None = None  # the prompt read last, and its image

    def start(self, image: int, prompt: PromptRows, features: Tensor, code: Tensor) -> None:
        self._read(image, prompt, self.head.fuse(features[:, :-1]))
        self.unread.start(image, features[:, -1:], code)
        length = prompt.ids.shape[1] - 1
        self.read[image], self.root[image], self.lengths[image] = 0, 0, length

    def _read(self, image: int, prompt: PromptRows, features: Tensor) -> None:
        """Bring a prompt's keys and values into an image's cache rows.

        Images of one prompt come one after the other with the same rows: the first one's are read.

        features: (guidance, length - 1, hidden) of all but its last token.
        """
        cache, n = self.cache.image(image), features.shape[1]
        if self.last is not None and self.last[0] is prompt:
            cache.begin_as(self.cache.image(self.last[1]), n)
            return
        hidden = self.head.spec.hides_padding
        cache.reset(prompt.starts if hidden else torch.zeros_like(prompt.starts), prompt.origins)
        self.head(prompt.ids[:, 1:], features, cache.open(*chain(1, n, self.target.device)))
        cache.advance([n])
        self.last = prompt, image

    def expand(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        self.scored: Tensor | None = None  # log q of the level, where one call has found it
        if tree.nodes == 0:
            self._absorb()
        else:
            self._descend(tree, nodes)
        if self.scored is not None:
            return self.scored
        if (ends := self._row_ends(tree.height)) is not None:
            self._end_rows(ends, tree.height)
        with self.watch.lap("draft_head"):
            logits = self.target.score(self.level.outputs.flatten(0, 1))
        return self.distribution(logits)

    def observe(self, tree: DraftTree, log_p: Tensor, verdict: Verdict) -> None:
        if self.fixed:
            if tree.drafted == 0:  # what is unread would be lost
                self._absorb()
            self.root += verdict.accepted[:, None] + 1

    def commit(self, decided: Decided) -> None:
        self.unread.add(decided)
        if not self.fixed:
            self.read = [a + b for a, b in zip(self.read, decided.counts, strict=True)]

    def select(self, images: list[int]) -> None:
        self.cache, self.last = self.cache.select(images), None
        self.unread = self.unread.select(images)
        self.read = [self.read[image] for image in images]
        self.root, self.lengths = self.root[images], self.lengths[images]

    def _absorb(self) -> None:
        """Read the newly decided tokens; the last one is the root."""
        new, cache = self.unread.settle(), self.cache
        images, longest = len(new.codes), max(new.counts)
        if self.fixed:
            longest, cache.fixed = new.codes.shape[1], Fixed(self.lengths, cache.slots)
        codes, features = new.codes[:, :longest], self._features(longest)
        counts = new.count[:, 0] if self.fixed else on_device(new.counts, codes.device)
        last = counts - 1
        depths, seen = chain(images, longest, codes.device)
        if self._runs_whole(longest):
            outputs = self._whole(Slice(codes, depths, seen, features, last))
        else:
            outputs = self._run(codes, features, cache.open(depths, seen))
            index = last[:, None, None, None].expand(-1, outputs.shape[1], -1, outputs.shape[3])
            outputs = outputs.gather(2, index)
        if self.fixed:
            self.lengths += new.count[:, 0]
        else:
            cache.advance(new.counts)
            new.counts = [0] * images
        none = codes.new_zeros(images, 1)
        self.level = Level(none, outputs, none[..., None, :0].bool())

    def _features(self, count: int) -> Tensor:
        """Return what the head reads before the unread tokens: (images, guidance, count, hidden).

        They are fused here, not when they are decided: rounds without a tree read nothing.
        """
        with self.watch.lap("draft_head"):
            return self.head.fuse(self.unread.features[:, :, :count])

    def _descend(self, tree: DraftTree, nodes: Tensor) -> None:
        """Draft at nodes (images, k) below the root.

        A node reads its parent's output as the feature before it.
        """
        before = self.level.before(tree, nodes)
        self.level = self._grow(before, tree.tokens.gather(1, nodes), self._distance(tree.height))

    def _end_rows(self, ends: Tensor, height: int) -> None:
        """Draft the row ends after the level at depth `height`.

        ends: (images, 1) bool, where a row ends after its nodes.
        """
        codes = torch.full_like(self.level.nodes, self.target.grid.row_end)
        after = self._grow(self.level.with_own(), codes, self._distance(height) + 1)
        self.level = self.level.moved(ends, after)

    def _grow(self, before: Level, codes: Tensor, distance: Tensor) -> Level:
        """Return a level with what the head drafts at codes (images, k).

        before: the level, with the outputs before the codes and what the codes see. distance:
        (images, 1) from the committed slots.
        """
        depths, seen = distance.expand_as(codes), before.seen
        if self._runs_whole(codes.shape[1]):
            outputs = self._whole(Slice(codes, depths, seen, before.outputs))
        else:
            outputs = self._run(codes, before.outputs, self.cache.open(depths, seen))
        return Level(before.nodes, outputs, seen)

    def _runs_whole(self, n: int) -> bool:
        """Return whether a pass over n tokens is one call, which row ends would break up."""
        return self.target.grid.row_end is None and self.whole.fits(self.cache, n)

    def _whole(self, tokens: Slice) -> Tensor:
        """Return predicted features (images, guidance, n, hidden), and keep log q after them."""
        lap = partial(self.watch.add, "draft_forward")
        outputs, self.scored = self.whole(self.cache, tokens, lap)
        return outputs.unflatten(0, (-1, self.distribution.guidance))

    def _roots(self) -> Tensor:
        """Return the image positions (images, 1) of the roots."""
        if self.fixed:
            return self.root
        return on_device(
            [[self._position(image)] for image in range(len(self.read))], self.target.device
        )

    def _position(self, image: int) -> int:
        """Return the image position of the root, by the host's count."""
        grid, read = self.target.grid, self.read[image]
        return read if grid.row_end is None else read - read // (grid.columns + 1)

    def _distance(self, height: int) -> Tensor:
        """Return the slots (images, 1) between the root and the nodes at depth `height`."""
        grid = self.target.grid
        if grid.row_end is None:
            return torch.full_like(self.level.nodes[:, :1], height - 1)
        roots = self._roots()
        return grid.slots(roots + height) - grid.slots(roots) - 1

    def _row_ends(self, height: int) -> Tensor | None:
        """Return (images, 1) whether a row ends after the nodes at depth `height`.

        None if none does; what is recorded serves every round, so there it is never None.
        """
        grid = self.target.grid
        if grid.row_end is None:
            return None
        ending = (ends_row(self._position(i) + height, 1, grid) for i in range(len(self.read)))
        if not self.fixed and not any(ending):
            return None
        return (self._roots() + height + 1) % grid.columns == 0

    def _run(self, codes: Tensor, features: Tensor, context: Context) -> Tensor:
        """Return predicted features (images, guidance, n, hidden).

        codes: (images, n). features: (images, guidance, n, hidden) of the positions before them.
        """
        guidance = features.shape[1]
        ids = (codes + self.target.vocab.first_id).repeat_interleave(guidance, 0)
        with self.watch.lap("draft_forward"):
            outputs = self.head(ids, features.flatten(0, 1), context)
        return outputs.unflatten(0, (-1, guidance))
