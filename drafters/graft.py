"""Two sources in one tree: a drafter for the next tokens, stale predictions for those after them.

The drafter knows the path but is small. Stale predictions come from the target itself, but were
made after other tokens. Where both speak of a position, their geometric mixture hits more often
than either.
"""

import torch
from torch import Tensor

from decoding.drafter import Decided, Drafter
from decoding.kernels import steps_for
from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from drafters.jacobi import JacobiDrafter
from models.base import PromptRows


class GraftDrafter:
    """Grows levels by a drafter, mixed with stale predictions; these also foresee later positions.

    The forward pass that verifies the tree renews the predictions.
    """

    trust: Tensor | None = None

    def __init__(self, near: Drafter, far: JacobiDrafter, levels: int, cut: bool):
        """near: follows paths; far: keeps the stale predictions. levels: that near is asked for;
        deeper ones are recalled alone. cut: whether distributions give some codes probability 0.
        """
        self.near, self.far, self.levels, self.cut = near, far, levels, cut
        self.reads = near.reads

    @property
    def window(self) -> int:
        return self.far.window

    @property
    def replays(self) -> bool:
        return self.near.replays and self.far.replays

    def open(self, images: int, watch: Stopwatch, fixed: bool = False) -> None:
        for drafter in (self.near, self.far):
            drafter.open(images, watch, fixed)

    def start(self, image: int, prompt: PromptRows, features: Tensor, code: Tensor) -> None:
        for drafter in (self.near, self.far):
            drafter.start(image, prompt, features, code)

    def expand(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        if tree.height >= self.levels:
            log_q = self.far.expand(tree, nodes)
            self.trust = self.far.trust
            return log_q
        log_q = self.near.expand(tree, nodes)
        recalled = self.far.recall(tree, nodes)
        self.trust = recalled.trust
        if kernels := steps_for(log_q):
            return kernels.mix(log_q, recalled.log_q, recalled.share, self.cut)
        mixed = torch.lerp(log_q, recalled.log_q, recalled.share[..., None])
        if self.cut:  # a code that one of them cuts has the drafter's say
            mixed = torch.where(mixed.isfinite() & recalled.log_q.isfinite(), mixed, log_q)
        return mixed.log_softmax(-1)

    def foresee(self) -> Tensor:
        return self.far.foresee()

    def observe(self, tree: DraftTree, log_p: Tensor, verdict: Verdict) -> None:
        for drafter in (self.near, self.far):
            drafter.observe(tree, log_p, verdict)

    def commit(self, decided: Decided) -> None:
        for drafter in (self.near, self.far):
            drafter.commit(decided)

    def select(self, images: list[int]) -> None:
        for drafter in (self.near, self.far):
            drafter.select(images)
