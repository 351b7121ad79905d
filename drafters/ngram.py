"""Drafts from image n-grams in two dimensions: tables of contexts, filled while drawing.

The context of a token is what stands to its left, above it and above left. A table keeps, per
context, the mean of the target's latest distributions after it: over all images of a run, and over
all verified nodes, since those that were refused have true predictions too. A longer context is
smoothed by the shorter one (a Dirichlet prior, MacKay and Peto 1995). Most contexts come up once,
so the shorter ones are of classes of similar codes (Brown et al. 1992): class n-grams.

ADED (arXiv 2407.12021) drafts text from a table of trigrams.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.drafter import Decided
from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from models.base import PromptRows, TargetModel

CLASSES = 64  # of similar codes
PRIOR = 2.0  # how many observations the shorter context counts for
MEMORY = 5.0  # a mean is that of about so many latest observations
_BYTES = 2**26  # of one table
_MIX = 0x9E3779B97F4A7C15 - 2**64  # odd; spreads neighbouring keys over the rows


class Means:
    """Running means of distributions by key, in a hash table of bounded size.

    A key whose row another one holds takes it over: the newest context counts.
    """

    def __init__(self, contexts: int, codes: int, device: torch.device):
        """contexts: how many keys there are, from 0. Where all of them fit, none is lost."""
        rows = min(contexts, max(1, _BYTES // (4 * codes)))
        self.hashed = rows < contexts
        self.keys = torch.full((rows,), -1, device=device)
        self.counts = torch.zeros(rows, device=device)
        self.sums = torch.zeros(rows, codes, device=device)

    def smooth(self, keys: Tensor, shorter: Tensor) -> Tensor:
        """Return distributions (n, codes) after keys (n,), given those of the shorter contexts."""
        rows = self._rows(keys)
        known = (self.keys[rows] == keys)[:, None]
        total = (known * self.counts[rows, None]) + PRIOR
        return torch.where(known, self.sums[rows], 0.0).add_(shorter, alpha=PRIOR).div_(total)

    def add(self, keys: Tensor, p: Tensor) -> None:
        """Count distributions p (n, codes) after keys (n,)."""
        rows = self._rows(keys)
        lost = rows[self.keys[rows] != keys]
        self.counts[lost], self.sums[lost] = 0.0, 0.0
        self.keys[rows] = keys
        mine = self.keys[rows] == keys  # of several keys for one row, one has it
        rows, p = rows[mine], p[mine]
        self.counts.index_add_(0, rows, torch.ones_like(p[:, 0]))
        self.sums.index_add_(0, rows, p)
        faded = (MEMORY / self.counts[rows]).clamp_(max=1.0)
        self.counts[rows], self.sums[rows] = (
            self.counts[rows] * faded,
            self.sums[rows] * faded[:, None],
        )

    def _rows(self, keys: Tensor) -> Tensor:
        return ((keys * _MIX) >> 20) % len(self.keys) if self.hashed else keys


class NgramDrafter:
    """Proposes by what stood after the same neighbours before, in this image and earlier ones.

    Neighbours outside the image count as a code of their own. The tables outlive the images: `open`
    forgets none of them.
    """

    window, trust, reads = 0, None, ()
    replays = False  # which rows it writes depends on what they hold

    def __init__(self, target: TargetModel):
        self.grid, self.codes, self.device = target.grid, target.vocab.size, target.device
        own = target.embedding()[target.vocab.first_id :][: self.codes].to(self.device).float()
        classes = min(CLASSES, self.codes)
        outside = torch.tensor([classes], device=self.device)
        self.classes = torch.cat([classes_of(own, classes), outside])  # (codes + 1,)
        sizes = 1, (classes + 1) ** 2, (classes + 1) ** 3, (self.codes + 1) ** 3
        self.tables = [Means(size, self.codes, self.device) for size in sizes]

    def open(self, images: int, watch: Stopwatch, fixed: bool = False) -> None:
        # (images, tokens) the decided codes; (images, 1) the position of the last one
        self.history = torch.zeros(images, self.grid.tokens, dtype=torch.long, device=self.device)
        self.root = torch.zeros_like(self.history[:, :1])

    def start(self, image: int, prompt: PromptRows, features: Tensor, code: Tensor) -> None:
        self.root[image], self.history[image, :1] = 0, code

    def expand(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        q = torch.full((nodes.numel(), self.codes), 1 / self.codes, device=self.device)
        for table, keys in zip(self.tables, self._keys(tree, nodes), strict=True):
            q = table.smooth(keys.flatten(), q)
        return q.view(*nodes.shape, -1).to(tree.scores.dtype).log()

    def foresee(self) -> Tensor:
        raise NotImplementedError  # never called: the window is 0

    def observe(self, tree: DraftTree, log_p: Tensor, verdict: Verdict) -> None:
        every = torch.arange(tree.nodes + 1, device=self.device).expand_as(tree.tokens)
        seen, p = tree.present.flatten(), log_p.float().exp().flatten(0, 1)
        for table, keys in zip(self.tables, self._keys(tree, every), strict=True):
            table.add(keys.flatten()[seen], p[seen])
        place = torch.arange(verdict.emitted.shape[1], device=self.device)
        decided = place <= verdict.accepted[:, None]
        position = (self.root + 1 + place).clamp(max=self.grid.tokens - 1)
        known = self.history.gather(1, position)
        self.history.scatter_(1, position, torch.where(decided, verdict.emitted, known))
        self.root += verdict.accepted[:, None] + 1

    def commit(self, decided: Decided) -> None:
        pass

    def select(self, images: list[int]) -> None:
        self.history, self.root = self.history[images], self.root[images]

    def _keys(self, tree: DraftTree, nodes: Tensor) -> list[Tensor]:
        """Return the keys (images, k) of the tokens after nodes (images, k), a row per table."""
        columns = self.grid.columns
        position = self.root + 1 + tree.depths.gather(1, nodes)
        first, top = position % columns == 0, position < columns
        left = tree.tokens.gather(1, nodes).masked_fill(first, self.codes)
        above = self._code(tree, nodes, position - columns).masked_fill(top, self.codes)
        corner = self._code(tree, nodes, position - columns - 1)
        near = left, above, corner.masked_fill(top | first, self.codes)
        alike = [self.classes[code] for code in near]
        size = int(self.classes[-1]) + 1
        return [
            torch.zeros_like(left),
            key_of(alike[:2], size),
            key_of(alike, size),
            key_of(near, self.codes + 1),
        ]

    def _code(self, tree: DraftTree, nodes: Tensor, position: Tensor) -> Tensor:
        """Return the codes at positions (images, k): decided ones, or nodes' own ancestors."""
        decided = self.history.gather(1, position.clamp(0, self.grid.tokens - 1))
        if tree.height < self.grid.columns - 1:
            return decided
        depth = position - self.root
        path = tree.visible.gather(1, nodes[..., None].expand(-1, -1, tree.nodes + 1))
        there = path & (tree.depths[:, None] == depth[..., None])
        return torch.where(depth > 0, (there * tree.tokens[:, None]).sum(2), decided)


def key_of(codes: list[Tensor], size: int) -> Tensor:
    """Return one number for codes below `size`."""
    key = torch.zeros_like(codes[0])
    for code in codes:
        key = key * size + code
    return key


def classes_of(embeddings: Tensor, count: int, rounds: int = 10) -> Tensor:
    """Return a class below `count` for each embedding (codes, hidden): spherical k-means."""
    points = F.normalize(embeddings, dim=1)
    start = torch.randperm(len(points), generator=torch.Generator().manual_seed(0))[:count]
    centres = points[start.to(points.device)]
    for _ in range(rounds):
        nearest = (points @ centres.T).argmax(1)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = torch.where(sums.any(1, keepdim=True), F.normalize(sums, dim=1), centres)
    return (points @ centres.T).argmax(1)
