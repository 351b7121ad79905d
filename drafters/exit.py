"""Early exit: the target's own first layers draft, and the verification goes on from there.

A small trained head turns hidden states after the first layers into predicted features, and the
target's own head these into distributions (Kangaroo, arXiv 2404.18911). Keys, values and hidden
states of the drafted nodes are not computed again: the verification runs the first layers on the
tree's leaves only, and the remaining layers on all nodes. The head also reads the target's feature
at the position before, as EAGLE does; below the root of a tree its own prediction of it.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from decoding.cache import KVCache
from decoding.drafter import Decided
from decoding.sampling import SamplingDistribution
from decoding.slots import Slots
from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from drafters.entered import Entered
from models.base import PromptRows, TargetModel, TransformerSpec
from models.linear import Linear
from models.transformer import MLP, RMSNorm


class ExitHead(nn.Module):
    """Hidden state i after the first layers, feature i - 1 -> predicted feature i."""

    def __init__(self, spec: TransformerSpec, bias: bool = True):
        """spec: of the target, with as many layers as are run before the exit."""
        super().__init__()
        self.spec = spec
        self.norm = RMSNorm(spec.hidden, spec.norm_eps)
        self.fc = Linear(2 * spec.hidden, spec.hidden, bias=bias)
        self.mlp_norm = RMSNorm(spec.hidden, spec.norm_eps)
        self.mlp = MLP(spec)

    def forward(self, hidden: Tensor, features: Tensor) -> Tensor:
        """Return predicted features (..., hidden), from two tensors of this shape."""
        mixed = self.fc(torch.cat([self.norm(hidden), features], -1))
        return mixed + self.mlp(self.mlp_norm(mixed))


class ExitDrafter:
    """Drafts with the target's first layers, both guidance rows in one batch.

    It is the engine's `TreeReader`, too. It keeps nothing of an image but the feature before the
    root: keys and values lie in the target's cache. Rounds are not recorded, since how many leaves
    a tree has is asked of the device.
    """

    window, replays, trust, reads = 0, False, None, ()

    def __init__(
        self,
        head: ExitHead,
        target: TargetModel,
        distribution: SamplingDistribution,
        room: int,
        deepest: int,
    ):
        """room: the most tree nodes that one round expands or verifies. deepest: of no use here.

        Raises:
            ValueError: the target has row ends, which this drafter does not read.
        """
        if target.grid.row_end is not None:
            raise ValueError(
                f"--drafter_path: found an early exit for {target.name}, whose image rows end with "
                "a token of their own; allowed: an early exit for other models, or an EAGLE head"
            )
        self.head, self.target, self.distribution = head, target, distribution
        self.layers, self.room = head.spec.layers, room

    def open(self, images: int, watch: Stopwatch, fixed: bool = False) -> None:
        self.watch = watch
        size = images, self.distribution.guidance, 1, self.target.spec.hidden
        self.before = torch.zeros(size, dtype=self.target.dtype, device=self.target.device)

    def start(self, image: int, prompt: PromptRows, features: Tensor, code: Tensor) -> None:
        self.before[image] = features[:, -1:]

    def begin(self, cache: KVCache) -> None:
        cache.grow(int(cache.lengths.max()) + 1 + self.room)
        images = len(self.before)
        self.cache, self.entered = cache, Entered(images, self.target.vocab.size, self.before)

    def expand(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        codes, depths = tree.tokens.gather(1, nodes), tree.depths.gather(1, nodes)
        parents = None if tree.nodes == 0 else self.entered.parents(tree, nodes)
        with self.watch.lap("draft_forward"):
            hidden, seen = self._run_lower(codes, depths, parents)
            outputs = self.head(hidden, self.entered.outputs_before(parents))
        self.entered.add(codes, parents, hidden, seen, outputs)
        self.entered.note(tree, nodes)
        with self.watch.lap("draft_head"):
            logits = self.target.score(outputs.flatten(0, 1))
        return self.distribution(logits)

    def forward(self, tree: DraftTree, slots: Slots) -> Callable[[], Tensor]:
        assert slots.exits is None
        return partial(self._finish, tree)

    def keep(self, path: Tensor) -> None:
        self.cache.move(self.place.gather(1, path), stop=self.layers)
        self.cache.move(path, first=self.layers)

    def observe(self, tree: DraftTree, log_p: Tensor, verdict: Verdict) -> None:
        pass

    def commit(self, decided: Decided) -> None:
        for image, count in enumerate(decided.counts):
            self.before[image] = decided.features[image, :, count - 1 : count]

    def select(self, images: list[int]) -> None:
        self.before = self.before[images]

    def _run_lower(
        self, codes: Tensor, depths: Tensor, parents: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Run the first layers on codes (images, k) after the slots `parents`; None for the roots.

        Returns hidden states (images, guidance, k, hidden), and what the new slots see.
        """
        seen = self.entered.seen_by(codes, parents)
        guidance = self.cache.guidance
        ids = (codes + self.target.vocab.first_id).repeat_interleave(guidance, 0)
        hidden = self.target.lower(ids, self.cache.open(depths, seen), self.layers)
        return hidden.unflatten(0, (-1, guidance)), seen

    def _finish(self, tree: DraftTree) -> Tensor:
        """Return the target's features (rows, 1 + nodes, hidden) of a tree."""
        place = self.entered.find(tree)
        unread = place < 0
        if count := int(unread.sum(1).max()):
            # in images with fewer of them, some nodes are read again, and nobody looks at that
            first, nodes = unread.int().topk(count, 1)
            new = self.entered.count + torch.arange(count, device=nodes.device)
            self._enter(tree, nodes, place.gather(1, tree.parents.gather(1, nodes)))
            place = place.scatter(1, nodes, torch.where(first > 0, new, place.gather(1, nodes)))
        self.place = place
        hidden = self.entered.hidden_at(place).flatten(0, 1)
        context = self.cache.open(tree.depths, tree.visible)
        return self.target.upper(hidden, context, self.layers)

    def _enter(self, tree: DraftTree, nodes: Tensor, parents: Tensor) -> None:
        """Run the first layers on nodes (images, k) that were not expanded."""
        codes, depths = tree.tokens.gather(1, nodes), tree.depths.gather(1, nodes)
        hidden, seen = self._run_lower(codes, depths, parents)
        self.entered.add(codes, parents, hidden, seen)
