"""What an EAGLE head has drafted below a root, and the decided tokens it has still to read."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.drafter import Decided
from decoding.tree import DraftTree


@dataclass(frozen=True)
class Newest:
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
class Branches:
    """What the head has drafted below the current root; slot 0 stands for the root.

    outputs: (images, guidance, slots, hidden) predicted features. seen: (images, slots, slots - 1)
    bool, the slots that a slot sees; the root's key lies among the committed ones. slot_of:
    (images, tree nodes) the slot of each expanded node, or of the row end after it. newest: not yet
    in these tables; nobody asks for the deepest level's, which so costs nothing.
    """

    outputs: Tensor
    seen: Tensor
    slot_of: Tensor
    newest: Newest | None = None

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


class Unread:
    """Codes and the target's features before them that are decided and not yet read, per image.

    codes: (images, room). features: (images, guidance, room, hidden). counts: how many are valid,
    on the host. count: (images, 1) the same on the device, for rounds that are recorded, which
    never ask the host.
    """

    def __init__(self, codes: Tensor, features: Tensor):
        """Take empty tables of these shapes."""
        self.codes, self.features = codes, features
        self.counts = [0] * len(codes)
        self.count = torch.zeros_like(codes[:, :1])

    def start(self, image: int, features: Tensor, code: Tensor) -> None:
        """Hold the first code (1,) of an image and the feature (guidance, 1, hidden) before it."""
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
        for image, n in enumerate(decided.counts):
            self._add(image, decided.features[image, :, :n], decided.codes[image, :n])

    def _add(self, image: int, features: Tensor, codes: Tensor) -> None:
        there = slice(self.counts[image], self.counts[image] + len(codes))
        self.features[image, :, there], self.codes[image, there] = features, codes
        self.counts[image] += len(codes)

    def select(self, images: list[int]) -> "Unread":
        """Return these images' only."""
        chosen = Unread(self.codes[images], self.features[images])
        chosen.counts, chosen.count = [self.counts[i] for i in images], self.count[images]
        return chosen
