"""What an EAGLE head has drafted below a root, and the decided tokens it has still to read."""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.drafter import Decided
from decoding.kernels import steps_for
from decoding.tree import DraftTree

PATIENCE = 32  # rounds that may wait: they hold the features of all their nodes


@dataclass(frozen=True)
class Level:
    """What the head has drafted for the nodes of a tree's level that were expanded.

    nodes: (images, k). outputs: (images, guidance, k, hidden) predicted features. seen: (images, k,
    slots) bool, which of the slots drafted so far they see; the root's stands among the committed.
    """

    nodes: Tensor
    outputs: Tensor
    seen: Tensor

    def before(self, tree: DraftTree, nodes: Tensor) -> "Level":
        """Return what nodes (images, n) of the next level read: their parents' outputs.

        A node sees what its parent sees, and itself, in a slot of its own. The parents are nodes of
        this level, since no others have children.
        """
        if kernels := steps_for(self.outputs):
            read = tree.parents, nodes, self.nodes, self.outputs, self.seen
            return Level(nodes, *kernels.before(*read))
        parents = tree.parents.gather(1, nodes)
        place = (parents[..., None] == self.nodes[:, None]).int().argmax(2)[:, :, None]
        outputs, seen = self.outputs, self.seen
        along = place[:, None].expand(-1, outputs.shape[1], -1, outputs.shape[3])
        rows = place.expand(-1, -1, seen.shape[2])
        return Level(nodes, outputs.gather(2, along), seen.gather(1, rows)).with_own()

    def with_own(self) -> "Level":
        """Return the level whose nodes each see one slot more: their own."""
        own = torch.eye(self.nodes.shape[1], dtype=torch.bool, device=self.seen.device)
        seen = torch.cat([self.seen, own.expand(len(self.seen), -1, -1)], 2)
        return replace(self, seen=seen)

    def moved(self, ends: Tensor, after: "Level") -> "Level":
        """Return the level with the row ends that follow nodes in these nodes' place.

        ends: (images, 1) bool, in which images. after: of the row ends.
        """
        ends = ends[..., None]
        own = F.pad(self.seen, (0, after.seen.shape[2] - self.seen.shape[2]))
        outputs = torch.where(ends[..., None], after.outputs, self.outputs)
        return Level(self.nodes, outputs, torch.where(ends, after.seen, own))


class Unread:
    """Codes and the target's features before them that are decided and not yet read, per image.

    The features are the target's, with the hidden states behind them that the head reads.

    codes: (images, room). features: (images, guidance, room, hidden). counts: how many are valid,
    on the host. count: (images, 1) the same on the device, for rounds that are recorded, which
    never ask the host. waiting: what the last rounds have decided, which `settle` brings into the
    tables; where no tree is grown, nobody needs them.
    """

    def __init__(self, codes: Tensor, features: Tensor):
        """Take empty tables of these shapes."""
        self.codes, self.features = codes, features
        self.counts = [0] * len(codes)
        self.count = torch.zeros_like(codes[:, :1])
        self.waiting: list[Decided] = []

    def start(self, image: int, features: Tensor, code: Tensor) -> None:
        """Hold the first code (1,) of an image and the feature (guidance, 1, hidden) before it."""
        self.settle()
        self.counts[image] = 0
        self._add(image, features, code)
        self.count[image] = 1

    def add(self, decided: Decided) -> None:
        """Hold what a round has decided, after what is there; in place of it if recorded."""
        if isinstance(decided.counts, Tensor):
            n = decided.codes.shape[1]
            self.features[:, :, :n], self.codes[:, :n] = decided.features, decided.codes
            self.count.copy_(decided.counts)
            return
        self.waiting.append(decided)
        if len(self.waiting) == PATIENCE:
            self.settle()

    def settle(self) -> "Unread":
        """Bring the tables up to date; returns them."""
        if self.waiting:
            for image in range(len(self.counts)):
                new = [(each, each.counts[image]) for each in self.waiting]
                features = _joined([each.features[image, :, :n] for each, n in new], 1)
                self._add(image, features, _joined([each.codes[image, :n] for each, n in new], 0))
            self.waiting = []
        return self

    def _add(self, image: int, features: Tensor, codes: Tensor) -> None:
        there = slice(self.counts[image], self.counts[image] + len(codes))
        if there.stop > self.codes.shape[1]:  # no tree was grown for long
            self.codes = F.pad(self.codes, (0, there.stop))
            self.features = F.pad(self.features, (0, 0, 0, there.stop))
        self.features[image, :, there], self.codes[image, there] = features, codes
        self.counts[image] += len(codes)

    def select(self, images: list[int]) -> "Unread":
        """Return these images' only."""
        self.settle()
        chosen = Unread(self.codes[images], self.features[images])
        chosen.counts, chosen.count = [self.counts[i] for i in images], self.count[images]
        return chosen


def _joined(parts: list[Tensor], dim: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim)
