"""Verification: the target scores trees in one forward pass, and a rule judges them."""

from torch import Tensor

from decoding.cache import KVCache
from decoding.noise import NodeNoise
from decoding.reading import TreeReader, WholeReader
from decoding.sampling import SamplingDistribution
from decoding.slots import Slots
from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict, Verifier
from models.base import TargetModel


class Judge:
    """Scores and judges the trees of a round; on a CPU in one call, where that is possible."""

    def __init__(
        self,
        target: TargetModel,
        distribution: SamplingDistribution,
        verifier: Verifier,
        reader: TreeReader,
        watch: Stopwatch,
    ):
        self.target, self.distribution, self.verifier = target, distribution, verifier
        self.reader, self.watch = reader, watch
        # whether all layers read all slots, in their own order
        self.whole = isinstance(reader, WholeReader)
        # reads roots for which nothing was drafted
        self.bare = reader if self.whole else WholeReader(target, distribution)
        self.exact = verifier.name == "exact" and not distribution.cuts

    def begin(self, cache: KVCache) -> None:
        """Begin a round with the target's cache."""
        self.bare.begin(cache)
        if not self.whole:
            self.reader.begin(cache)

    def __call__(
        self, tree: DraftTree, slots: Slots, noise: NodeNoise
    ) -> tuple[Tensor, Tensor, Verdict]:
        """Return features, log p and the verdict of a tree, as `Verified` has them."""
        reader = self.reader if tree.nodes or tree.drafted else self.bare
        whole = isinstance(reader, WholeReader) and reader.runs_whole(slots)
        if whole and self.exact:
            judging = reader.judging(noise, tree)
            return *reader.scored(slots, self.watch, judging), judging.verdict()
        scored = reader.scored(slots, self.watch) if whole else self._score(reader, tree, slots)
        return *scored, self.verifier(tree, scored[1], noise)

    def _score(self, reader: TreeReader, tree: DraftTree, slots: Slots) -> tuple[Tensor, Tensor]:
        """Return features (rows, slots, hidden) and log p (images, 1 + nodes, vocab) of a tree."""
        forward = reader.forward(tree, slots)
        with self.watch.lap("target_forward"):
            features = forward()
            scored = features if slots.exits is None else rows_at(features, slots.exits)
            logits = self.target.score(scored)
        return features, self.distribution(logits)


def rows_at(features: Tensor, index: Tensor) -> Tensor:
    """Return features (rows, slots, hidden) at slots index (images, n): (rows, n, hidden)."""
    if len(index) == 1:
        return features.index_select(1, index[0])
    rows = index.repeat_interleave(len(features) // len(index), 0)
    return features.gather(1, rows[..., None].expand(-1, -1, features.shape[-1]))
