r"""Which nodes of the last verified tree are like a candidate, by the similarity of tokens.

Two tokens are as similar as the cosine of their embeddings in the target. Nodes and candidates are
compared by their suffix: the last three tokens of their path, newest first.

    position        7     8     9
    last tree       a --- b --- c        suffix of c: (c, b, a)
                     \--- d --- e        suffix of e: (e, d, a)
    decided now     a --- d
    candidate                   f        suffix of f: (f, d, a), which is more like that of e

A recalled state (or distribution) of f is a mean over the nodes at its position, c and e, of what
the target computed after them, weighted by how similar their suffixes are to f's (kernel
regression, Nadaraya 1964).
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.round import RoundResult
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from models.target import TargetModel
from support.compiler import fused
from support.constants import arange, constant

# The weight of a node is the softmax of the cosines of its suffix times these numbers, newest token
# first. Chosen on validation prompts.
COSINE_WEIGHTS = 30.0, 10.0, 5.0
SUFFIX = len(COSINE_WEIGHTS)  # tokens
NO_NODE = -1.0  # the similarity at a position without nodes


@dataclass(frozen=True)
class UnitEmbeddings:
    """The target's embeddings of image codes, scaled to length 1, in fp32 or better.

    Only norms are kept: a table of scaled ones for Emu3.5's 131,072 codes would take 2.5 GiB.
    """

    codes: Tensor  # (codes, hidden) embeddings, of any length
    norms: Tensor  # (codes,)

    @classmethod
    def of(cls, target: TargetModel) -> "UnitEmbeddings":
        """Return those of a target; on a single device they share its memory."""
        codes = target.embedding()[target.vocab.first_id :][: target.vocab.size]
        dtype = torch.promote_types(target.dtype, torch.float32)
        return cls.from_embeddings(codes.to(target.device), dtype)

    @classmethod
    def from_embeddings(cls, codes: Tensor, dtype: torch.dtype) -> "UnitEmbeddings":
        """Return those of embeddings (codes, hidden), computed in this dtype."""
        # in parts, since torch copies what it widens
        norms = [torch.linalg.vector_norm(part, dim=1, dtype=dtype) for part in codes.split(4096)]
        return cls(codes, torch.cat(norms).clamp_min(1e-12))

    def __call__(self, tokens: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Codes (...) -> embeddings (..., hidden) of these lengths (...); None: of length 1."""
        return _scaled(self.codes, self.norms, tokens, lengths)


@fused
def _scaled(codes: Tensor, norms: Tensor, tokens: Tensor, lengths: Tensor | None) -> Tensor:
    unit = F.embedding(tokens, codes).to(norms.dtype) / norms[tokens][..., None]
    return unit if lengths is None else unit * lengths[..., None]


def node_suffixes(tree: DraftTree, recent: Tensor) -> Tensor:
    """Return the suffixes of all nodes: (images, 1 + nodes, SUFFIX).

    recent: (images, SUFFIX) the last decided tokens, the root's first.
    """
    older = SUFFIX - 1  # tokens before the root, as nodes of a longer tree
    tokens = torch.cat([recent[:, 1:].flip(1), tree.tokens], 1)
    first = constant((0, *range(older)), tokens.device).expand(len(tokens), -1)
    parents = torch.cat([first, tree.parents[:, 1:] + older], 1)
    path = [arange(tokens.shape[1], tokens.device)[older:].expand(len(tokens), -1)]
    for _ in range(older):
        path.append(parents.gather(1, path[-1]))
    return tokens.gather(1, torch.stack(path, 2).flatten(1)).unflatten(1, (-1, SUFFIX))


def path_suffixes(path: Tensor) -> Tensor:
    """Return the suffixes along a path: (images, n, SUFFIX).

    path: (images, SUFFIX - 1 + n) its tokens, in order; the first SUFFIX - 1 only come before.
    """
    return path.unfold(1, SUFFIX, 1).flip(2)


