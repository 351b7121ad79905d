"""EAGLE head (arXiv 2401.15077): a small decoder that extrapolates the target's hidden states.

Slot i reads the target's hidden state i and the embedding of token i + 1, and predicts hidden state
i + 1. The target's own head turns that into the distribution of token i + 2. Below the root of a
tree, which the target has not processed yet, the head reads its own predictions of these states.

The head may also read the target's hidden states after some of its layers (EAGLE-3, arXiv
2503.01840). They hold what the last layer has dropped because the next token does not need it.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from decoding.cache import CacheShape, CacheView, KVCache, image_slots
from decoding.drafter import TreeDrafter
from decoding.proposals import Predictions, Proposal
from decoding.round import Round, RoundResult, TreeShape
from decoding.sampling import SamplingDistribution
from decoding.stopwatch import Stopwatch
from decoding.tree import GrowingTree, hidden_at, rows_at
from drafters.drafting import Drafting
from models.base import Context, Layers, PromptRows, TransformerSpec
from models.cpu.linear import Linear
from models.target import TargetModel
from models.transformer import Blocks, Embedding
from support.compiler import fused
from support.constants import arange, constant, identity


class EagleHead(nn.Module):
    """embed(token i + 1), feature i -> predicted feature i + 1; no final norm, as published."""

    def __init__(self, spec: TransformerSpec, bias: bool = True):
        super().__init__()
        self.embedding: nn.Embedding = Embedding(spec.vocab, spec.hidden)
        self.fc = Linear(2 * spec.hidden, spec.hidden, bias=bias)
        self.blocks = Blocks(spec)
        self.states: Linear | None = None
        if spec.target_layers:
            self.read_layers(spec.target_layers)

    def read_layers(self, layers: Layers) -> None:
        """Also read the target's hidden states after these layers; 0 until they are trained."""
        hidden, weight = self.spec.hidden, self.fc.weight
        self.blocks.spec = replace(self.spec, target_layers=layers)
        like = {"device": weight.device, "dtype": weight.dtype}
        self.states = Linear(len(layers) * hidden, hidden, bias=False, **like)
        nn.init.zeros_(self.states.weight)

    @property
    def spec(self) -> TransformerSpec:
        """The sizes of its layers."""
        return self.blocks.spec

    def fuse(self, features: Tensor) -> Tensor:
        """Return the features (..., hidden) that the head reads.

        features: (..., (1 + layers) hidden) of the target, the hidden states behind the features.
        """
        if self.states is None:
            return features
        hidden = self.spec.hidden
        return features[..., :hidden] + self.states(features[..., hidden:]).to(features.dtype)

    def forward(self, ids: Tensor, features: Tensor, context: Context) -> Tensor:
        """Return predicted features (rows, n, hidden).

        ids: (rows, n) of the next tokens. features: (rows, n, hidden) of the positions before them,
        fused or predicted.
        """
        mixed = self.fc(side_by_side(self.embedding.weight, ids, features))
        # under autocast the residual stream stays wide
        return self.blocks(mixed.to(features.dtype), context)


@fused
def side_by_side(embedding: Tensor, ids: Tensor, features: Tensor) -> Tensor:
    """Return the embeddings of ids (rows, n), each with a feature: (rows, n, 2 hidden)."""
    return torch.cat([F.embedding(ids, embedding), features], -1)


@dataclass(frozen=True)
class ExpandedNodes:
    """The head's outputs at the expanded nodes of a level."""

    outputs: Tensor  # (images, guidance, k, hidden) predicted hidden states
    seen: Tensor  # (images, k, slots) bool: which of the slots drafted so far they see


@fused
def _picked(tokens: Tensor, picked: Tensor, children: int) -> tuple[Tensor, Tensor]:
    """Return the parents (images, k) of nodes picked of a level, by their index, and the codes.

    tokens: (images, nodes) of the level. children: of each parent, side by side.
    """
    return picked // children, tokens.gather(1, picked)


