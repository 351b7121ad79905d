"""Which tokens of a round the target's first layers have read, in the order of their slots."""

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.tree import DraftTree

_ROOT = -2  # its key: no parent's slot times codes plus code is below -1 times codes


class Entered:
    """The slots after the committed ones that the first layers have filled in this round.

    Slot 0 is the root's. count: how many slots there are. hidden: (images, guidance, slots, hidden)
    states after these layers. outputs: (images, guidance, slots, hidden) predicted features; those
    of slots that were read for the verification alone are missing at the end. seen: (images, slots,
    slots) bool, what a slot sees. keys: (images, slots) parent's slot x codes + code, which tells
    the nodes of a tree apart. slot_of: (images, grown nodes) slots of the expanded nodes.
    """

    def __init__(self, images: int, codes: int, before: Tensor):
        """codes: of the target. before: (images, guidance, 1, hidden) features before the roots."""
        device = before.device
        self.codes, self.before = codes, before
        self.hidden = self.outputs = before[:, :, :0]
        self.seen = torch.zeros(images, 0, 0, dtype=torch.bool, device=device)
        self.keys = torch.zeros(images, 0, dtype=torch.long, device=device)
        self.slot_of = self.keys

    @property
    def count(self) -> int:
        return self.keys.shape[1]

    def parents(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        """Return the slots of the parents of nodes (images, k) below the root, while it grows."""
        return self.slot_of.gather(1, tree.parents.gather(1, nodes))

    def seen_by(self, codes: Tensor, parents: Tensor | None) -> Tensor:
        """Return what new slots see, (images, k, slots + k) bool; None for the roots' parents."""
        k = codes.shape[1]
        own = torch.eye(k, dtype=torch.bool, device=codes.device).expand(len(codes), -1, -1)
        if parents is None:
            return own
        index = parents[..., None].expand(-1, -1, self.count)
        return torch.cat([self.seen.gather(1, index), own], 2)

    def outputs_before(self, parents: Tensor | None) -> Tensor:
        """Return the features (images, guidance, k, hidden) before slots with these parents."""
        return self.before if parents is None else _at(self.outputs, parents)

    def hidden_at(self, slots: Tensor) -> Tensor:
        """Return the hidden states (images, guidance, n, hidden) of slots (images, n)."""
        return _at(self.hidden, slots)

    def add(
        self,
        codes: Tensor,
        parents: Tensor | None,
        hidden: Tensor,
        seen: Tensor,
        outputs: Tensor | None = None,
    ) -> None:
        """Enter codes (images, k) as new slots, with what the layers made of them."""
        key = torch.full_like(codes, _ROOT * self.codes)
        key = key if parents is None else parents * self.codes + codes
        self.keys = torch.cat([self.keys, key], 1)
        self.hidden = torch.cat([self.hidden, hidden], 2)
        self.seen = torch.cat([F.pad(self.seen, (0, codes.shape[1])), seen], 1)
        if outputs is not None:
            self.outputs = torch.cat([self.outputs, outputs], 2)

    def note(self, tree: DraftTree, nodes: Tensor) -> None:
        """Note that the newest slots are those of nodes (images, k) of the growing tree."""
        k = nodes.shape[1]
        known = F.pad(self.slot_of, (0, tree.nodes + 1 - self.slot_of.shape[1]))
        slots = torch.arange(self.count - k, self.count, device=nodes.device)
        self.slot_of = known.scatter(1, nodes, slots.expand_as(nodes))

    def find(self, tree: DraftTree) -> Tensor:
        """Return the slots (images, 1 + nodes) of a pruned tree's nodes, -1 for those without.

        A node is told by its parent's slot and its code, since siblings have different codes.
        """
        found = torch.zeros_like(tree.tokens)
        for _ in range(tree.height):
            keys = found.gather(1, tree.parents) * self.codes + tree.tokens
            same = keys[..., None] == self.keys[:, None]  # (images, 1 + nodes, slots)
            found = torch.where(same.any(2), same.int().argmax(2), -1)
            found[:, 0] = 0
        return found


def _at(values: Tensor, slots: Tensor) -> Tensor:
    """Return values (images, guidance, slots, hidden) at slots (images, n)."""
    index = slots[:, None, :, None].expand(-1, values.shape[1], -1, values.shape[3])
    return values.gather(2, index)