class LastTree:
    """The last verified tree of every image in flight, and the last decided tokens."""

    def __init__(self, images: int, nodes: int, device: torch.device):
        """nodes: most of a tree, its root included."""
        # (images, SUFFIX) the last decided tokens, the root's first
        self.recent = torch.zeros(images, SUFFIX, dtype=torch.long, device=device)
        # (images, nodes) image positions; -1 for absent nodes
        self.positions = torch.full((images, nodes), -1, device=device)
        self.suffixes = torch.zeros(images, nodes, SUFFIX, dtype=torch.long, device=device)

    def begin(self, image: int, code: Tensor) -> None:
        """Forget an image; code (1,) is the first of the next one."""
        # no image token precedes the first code, so it stands for all of the last ones
        self.recent[image], self.positions[image] = code, -1

    def update(self, result: RoundResult) -> None:
        """Take over a verified tree."""
        tree, count = result.tree, result.tree.nodes + 1
        suffixes = node_suffixes(tree, self.recent)
        self.recent.copy_(_last_decided(suffixes, result.verdict))
        position = result.round.inputs.decided - 1 + tree.depths
        self.positions.fill_(-1)
        self.positions[:, :count] = position.masked_fill(~tree.present, -1)
        self.suffixes[:, :count] = suffixes


def _last_decided(suffixes: Tensor, verdict: Verdict) -> Tensor:
    """Return the last decided tokens (images, SUFFIX), the bonus token first.

    suffixes: of the verified tree's nodes.
    """
    accepted = verdict.accepted[:, None]
    last = verdict.path.gather(1, accepted)[..., None].expand(-1, -1, SUFFIX)
    before = suffixes.gather(1, last)[:, 0, :-1]
    return torch.cat([verdict.emitted.gather(1, accepted), before], 1)


@fused
def sharpness_of(similarity: Tensor, offset: float | Tensor, slope: float | Tensor) -> Tensor:
    """Return exp(offset + slope m^3) of similarities m (...): `Predictions.sharpness`."""
    return (offset + slope * similarity.clamp(0, 1) ** 3).exp()


@dataclass(frozen=True)
class SimilarNodes:
    """Weighs the nodes of a tree at some positions by how similar their suffixes are."""

    embeddings: UnitEmbeddings
    keys: Tensor  # (images, nodes, SUFFIX x hidden) of the nodes' suffixes, times COSINE_WEIGHTS
    mask: Tensor  # (images, k, nodes) -inf for nodes at other positions; 0 without any node
    has_node: Tensor  # (images, k) bool: whether the tree has a node at the position

    @classmethod
    def at(
        cls, positions: Tensor, nodes: Tensor, suffixes: Tensor, embeddings: UnitEmbeddings
    ) -> "SimilarNodes":
        """Look up the nodes at positions (images, k).

        Args:
            positions: image positions.
            nodes: (images, nodes) image positions of the nodes, -1 for absent ones.
            suffixes: (images, nodes, SUFFIX) of the nodes.
            embeddings: of the target's codes.
        """
        # only keys are scaled: their products with unit vectors are weighted cosines
        keys = embeddings(suffixes, constant(COSINE_WEIGHTS, positions.device)).flatten(2)
        return cls(embeddings, keys, *_nodes_at(positions, nodes, keys.dtype))

    def repeat(self, times: int) -> "SimilarNodes":
        """Repeat every position."""
        mask, has_node = (v.repeat_interleave(times, 1) for v in (self.mask, self.has_node))
        return replace(self, mask=mask, has_node=has_node)

    def weigh(self, suffixes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the nodes' weights (images, k, nodes), and the greatest similarity (images, k).

        The similarity of equal suffixes is 1. At a position without nodes it is `NO_NODE`, and the
        weights mean nothing.

        suffixes: (images, k, SUFFIX) to compare with, one at each position.
        """
        query = self.embeddings(suffixes).flatten(2)
        scores = torch.baddbmm(self.mask, query, self.keys.transpose(1, 2))
        return _weights(scores, self.has_node)


@fused
def _nodes_at(positions: Tensor, nodes: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    here = positions[..., None] == nodes[:, None]  # (images, k, nodes)
    has_node = here.any(2)
    mask = torch.zeros(here.shape, dtype=dtype, device=here.device)
    # without a node nothing is masked, since a softmax over nothing is NaN
    return mask.masked_fill(~here & has_node[..., None], -torch.inf), has_node


@fused
def _weights(scores: Tensor, has_node: Tensor) -> tuple[Tensor, Tensor]:
    similarity = scores.amax(2) / sum(COSINE_WEIGHTS)
    return scores.softmax(2), similarity.where(has_node, NO_NODE)