class EagleDrafter(TreeDrafter):
    """Drafts with an EAGLE head next to the target, both guidance rows in one batch."""

    def __init__(
        self,
        head: EagleHead,
        target: TargetModel,
        distribution: SamplingDistribution,
        largest: TreeShape,
    ):
        """largest: no tree is larger."""
        self.head, self.target, self.distribution = head, target, distribution
        self.largest, self.reads = largest, head.spec.target_layers
        self.dtype = torch.promote_types(target.dtype, torch.float32)  # bf16 would tie scores
        below_root = max(largest.depth - 1, 0) * largest.width
        # slots drafted in a round; of row ends, also the root's
        self.room = below_root if target.grid.row_end is None else 2 * below_root + 1

    def open(self, images: int, slots: int, watch: Stopwatch) -> None:
        self.watch = watch
        spec, grid, target = self.head.spec, self.target.grid, self.target
        # what the last round decided waits for the next one, which reads it first
        pending = grid.block(self.largest.reach)
        shape = CacheShape(images, self.distribution.guidance, slots + pending + self.room)
        self.cache = KVCache(spec, shape, target.dtype, target.device)
        self.codes = torch.zeros(images, pending, dtype=torch.long, device=target.device)
        size = images, shape.guidance, pending, (1 + len(self.reads)) * spec.hidden
        self.hidden = torch.zeros(size, dtype=target.dtype, device=target.device)
        self.last: tuple[PromptRows, int] | None = None  # the prompt read last, and its image

    def prefill(self, image: int, prompt: PromptRows, hidden: Tensor, code: Tensor) -> None:
        # the prompt's last feature waits for the first code, with which the head reads it
        self._read_prompt(image, prompt, hidden[:, :-1])
        self.codes[image, 0], self.hidden[image, :, 0] = code[0], hidden[:, -1]

    def _read_prompt(self, image: int, prompt: PromptRows, hidden: Tensor) -> None:
        """Bring a prompt's keys and values into an image's cache rows.

        Images of one prompt come one after the other with the same rows: the first one's are read.

        hidden: (guidance, length - 1, hidden) of all but the prompt's last token.
        """
        length = hidden.shape[1]
        if self.last is not None and self.last[0] is prompt:
            self.cache.begin_as(image, self.last[1], length)
            return
        # as the target's cache does: a captured round sees all of its slots
        slots = image_slots(length + 1, self.target.grid, self.largest.nodes)
        self.cache.grow(slots + self.codes.shape[1] + self.room)
        # LlamaGen's drafters were trained to see the padding before a prompt
        hides = self.head.spec.hides_padding
        starts = prompt.starts if hides else torch.zeros_like(prompt.starts)
        context = self.cache.prefill(image, length, starts, prompt.origins)
        if length:  # a prompt of one token leaves nothing to read
            self.head(prompt.ids[:, 1:], self.head.fuse(hidden), context)
        self.last = prompt, image

    def begin(self, round: Round, proposal: Proposal) -> None:
        """Process the newly decided tokens; the last one is the root."""
        codes, hidden = self.pending(round)
        images, count = codes.shape
        slots = arange(count, codes.device)
        view = self.before_pending(round, count)
        seen = (slots <= slots[:, None]).expand(images, -1, -1)
        outputs = self.run(codes, hidden, view.open(slots.expand(images, -1), seen))
        outputs = hidden_at(outputs, (round.inputs.pending - 1)[:, None])  # at the root
        nothing = torch.zeros(images, 1, 0, dtype=torch.bool, device=codes.device)
        self.expanded = ExpandedNodes(outputs, nothing)
        self.view = CacheView(self.cache, round.inputs.length, round.shape.committed, self.room)

    def expand(self, tree: GrowingTree, picked: Tensor, round: Round) -> Predictions:
        if tree.height:
            self._descend(tree, picked, round)
        if tree.height in round.shape.end_depths:
            self._end_rows(tree, round)
        with self.watch.lap("draft_head"):
            return Predictions(self.score(self.expanded.outputs))

    def score(self, hidden: Tensor) -> Tensor:
        """Return log q (images, n, vocab) of hidden states (images, guidance, n, hidden)."""
        return self.distribution(self.target.score(hidden.flatten(0, 1)))

    def update(self, result: RoundResult) -> None:
        count = result.accepted.codes.shape[1]
        self.codes[:, :count] = result.accepted.codes
        self.hidden[:, :, :count] = result.accepted_hidden

    def pending(self, round: Round) -> tuple[Tensor, Tensor]:
        """Return what the last round decided.

        Codes (images, n) and the hidden states before them (images, guidance, n, hidden), fused.
        """
        count = round.shape.pending
        with self.watch.lap("draft_head"):
            return self.codes[:, :count], self.head.fuse(self.hidden[:, :, :count])

    def before_pending(self, round: Round, room: int) -> CacheView:
        """Return the cache as it was before the last round's tokens; room: slots to write."""
        before = round.inputs.length - round.inputs.pending
        return CacheView(self.cache, before, round.shape.committed, room)

    def _descend(self, tree: GrowingTree, picked: Tensor, round: Round) -> None:
        """Draft at nodes below the root, which read their parents' outputs.

        The parents are what the last call expanded, side by side with equally many children.
        """
        newest = tree.newest
        parent, codes = _picked(newest.tokens, picked, newest.children)
        parents = ExpandedNodes(
            hidden_at(self.expanded.outputs, parent), rows_at(self.expanded.seen, parent)
        )
        self.expanded = self._grow(parents, codes, self._distance(tree.height, round))

    def _end_rows(self, tree: GrowingTree, round: Round) -> None:
        """Draft the row ends after the newest level, and let rows go on from them."""
        grid, level = self.target.grid, self.expanded
        assert grid.row_end is not None, "`end_depths` is empty without"
        codes = torch.full(level.seen.shape[:2], grid.row_end, device=level.seen.device)
        # for every image, since shapes are static: which of them end a row is known on the device
        after = self._grow(level, codes, self._distance(tree.height, round) + 1)
        ends = ((round.inputs.decided + tree.height) % grid.columns == 0)[..., None]
        seen = F.pad(level.seen, (0, after.seen.shape[2] - level.seen.shape[2]))
        outputs = torch.where(ends[..., None], after.outputs, level.outputs)
        self.expanded = ExpandedNodes(outputs, torch.where(ends, after.seen, seen))

    def _grow(self, parents: ExpandedNodes, codes: Tensor, distance: Tensor) -> ExpandedNodes:
        """Return what the head predicts at codes (images, k).

        parents: the hidden states before the codes, and what these see. distance: (images, 1) from
        the first slot after the root's.
        """
        k = codes.shape[1]
        itself = identity(k, codes.device).expand(len(codes), -1, -1)
        seen = torch.cat([parents.seen, itself], 2)
        context = self.view.open(distance.expand(-1, k), seen)
        return ExpandedNodes(self.run(codes, parents.outputs, context), seen)

    def _distance(self, height: int, round: Round) -> Tensor:
        """Return the slots (images, 1) from the first one after the root's to depth `height`."""
        grid = self.target.grid
        if grid.row_end is None:
            return constant((height - 1,), self.codes.device).expand(len(self.codes), -1)
        root = round.inputs.decided - 1
        return grid.slots(root + height) - grid.slots(root) - 1

    def run(self, codes: Tensor, hidden: Tensor, context: Context) -> Tensor:
        """Return predicted hidden states (images, guidance, n, hidden).

        codes: (images, n). hidden: (images, guidance, n, hidden) of the positions before them.
        """
        guidance = hidden.shape[1]
        ids = self.target.vocab.ids(codes, guidance)
        with self.watch.lap("draft_forward"):
            outputs = self.head(ids, hidden.flatten(0, 1), context)
        return outputs.unflatten(0, (-1, guidance))


def loaded_head(parts: Drafting) -> EagleHead:
    """Return the head of a method that has one."""
    assert isinstance(parts.loaded, EagleHead), "methods with this drafter are `drafted`"
    return parts.loaded


def eagle_drafter(parts: Drafting) -> EagleDrafter:
    """Build the drafter with weights that drafts level by level."""
    return EagleDrafter(loaded_head(parts), parts.target, parts.distribution, parts.largest)
