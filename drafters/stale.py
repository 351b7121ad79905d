"""The target's features of the last verified tree, recalled by similarity of tokens.

`drafters.similar` recalls distributions in the same way. Features can be read by a network, too.
And since the target's head is linear, a mixture of features gives the geometric mixture of their
distributions.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.drafter import Decided
from decoding.transfer import on_device
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from drafters.likeness import REACH, SHARPNESS, directions_of, observed
from models.base import TargetModel

UNKNOWN = -1.0  # the similarity where no node stands


def recall(
    tokens: Tensor, places: Tensor, nodes: "Nodes", directions: Tensor
) -> tuple[Tensor, Tensor]:
    """Return features (images, guidance, k, hidden) by similarity, and the greatest similarity.

    The latter is (images, k): 1 for the same tokens, `UNKNOWN` where no node stands at the place.
    There the features are 0.

    Args:
        tokens: (images, k, REACH) the last ones, the newest first.
        places: (images, k) the positions of the newest.
        nodes: that are recalled.
        directions: (codes, hidden) the codes' normalised embeddings.
    """
    here = places[..., None] == nodes.places[:, None]  # (images, k, nodes)
    known = here.any(2)
    merit = torch.zeros(here.shape, dtype=directions.dtype, device=directions.device)
    for back, sharpness in enumerate(SHARPNESS):
        one, other = directions[tokens[..., back]], directions[nodes.lineage[..., back]]
        merit = merit.baddbmm(one, other.transpose(1, 2), alpha=sharpness)
    weights = merit.masked_fill(~here & known[..., None], -torch.inf).softmax(2) * known[..., None]
    likeness = merit.masked_fill(~here, -torch.inf).amax(2) / sum(SHARPNESS)
    found = weights[:, None].to(nodes.features.dtype) @ nodes.features
    return found, likeness.where(known, UNKNOWN)


@dataclass
class Nodes:
    """Nodes of a verified tree.

    places: (images, nodes) their positions, -1 for none. lineage: (images, nodes, REACH) their last
    tokens. features: (images, guidance, nodes, hidden) of the target, which predict their children.
    """

    places: Tensor
    lineage: Tensor
    features: Tensor

    def select(self, images: list[int]) -> "Nodes":
        """Return these images' only."""
        return Nodes(self.places[images], self.lineage[images], self.features[images])


class StaleFeatures:
    """What a block drafter remembers of the images in flight: the last tree, and the row above.

    root: (images, 1) the position of the last decided token. recent: (images, REACH) the last
    decided tokens, the root's first. The feature that predicted the token in slot s of an image
    stands in row s % rows of `exact` (images, guidance, rows + 1, hidden); the last row is for what
    nobody reads.
    """

    def __init__(
        self, target: TargetModel, images: int, guidance: int, window: int, nodes: int = 0
    ):
        """Allocate.

        Args:
            target: whose features they are.
            images: in flight.
            guidance: rows per image.
            window: the most positions after the root that are asked for.
            nodes: of the largest tree, if rounds are recorded; 0 if not.
        """
        self.grid, device, hidden = target.grid, target.device, target.spec.hidden
        self.directions = directions_of(target)  # (codes, hidden)
        self.rows = self.grid.slots(self.grid.columns) + 2 * self.grid.block(window)
        self.root = torch.zeros(images, 1, dtype=torch.long, device=device)
        self.recent = self.root.new_zeros(images, REACH)
        self.exact = torch.zeros(
            images, guidance, self.rows + 1, hidden, dtype=target.dtype, device=device
        )
        self.room = nodes
        none = self.exact.new_zeros(images, guidance, 1 + nodes, hidden)
        lineage = self.root.new_zeros(images, 1 + nodes, REACH)
        self.nodes = Nodes(lineage[..., 0] - 1, lineage, none)

    def start(self, image: int, feature: Tensor, code: Tensor) -> None:
        """Begin an image: the feature (guidance, 1, hidden) before its first code (1,)."""
        self.root[image], self.recent[image], self.nodes.places[image] = 0, code, -1
        self.exact[image, :, :1] = feature

    def recall(self, tokens: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (images, guidance, k, hidden) after tokens, and similarities (images, k).

        Where no node stands, the feature is the one that predicted the token above the next one; in
        the first row, and below undecided tokens, the one that predicted the root.

        tokens: (images, k, REACH). places: (images, k) the position of the newest.
        """
        found, likeness = recall(tokens, places, self.nodes, self.directions)
        above = self.above(places)
        return torch.where((likeness > UNKNOWN)[:, None, :, None], found, above), likeness

    def above(self, places: Tensor) -> Tensor:
        """Return the features (images, guidance, k, hidden) that predicted the tokens above.

        They are those above the tokens after places (images, k).
        """
        above = places + 1 - self.grid.columns
        above = torch.where(above < 0, self.root, above).minimum(self.root)
        return self._exact(above)

    def before_root(self) -> Tensor:
        """Return the feature (images, guidance, 1, hidden) that predicted the root."""
        return self._exact(self.root)

    def _exact(self, position: Tensor) -> Tensor:
        row = self.grid.slots(position) % self.rows
        index = row[:, None, :, None].expand(-1, self.exact.shape[1], -1, self.exact.shape[3])
        return self.exact.gather(2, index)

    def observe(self, tree: DraftTree, features: Tensor, verdict: Verdict) -> None:
        """Replace the last tree by a verified one; features: as of `Nodes`."""
        found = observed(tree, verdict, self.root, self.recent)
        self.nodes = self._remember(Nodes(*found, features))
        self.next = self.grid.slots(self.root) + 1  # the slot after the root
        self.root += verdict.accepted[:, None] + 1

    def _remember(self, new: Nodes) -> Nodes:
        """Return the last tree's nodes; written in place where rounds are recorded."""
        if not self.room:
            return new
        count, nodes = new.places.shape[1], self.nodes
        nodes.places.fill_(-1)
        nodes.places[:, :count], nodes.lineage[:, :count] = new.places, new.lineage
        nodes.features[:, :, :count] = new.features
        return nodes

    def commit(self, decided: Decided) -> None:
        """Keep the features that predicted what the round decided; after `observe`."""
        counts = decided.counts
        if not isinstance(counts, Tensor):
            counts = on_device(counts, self.root.device)[:, None]
        n = decided.codes.shape[1]
        place = torch.arange(n, device=self.root.device)
        rows = torch.where(place < counts, (self.next + place) % self.rows, self.rows)
        index = rows[:, None, :, None].expand_as(decided.features)
        self.exact.scatter_(2, index, decided.features)

    def select(self, images: list[int]) -> None:
        """Keep these images only."""
        self.root, self.recent = self.root[images], self.recent[images]
        self.exact, self.nodes = self.exact[images], self.nodes.select(images)
