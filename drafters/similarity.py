"""How alike tokens are, and the last tokens of the nodes of a tree.

Two tokens are as similar as the cosine of their embeddings in the target says. Drafters that recall
what the target made of the last tree compare the last tokens of nodes.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.device import arange, constant
from decoding.round import RoundResult
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from models.target import TargetModel
from support.compiler import fused

# The weight of a node is the softmax of its tokens' cosines times these numbers: its own token, the
# one before it, and the one before that.
# Chosen on validation prompts.
SHARPNESS = 30.0, 10.0, 5.0
REACH = len(SHARPNESS)  # tokens
UNKNOWN = -1.0  # the similarity where no node stands


@dataclass(frozen=True)
class Directions:
    """The directions of tokens: their embeddings in the target, normalised, in fp32 or better.

    Only norms are kept: a table of directions for Emu3.5's 131,072 codes would take 2.5 GiB.
    """

    codes: Tensor  # (codes, hidden) embeddings, of any length
    norms: Tensor  # (codes,) of these

    @classmethod
    def of(cls, target: TargetModel) -> "Directions":
        """Return those of a target's codes; where it is on one device the codes take no memory."""
        codes = target.embedding()[target.vocab.first_id :][: target.vocab.size]
        dtype = torch.promote_types(target.dtype, torch.float32)
        return cls.from_embeddings(codes.to(target.device), dtype)

    @classmethod
    def from_embeddings(cls, codes: Tensor, dtype: torch.dtype) -> "Directions":
        """Return those of embeddings (codes, hidden), computed in this dtype."""
        # in parts, since torch copies what it widens
        norms = [torch.linalg.vector_norm(part, dim=1, dtype=dtype) for part in codes.split(4096)]
        return cls(codes, torch.cat(norms).clamp_min(1e-12))

    def __call__(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Codes (...) -> directions (..., hidden); lengths: (...) of them, 1 if None."""
        return _directions(self.codes, self.norms, tokens, lengths)


@fused
def _directions(codes: Tensor, norms: Tensor, tokens: Tensor, lengths: Tensor | None) -> Tensor:
    directions = F.embedding(tokens, codes).to(norms.dtype) / norms[tokens][..., None]
    return directions if lengths is None else directions * lengths[..., None]


def lineage_of(tree: DraftTree, recent: Tensor) -> Tensor:
    """Return the last tokens of all nodes, their own first: (images, 1 + nodes, REACH).

    recent: (images, REACH) the last decided tokens, the root's first.
    """
    older = REACH - 1  # tokens before the root, as nodes of a longer tree
    tokens = torch.cat([recent[:, 1:].flip(1), tree.tokens], 1)
    first = constant((0, *range(older)), tokens.device).expand(len(tokens), -1)
    parents = torch.cat([first, tree.parents[:, 1:] + older], 1)
    path = [arange(tokens.shape[1], tokens.device)[older:].expand(len(tokens), -1)]
    for _ in range(older):
        path.append(parents.gather(1, path[-1]))
    return tokens.gather(1, torch.stack(path, 2).flatten(1)).unflatten(1, (-1, REACH))


class LastTree:
    """The last verified tree of every image in flight, and the last decided tokens."""

    def __init__(self, images: int, nodes: int, device: torch.device):
        """nodes: most of a tree, its root included."""
        # (images, REACH) the last decided tokens, the root's first
        self.recent = torch.zeros(images, REACH, dtype=torch.long, device=device)
        # (images, nodes) image positions; -1 for absent nodes
        self.positions = torch.full((images, nodes), -1, device=device)
        # (images, nodes, REACH) last tokens, a node's own first
        self.lineage = torch.zeros(images, nodes, REACH, dtype=torch.long, device=device)

    def begin(self, image: int, code: Tensor) -> None:
        """Forget an image; code (1,) is the first of the next one."""
        # no image token precedes the first code, so it stands for all of the last ones
        self.recent[image], self.positions[image] = code, -1

    def update(self, result: RoundResult) -> None:
        """Take over a verified tree."""
        tree, count = result.tree, result.tree.nodes + 1
        lineage = lineage_of(tree, self.recent)
        self.recent.copy_(decided_after(lineage, result.verdict))
        position = result.round.inputs.decided - 1 + tree.depths
        self.positions.fill_(-1)
        self.positions[:, :count] = position.masked_fill(~tree.present, -1)
        self.lineage[:, :count] = lineage


def lineage_along(path: Tensor) -> Tensor:
    """Return the last tokens of every step of a path, its own first: (images, steps, REACH).

    path: (images, REACH - 1 + steps) its tokens, those before its first step first.
    """
    return path.unfold(1, REACH, 1).flip(2)


def decided_after(lineage: Tensor, verdict: Verdict) -> Tensor:
    """Return the last decided tokens (images, REACH) after a verdict, the bonus token first.

    lineage: of the verified tree.
    """
    accepted = verdict.accepted[:, None]
    last = verdict.path.gather(1, accepted)[..., None].expand(-1, -1, REACH)
    before = lineage.gather(1, last)[:, 0, :-1]
    return torch.cat([verdict.emitted.gather(1, accepted), before], 1)


@fused
def trust_in(similarity: Tensor, least: float | Tensor, slope: float | Tensor) -> Tensor:
    """Return the trust exp(least + slope m^3) by similarities m (images, k)."""
    return (least + slope * similarity.clamp(0, 1) ** 3).exp()


@dataclass(frozen=True)
class Recollection:
    """The nodes of a verified tree at some positions, to be weighed by similarity of tokens.

    That is kernel regression (Nadaraya 1964) of what the target made of them.
    """

    directions: Directions
    keys: Tensor  # (images, nodes, REACH x hidden) sharpened directions of the nodes' last tokens
    mask: Tensor  # (images, k, nodes) -inf for nodes elsewhere; 0 where no node stands
    known: Tensor  # (images, k) bool: whether a node stands at the position

    @classmethod
    def at(
        cls, positions: Tensor, nodes: Tensor, lineage: Tensor, directions: Directions
    ) -> "Recollection":
        """Return that of positions (images, k).

        Args:
            positions: image positions.
            nodes: (images, nodes) those of the nodes, -1 for absent ones.
            lineage: (images, nodes, REACH) their last tokens.
            directions: of the target's codes.
        """
        # only keys are sharpened: their products with unit vectors are weighted cosines
        keys = directions(lineage, constant(SHARPNESS, positions.device)).flatten(2)
        return cls(directions, keys, *_standing(positions, nodes, keys.dtype))

    def each(self, times: int) -> "Recollection":
        """Return that of every position so many times."""
        mask, known = (values.repeat_interleave(times, 1) for values in (self.mask, self.known))
        return replace(self, mask=mask, known=known)

    def after(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return the nodes' weights (images, k, nodes), and the greatest similarity (images, k).

        The latter is 1 for the same tokens, and `UNKNOWN` where no node stands; there the weights
        mean nothing.

        tokens: (images, k, REACH) the last ones at each position, the newest first.
        """
        query = self.directions(tokens).flatten(2)
        merit = torch.baddbmm(self.mask, query, self.keys.transpose(1, 2))
        return _weigh(merit, self.known)


@fused
def _standing(positions: Tensor, nodes: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    here = positions[..., None] == nodes[:, None]  # (images, k, nodes)
    known = here.any(2)
    mask = torch.zeros(here.shape, dtype=dtype, device=here.device)
    # where no node stands nothing is masked, since a softmax over nothing is NaN
    return mask.masked_fill(~here & known[..., None], -torch.inf), known


@fused
def _weigh(merit: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    similarity = merit.amax(2) / sum(SHARPNESS)
    return merit.softmax(2), similarity.where(known, UNKNOWN)
