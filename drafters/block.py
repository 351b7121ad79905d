"""Block drafter: one pass of an EAGLE head over stale features drafts all levels of a tree.

An EAGLE head reads the feature before a token and the token. Below the root it waits for its own
prediction of the feature, level by level. But a verified tree leaves the target's features at the
next positions, after tokens that may have been wrong (`drafters.stale`). With these in the place of
its own predictions the head reads a whole window of positions at once (block drafts: DFlash, arXiv
2602.06036). What it predicts is mixed with the stale features themselves.

The window has several candidates per position: the best ones by the stale predictions and, since
the target's choices are a function of its noise, by that noise. Each is read after the best
candidates of the positions before it.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from decoding.cache import Fixed
from decoding.drafter import Decided
from decoding.noise import Noise
from decoding.sampling import SamplingDistribution
from decoding.timing import Stopwatch
from decoding.transfer import on_device
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from drafters.block_head import BlockHead
from drafters.eagle import EagleDrafter
from drafters.likeness import lineage_along
from drafters.stale import StaleFeatures
from models.base import Context, PromptRows, TargetModel

CANDIDATES = 4  # per position
SWEEPS = 4  # to find the best ones


@dataclass(frozen=True)
class Window:
    """Candidates for the next positions; step 0 is the root.

    codes: (images, steps, candidates), the best first. before: (images, guidance, steps, hidden)
    the feature before each step's codes. stale: (images, guidance, steps, candidates, hidden) stale
    ones after them. likeness: (images, steps, candidates) their similarity.
    """

    codes: Tensor
    before: Tensor
    stale: Tensor
    likeness: Tensor


Score = Callable[[Tensor], Tensor]  # features (images, guidance, n, hidden) -> (images, n, vocab)


def foresee(
    memory: StaleFeatures, steps: int, score: Score, noise: Noise | None, candidates: int
) -> Window:
    """Return the window that stale features foresee.

    The best tokens of all steps are found at once: each sweep takes those of the one before for the
    tokens before a step (Jacobi iteration), so the first steps are those of one step at a time.

    score: returns log q of features. noise: that candidates are chosen with; None for none.
    """
    places = memory.root + torch.arange(steps, device=memory.root.device)
    old, root = memory.recent.flip(1), memory.recent[:, :1]
    line = torch.cat([old, root.expand(-1, steps - 1)], 1)  # (images, REACH - 1 + steps)
    for _ in range(SWEEPS):
        stale, _ = memory.recall(lineage_along(line), places)
        values = score(stale) if noise is None else score(stale) + noise(places + 1)
        found = values.topk(candidates, dim=2).indices[:, :-1]  # of steps 1, 2, ...
        line = torch.cat([old, found[..., 0]], 1)
    codes = torch.cat([root[..., None].expand(-1, -1, candidates), found], 1)
    before = torch.cat([memory.before_root(), stale[:, :, :-1]], 2)
    older = lineage_along(line)[..., 1:].repeat_interleave(candidates, 1)
    tokens = torch.cat([codes.flatten(1)[..., None], older], 2)
    after, likeness = memory.recall(tokens, places.repeat_interleave(candidates, 1))
    size = steps, candidates
    return Window(codes, before, after.unflatten(2, size), likeness.unflatten(1, size))


def visible(counts: Tensor, decided: int, steps: int, candidates: int) -> Tensor:
    """Return what slots see, (images, n, n) bool: decided tokens, then a window.

    A decided token sees those before it. A candidate sees the decided ones before the root, the
    best candidates of earlier steps, and itself.

    counts: (images, 1) how many of the `decided` slots are valid; the root's is the last of them.
    """
    slots = decided + steps * candidates
    slot = torch.arange(slots, device=counts.device)
    step = (slot - decided).div(candidates, rounding_mode="floor")
    best = (slot >= decided) & ((slot - decided) % candidates == 0)
    own = slot == slot[:, None]
    among = (slot <= slot[:, None]) & (slot < decided)
    earlier = best & (step < step[:, None]) | own
    before_root = slot < counts[..., None] - 1  # (images, 1, slots)
    window = (slot >= decided)[:, None]
    return torch.where(window, before_root | earlier, among)


class BlockDrafter(EagleDrafter):
    """Drafts with a block head: the decided tokens and the whole window in one pass of a round."""

    def __init__(
        self,
        head: BlockHead,
        target: TargetModel,
        distribution: SamplingDistribution,
        room: int,
        deepest: int,
    ):
        self.steps = self.window = max(deepest, 1)  # a node of depth d is expanded by step d
        super().__init__(head, target, distribution, max(room, self.steps * CANDIDATES), deepest)

    def open(self, images: int, watch: Stopwatch, fixed: bool = False) -> None:
        super().open(images, watch, fixed)
        guidance = self.distribution.guidance
        nodes = self.room if fixed else 0
        self.memory = StaleFeatures(self.target, images, guidance, self.deepest, nodes)
        self.noise: Noise | None = None
        self.log_q: Tensor | None = None  # of this round's window

    def start(self, image: int, prompt: PromptRows, features: Tensor, code: Tensor) -> None:
        super().start(image, prompt, features, code)
        self.memory.start(image, self._own(features[:, -1:]), code)

    def hear(self, noise: Noise) -> None:
        self.noise = noise

    def expand(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        if tree.nodes == 0:
            self._read_window()
        step = min(tree.height, self.steps - 1)
        codes = self.ahead.codes[:, step]  # (images, candidates)
        # a code that is no candidate takes the best one's place
        which = (tree.tokens.gather(1, nodes)[..., None] == codes[:, None]).long().argmax(2)
        self.trust = self.trusts[:, step].gather(1, which)
        log_q = self.log_q[:, step]
        return log_q.gather(1, which[..., None].expand(-1, -1, log_q.shape[2]))

    def foresee(self) -> Tensor:
        if self.log_q is None:  # without levels
            self._read_window()
        return self.log_q[:, :, 0]

    def _own(self, features: Tensor) -> Tensor:
        """Return features without hidden states, which stale features have none of."""
        return features[..., : self.target.spec.hidden]

    def _score(self, features: Tensor) -> Tensor:
        """Return log q (images, n, vocab) of features (images, guidance, n, hidden)."""
        with self.watch.lap("draft_head"):
            return self.distribution(self.target.score(features.flatten(0, 1)))

    def _read_window(self) -> None:
        """Read the newly decided tokens and the window in one pass."""
        counts, longest = self._unread()
        self.decided = self._features(longest)
        self.ahead = foresee(self.memory, self.steps, self._score, self.noise, CANDIDATES)
        step = torch.arange(self.steps, device=counts.device).repeat_interleave(CANDIDATES)
        slots, root = self.target.grid.slots, self.memory.root
        decided = torch.arange(longest, device=counts.device).expand(len(counts), -1)
        depths = torch.cat([decided, counts - 1 + slots(root + step) - slots(root)], 1)
        seen = visible(counts, longest, self.steps, CANDIDATES)
        outputs = self._pass(step, longest, self.cache.open(depths, seen))
        self._have_read()
        self._mix(outputs[:, :, longest:])

    def _mix(self, predicted: Tensor) -> None:
        """Set log q (images, steps, candidates, vocab) after all candidates, and trust in them."""
        size, stale = (self.steps, CANDIDATES), self.ahead.stale.flatten(2, 3)
        mixed = self.head.mix(predicted, stale, self.ahead.likeness.flatten(1))
        self.outputs = predicted.unflatten(2, size)
        self.log_q = self._score(mixed).unflatten(1, size)
        self.trusts = self.head.confidence(self.ahead.likeness)

    def _unread(self) -> tuple[Tensor, int]:
        """Return how many tokens (images, 1) are decided and not yet read, and the most slots."""
        new = self.unread.settle()
        if self.fixed:
            self.cache.fixed = Fixed(self.lengths, self.cache.slots)
            return new.count, new.codes.shape[1]
        return on_device(new.counts, new.codes.device)[:, None], max(new.counts)

    def _before_root(self) -> Tensor:
        """Return what the head reads before the root, (images, guidance, 1, hidden)."""
        counts, _ = self._unread()
        features = self.decided
        last = (counts - 1)[:, None, :, None].expand(-1, features.shape[1], -1, features.shape[3])
        return features.gather(2, last)

    def _have_read(self) -> None:
        """Commit the decided tokens of the pass."""
        if self.fixed:
            self.lengths += self.unread.count[:, 0]
            return
        self.cache.advance(self.unread.counts)
        self.unread.counts = [0] * len(self.unread.counts)

    def _pass(self, step: Tensor, longest: int, context: Context) -> Tensor:
        """Return what the head predicts: (images, guidance, longest + window, hidden).

        step: (window,) of its candidates. longest: slots of decided tokens.
        """
        window = self.ahead
        codes = torch.cat([self.unread.codes[:, :longest], window.codes.flatten(1)], 1)
        before = torch.cat([self._before_root(), window.before[:, :, 1:]], 2)
        before = before.repeat_interleave(CANDIDATES, 2)
        features = torch.cat([self.decided, before], 2)
        guidance = features.shape[1]
        ids = (codes + self.target.vocab.first_id).repeat_interleave(guidance, 0)
        stale = window.stale.flatten(2, 3).flatten(0, 1)
        with self.watch.lap("draft_forward"):
            outputs = self.head.read(ids, features.flatten(0, 1), stale, step, context)
        return outputs.unflatten(0, (-1, guidance))

    def see(self, features: Tensor) -> None:
        self.seen = self._own(features)

    def observe(self, tree: DraftTree, log_p: Tensor, verdict: Verdict) -> None:
        if self.fixed and self.log_q is None:  # what is unread would be lost
            self._read_window()
        self.log_q = None
        self.memory.observe(tree, self.seen, verdict)

    def commit(self, decided: Decided) -> None:
        super().commit(decided)
        self.memory.commit(replace(decided, before=self._own(decided.features)))

    def select(self, images: list[int]) -> None:
        super().select(images)
        self.memory.select(images)
