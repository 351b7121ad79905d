"""EAGLE head (arXiv 2401.15077): a small decoder that extrapolates the target's features.

Slot i reads the target's feature i and the embedding of token i + 1, and predicts feature i + 1.
The target's own head turns that into the distribution of token i + 2. Below the root of a tree,
where the target has not been yet, predicted features take the place of the target's.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoding.cache import CacheShape, KVCache, chain
from decoding.drafter import Decided
from decoding.sampling import SamplingDistribution
from decoding.slots import ends_row
from decoding.timing import Stopwatch
from decoding.transfer import on_device
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from models.base import Context, PromptRows, TargetModel, TransformerSpec
from models.linear import Linear
from models.transformer import Blocks


class EagleHead(nn.Module):
    """embed(token i + 1), feature i -> predicted feature i + 1; no final norm, as published."""

    def __init__(self, spec: TransformerSpec, bias: bool = True):
        super().__init__()
        self.embedding = nn.Embedding(spec.vocab, spec.hidden)
        self.fc = Linear(2 * spec.hidden, spec.hidden, bias=bias)
        self.blocks = Blocks(spec)

    @property
    def spec(self) -> TransformerSpec:
        """The sizes of its layers."""
        return self.blocks.spec

    def forward(self, ids: Tensor, features: Tensor, context: Context) -> Tensor:
        """Return predicted features (rows, n, hidden).

        ids: (rows, n) of the next tokens. features: (rows, n, hidden) of the positions before them.
        """
        mixed = self.fc(torch.cat([self.embedding(ids), features], -1))
        # under autocast the residual stream stays wide
        return self.blocks(mixed.to(features.dtype), context)


@dataclass(frozen=True)
class _Newest:
    """The slots drafted last: nodes (images, k) of a tree, or the row ends that follow them.

    moved: (images, k) bool, nodes for which the new slot stands from now on. outputs: (images,
    guidance, k, hidden) predicted features. seen: (images, k, slots) the slots that they see.
    """

    tree: DraftTree
    nodes: Tensor
    moved: Tensor
    outputs: Tensor
    seen: Tensor


@dataclass
class _Branches:
    """What the head has drafted below the current root; slot 0 stands for the root.

    outputs: (images, guidance, slots, hidden) predicted features. seen: (images, slots, slots - 1)
    bool, the slots that a slot sees; the root's key lies among the committed ones. slot_of:
    (images, tree nodes) the slot of each expanded node, or of the row end after it. newest: not yet
    in these tables; nobody asks for the deepest level's, which so costs nothing.
    """

    outputs: Tensor
    seen: Tensor
    slot_of: Tensor
    newest: _Newest | None = None

    def settle(self) -> None:
        """Enter the slots drafted last into the tables."""
        if self.newest is None:
            return
        new = self.newest
        count, used = new.nodes.shape[1], self.outputs.shape[2]
        known = F.pad(self.slot_of, (0, new.tree.nodes + 1 - self.slot_of.shape[1]))
        slots = torch.arange(used, used + count, device=known.device).expand_as(new.nodes)
        slots = torch.where(new.moved, slots, known.gather(1, new.nodes))
        self.slot_of = known.scatter(1, new.nodes, slots)
        self.outputs = torch.cat([self.outputs, new.outputs], 2)
        self.seen = torch.cat([F.pad(self.seen, (0, count)), new.seen], 1)
        self.newest = None


class EagleDrafter:
    """Drafts with an EAGLE head next to the target, both guidance rows in one batch."""

    window = 0

    def __init__(
        self, head: EagleHead, target: TargetModel, distribution: SamplingDistribution, room: int
    ):
        """room: the most tree nodes that one round expands."""
        self.head, self.target, self.distribution, self.room = head, target, distribution, room

    def open(self, images: int, watch: Stopwatch) -> None:
        self.watch = watch
        room = self.room if self.target.grid.row_end is None else 2 * self.room
        shape = CacheShape(images, self.distribution.guidance, self.head.spec.max_positions + room)
        self.cache = KVCache(self.head.spec, shape, self.target.dtype, self.target.device)
        # per image: features and codes that are decided and that the head has not read yet
        self.pending: list[tuple[Tensor, Tensor] | None] = [None] * images
        self.read = [0] * images  # slots of the image, row ends included, before its root
        self.branches: _Branches | None = None

    def start(self, image: int, prompt: PromptRows, features: Tensor, code: Tensor) -> None:
        cache, n = self.cache.image(image), prompt.ids.shape[1] - 1
        hidden = self.head.spec.hides_padding
        cache.reset(prompt.starts if hidden else torch.zeros_like(prompt.starts), prompt.origins)
        context = cache.open(*chain(1, n, self.target.device))
        self.head(prompt.ids[:, 1:], features[:, :-1], context)
        cache.advance([n])
        self.pending[image], self.read[image] = (features[:, -1:], code), 0

    def expand(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        outputs = self._absorb() if tree.nodes == 0 else self._descend(tree, nodes)
        if any(ends := self._row_ends(tree.height)):
            outputs = self._end_rows(tree, nodes, outputs, on_device(ends, nodes.device)[:, None])
        with self.watch.lap("draft_head"):
            logits = self.target.score(outputs.flatten(0, 1))
        return self.distribution(logits)

    def observe(self, tree: DraftTree, log_p: Tensor, verdict: Verdict) -> None:
        pass

    def commit(self, decided: Decided) -> None:
        for image, count in enumerate(decided.counts):
            self.pending[image] = (
                torch.cat([self.pending[image][0], decided.features[image, :, :count]], 1),
                torch.cat([self.pending[image][1], decided.codes[image, :count]]),
            )
            self.read[image] += count

    def select(self, images: list[int]) -> None:
        self.cache = self.cache.select(images)
        self.pending = [self.pending[image] for image in images]
        self.read = [self.read[image] for image in images]

    def _absorb(self) -> Tensor:
        """Read the newly decided tokens; return the root's output (images, guidance, 1, hidden)."""
        counts = [len(codes) for _, codes in self.pending]
        longest, images = max(counts), len(counts)
        features = torch.stack([F.pad(f, (0, 0, 0, longest - f.shape[1])) for f, _ in self.pending])
        codes = torch.stack([F.pad(c, (0, longest - len(c))) for _, c in self.pending])
        outputs = self._run(codes, features, self.cache.open(*chain(images, longest, codes.device)))
        self.cache.advance(counts)
        self.pending = [(f[:, :0], c[:0]) for f, c in self.pending]
        outputs = torch.stack(
            [outputs[image, :, count - 1 : count] for image, count in enumerate(counts)]
        )
        none = torch.zeros(images, 1, 1, dtype=torch.long, device=codes.device)
        self.branches = _Branches(outputs, none[..., :0].bool(), none[..., 0])
        return outputs

    def _descend(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        """Return outputs (images, guidance, k, hidden) of nodes (images, k) below the root.

        A node reads its parent's output as the feature before it.
        """
        self.branches.settle()
        parents = self.branches.slot_of.gather(1, tree.parents.gather(1, nodes))
        outputs, seen = self._grow(
            tree.tokens.gather(1, nodes), parents, self._distance(tree.height)
        )
        every = torch.ones_like(nodes, dtype=torch.bool)
        self.branches.newest = _Newest(tree, nodes, every, outputs, seen)
        return outputs

    def _end_rows(self, tree: DraftTree, nodes: Tensor, outputs: Tensor, ends: Tensor) -> Tensor:
        """Return outputs with those of nodes before a row end replaced by those of the row end.

        outputs: (images, guidance, k, hidden) of nodes (images, k). ends: (images, 1) bool, where a
        row ends after them.
        """
        self.branches.settle()
        codes = torch.full_like(nodes, self.target.grid.row_end)
        slots = self.branches.slot_of.gather(1, nodes)
        after, seen = self._grow(codes, slots, self._distance(tree.height) + 1)
        self.branches.newest = _Newest(tree, nodes, ends.expand_as(nodes), after, seen)
        return torch.where(ends[..., None, None], after, outputs)

    def _grow(self, codes: Tensor, parents: Tensor, distance: Tensor) -> tuple[Tensor, Tensor]:
        """Return the outputs of codes (images, k), and what their slots see.

        parents: (images, k) the slots before them. distance: (images, 1) from the committed slots.
        """
        b = self.branches
        index = parents[:, None, :, None].expand(-1, b.outputs.shape[1], -1, b.outputs.shape[3])
        inherited = b.seen.gather(1, parents[..., None].expand(-1, -1, b.seen.shape[2]))
        own = torch.eye(codes.shape[1], dtype=torch.bool, device=codes.device).expand(
            len(codes), -1, -1
        )
        seen = torch.cat([inherited, own], 2)
        context = self.cache.open(distance.expand_as(codes), seen)
        return self._run(codes, b.outputs.gather(2, index), context), seen

    def _position(self, image: int) -> int:
        """Return the image position of the root."""
        grid, read = self.target.grid, self.read[image]
        return read if grid.row_end is None else read - read // (grid.columns + 1)

    def _distance(self, height: int) -> Tensor:
        """Return the slots (images, 1) between the root and the nodes at depth `height`."""
        grid, roots = self.target.grid, map(self._position, range(len(self.read)))
        slots = [[grid.slots(root + height) - grid.slots(root) - 1] for root in roots]
        return on_device(slots, self.target.device)

    def _row_ends(self, height: int) -> list[bool]:
        """Return per image whether a row ends after the nodes at depth `height`."""
        grid = self.target.grid
        return [
            ends_row(self._position(image) + height, 1, grid) for image in range(len(self.read))
        ]

    def _run(self, codes: Tensor, features: Tensor, context: Context) -> Tensor:
        """Return predicted features (images, guidance, n, hidden).

        codes: (images, n). features: (images, guidance, n, hidden) of the positions before them.
        """
        guidance = features.shape[1]
        ids = (codes + self.target.vocab.first_id).repeat_interleave(guidance, 0)
        with self.watch.lap("draft_forward"):
            outputs = self.head(ids, features.flatten(0, 1), context)
        return outputs.unflatten(0, (-1, guidance))
