"""Verification: the target scores trees in one forward pass, and a rule judges them."""

from torch import Tensor

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
        self.exact = verifier.name == "exact" and not distribution.cuts

    def __call__(
        self, tree: DraftTree, slots: Slots, noise: NodeNoise
    ) -> tuple[Tensor, Tensor, Verdict]:
        """Return features, log p and the verdict of a tree, as `Verified` has them."""
        if self.exact and self._in_one_call(slots):
            judging = self.reader.judging(noise, tree)
            return *self.reader.scored(slots, self.watch, judging), judging.verdict()
        features, log_p = self._score(tree, slots)
        return features, log_p, self.verifier(tree, log_p, noise)

    def _in_one_call(self, slots: Slots) -> bool:
        return self.whole and self.reader.runs_whole(slots)

    def _score(self, tree: DraftTree, slots: Slots) -> tuple[Tensor, Tensor]:
        """Return features (rows, slots, hidden) and log p (images, 1 + nodes, vocab) of a tree."""
        if self._in_one_call(slots):
            return self.reader.scored(slots, self.watch)
        forward = self.reader.forward(tree, slots)
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
