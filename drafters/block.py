"""Block drafter: three passes of an EAGLE head over a window of positions draft a whole tree.

An EAGLE head reads the hidden state before a token and the token. Below the root it waits for its
own prediction of that state, level by level. But a verified tree leaves the target's hidden states
at the next positions, after tokens that may have been wrong (`drafters.hidden_states`). With these
in the place of its own predictions the head reads a whole window of positions at once (block
drafts: DFlash, arXiv 2602.06036). What it predicts is mixed with the stale states themselves. Later
passes read what the one before predicted: Jacobi iteration of the drafter.

The window has several candidates per position: the best ones by the predictions and, since the
target's choices are a function of its noise, by that noise. Each is read after the best candidates
of the positions before it.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from decoding.device import Stopwatch, arange
from decoding.drafter import Draft
from decoding.proposals import Coupled, Proposal
from decoding.round import Round, RoundResult, TreeShape, hidden_at
from decoding.sampling import SamplingDistribution
from decoding.tree import GrowingTree
from drafters.drafting import Drafting
from drafters.eagle import EagleDrafter, EagleHead
from drafters.hidden_states import Stale, StaleHiddenStates
from drafters.similarity import trust_in
from drafters.window import (
    WindowDrafts,
    candidates_after,
    choose_again,
    lineages,
    noise_to_see,
)
from models.base import Context, PromptRows, TransformerSpec
from models.target import TargetModel

CANDIDATES = 3  # per position; 4 or 6 accept no more
# Of the head in a round: with 1, 2 and 3, trees of 58 nodes accept 5.28, 5.78 and 6.03 tokens
# (T = 1). To improve the first window by stale states alone adds nothing to two.
PASSES = 3
# What a head has until it is trained in its own rounds: shares of the stale features in the
# mixture, the logistic function of a + b m for similarity m; and trust in it, exp(a + b m^3).
# Fitted to closed-loop rounds of the shipped model at T = 1 and 0.
SHARE = -3.9, 6.0
TRUST = -0.2, 1.6

Score = Callable[[Tensor], Tensor]  # hidden states (images, guidance, n, hidden) -> log q


class BlockHead(EagleHead):
    """An EAGLE head and four numbers: shares of stale features in its predictions, and trust."""

    def __init__(self, spec: TransformerSpec, bias: bool = True):
        super().__init__(spec, bias)
        self.share = nn.Parameter(torch.tensor(SHARE))
        self.trust = nn.Parameter(torch.tensor(TRUST))

    @staticmethod
    def of(head: EagleHead) -> "BlockHead":
        """Return the block head that an EAGLE head is without training; a block head as it is."""
        if isinstance(head, BlockHead):
            return head
        weight = head.fc.weight
        with torch.device("meta"):
            block = BlockHead(head.spec, head.fc.bias is not None)
        for name, module in head.named_children():
            setattr(block, name, module)
        like = {"dtype": weight.dtype, "device": weight.device}
        block.share = nn.Parameter(torch.tensor(SHARE, **like))
        block.trust = nn.Parameter(torch.tensor(TRUST, **like))
        return block.requires_grad_(False).eval()

    def mix(self, predicted: Tensor, stale: Tensor, similarity: Tensor) -> Tensor:
        """Return features (images, guidance, n, hidden): predicted ones mixed with stale ones.

        similarity: (images, n) the similarity of the tokens that the stale ones were made after.
        """
        share = (self.share[0] + self.share[1] * similarity).sigmoid()[:, None, :, None]
        return predicted + share.to(predicted.dtype) * (stale - predicted)

    def confidence(self, similarity: Tensor) -> Tensor:
        """Return the trust (images, n) in such mixtures."""
        return trust_in(similarity, self.trust[0], self.trust[1])


@dataclass(frozen=True)
class Window:
    """Candidates for the next positions; step 0 is the root."""

    codes: Tensor  # (images, steps, candidates), the best first
    before: Tensor  # (images, guidance, steps, hidden) the hidden state before each step's codes
    stale: Tensor  # (images, guidance, steps, candidates, hidden) stale ones after them
    similarity: Tensor  # (images, steps, candidates) of what these were recalled from


@dataclass(frozen=True)
class Slots:
    """What every pass of a round reads beside the window, and where.

    The newly decided tokens stand first. Each pass writes the same slots of the head's cache.
    """

    codes: Tensor  # (images, n) newly decided
    hidden: Tensor  # (images, guidance, n, hidden) before them
    before_root: Tensor  # (images, guidance, 1, hidden)
    context: Context  # of all slots


@dataclass(frozen=True)
class Drafted:
    """What a pass of the head drafts after the candidates of a window."""

    window: Window
    hidden: Tensor  # (images, guidance, steps, candidates, hidden) predicted and stale ones, mixed
    log_q: Tensor  # (images, steps, candidates, vocab)
    trust: Tensor  # (images, steps, candidates)


def choose_window(
    memory: StaleHiddenStates, known: Stale, round: Round, score: Score, noise: Tensor | None
) -> Window:
    """Return the window that stale hidden states predict.

    Which tokens will stand before a position is not known yet: the root's stands for them.

    Args:
        memory: of the images.
        known: what it knows of the window's positions.
        round: that drafts.
        score: hidden states -> log q.
        noise: (images, steps, vocab or 1) that the target will choose with; None: not to be seen.
    """
    recent, steps = memory.last.recent, known.above.shape[2]
    root = recent[:, :1, None].expand(-1, steps, CANDIDATES)
    stale, _ = known.after(lineages(root, recent)[:, :, 0])
    codes = candidates_after(root[:, :1], score(stale), noise)
    before = torch.cat([memory.before_root(round), stale[:, :, :-1]], 2)
    return _filled(codes, before, known, recent)


def choose_next(drafted: Drafted, known: Stale, recent: Tensor, noise: Tensor | None) -> Window:
    """Return the window that what was drafted after another one predicts, as `choose_again` says.

    Args:
        drafted: of the other window.
        known, noise: as for `choose_window`.
        recent: (images, REACH) the last decided tokens, the root's first.
    """
    window = drafted.window
    codes, slots = choose_again(window.codes, drafted.log_q, noise)
    predicted = hidden_at(drafted.hidden.flatten(2, 3), slots)
    before = torch.cat([window.before[:, :, :1], predicted[:, :, :-1]], 2)
    return _filled(codes, before, known, recent)


def _filled(codes: Tensor, before: Tensor, known: Stale, recent: Tensor) -> Window:
    """Return a window of codes with the stale hidden states after them."""
    size = codes.shape[1:]
    after, similarity = known.each(CANDIDATES).after(lineages(codes, recent).flatten(1, 2))
    return Window(codes, before, after.unflatten(2, size), similarity.unflatten(1, size))


def visible(counts: Tensor, decided: int, steps: int) -> Tensor:
    """Return what slots see, (images, n, n) bool: decided tokens, then a window.

    A decided token sees those before it. A candidate sees the decided ones before the root, the
    best candidates of earlier steps, and itself.

    counts: (images,) how many of the `decided` slots are valid; the root's is the last of them.
    """
    slot = arange(decided + steps * CANDIDATES, counts.device)
    step = (slot - decided).div(CANDIDATES, rounding_mode="floor")
    best = (slot >= decided) & ((slot - decided) % CANDIDATES == 0)
    itself = slot == slot[:, None]
    among = (slot <= slot[:, None]) & (slot < decided)
    earlier = best & (step < step[:, None]) | itself
    before_root = slot < counts[:, None, None] - 1  # (images, 1, slots)
    in_window = (slot >= decided)[:, None]
    return torch.where(in_window, before_root | earlier, among)


class BlockDrafter(EagleDrafter):
    """Drafts with a block head, which reads the newly decided tokens and the window in a pass."""

    head: BlockHead

    def __init__(
        self,
        head: BlockHead,
        target: TargetModel,
        distribution: SamplingDistribution,
        largest: TreeShape,
        proposal: Proposal = Coupled(),  # noqa: B008 (frozen)
    ):
        """proposal: takes the nodes' children; one that samples must not see the target's noise."""
        super().__init__(head, target, distribution, largest)
        self.proposal = proposal
        self.room = max(largest.reach, 1) * CANDIDATES

    def open(self, images: int, slots: int, watch: Stopwatch) -> None:
        super().open(images, slots, watch)
        guidance = self.distribution.guidance
        self.memory = StaleHiddenStates(self.target, images, guidance, self.largest)
        self.drafts: WindowDrafts | None = None

    def prefill(self, image: int, prompt: PromptRows, hidden: Tensor, code: Tensor) -> None:
        super().prefill(image, prompt, hidden, code)
        self.memory.prefill(image, hidden[:, -1:, : self.target.spec.hidden], code)

    def expand(self, tree: GrowingTree, picked: Tensor, round: Round) -> Draft:
        return self.draft_window(round).expand(tree, picked)

    def update(self, result: RoundResult) -> None:
        super().update(result)
        self.memory.update(result)

    def steps(self, round: Round) -> int:
        """Return the positions of a round's window."""
        return round.shape.reach

    def draft_window(self, round: Round) -> WindowDrafts:
        """Return what the head drafts in a round: its passes are made at the first call."""
        if self.drafts is None or self.drafts.round is not round:
            step = arange(self.steps(round), self.codes.device)
            noise = noise_to_see(self.proposal, round, round.position(step))
            known = self.memory.at(round.position(step - 1), round)
            slots = self._open_slots(len(step), round)
            window = choose_window(self.memory, known, round, self.score, noise)
            drafted = self._pass(window, slots, round)
            for _ in range(PASSES - 1):
                window = choose_next(drafted, known, self.memory.last.recent, noise)
                drafted = self._pass(window, slots, round)
            draft = Draft(drafted.log_q, drafted.trust)
            self.drafts = WindowDrafts(round, window.codes, draft, self.proposal, noise)
        return self.drafts

    def _open_slots(self, steps: int, round: Round) -> Slots:
        """Return the slots of the newly decided tokens and of a window of so many steps."""
        codes, hidden = self.pending(round)
        images, count = codes.shape
        step = arange(steps, codes.device).repeat_interleave(CANDIDATES)
        pending = round.inputs.pending
        slots, root = self.target.grid.slots, round.inputs.decided - 1
        ahead = pending[:, None] - 1 + slots(root + step) - slots(root)
        depths = torch.cat([arange(count, step.device).expand(images, -1), ahead], 1)
        view = self.before_pending(round, depths.shape[1])
        context = view.open(depths, visible(pending, count, steps))
        # before the root stands what the head reads there, with the states of other layers
        return Slots(codes, hidden, hidden_at(hidden, (pending - 1)[:, None]), context)

    def _pass(self, window: Window, slots: Slots, round: Round) -> Drafted:
        """Return what a pass of the head over a window drafts."""
        return self._mixed(self._read(window, slots), window, round)

    def _read(self, window: Window, slots: Slots) -> Tensor:
        """Return what the head predicts: (images, guidance, steps x candidates, hidden)."""
        guidance, count = slots.hidden.shape[1:3]
        before = torch.cat([slots.before_root, window.before[:, :, 1:]], 2)
        hidden = torch.cat([slots.hidden, before.repeat_interleave(CANDIDATES, 2)], 2)
        codes = torch.cat([slots.codes, window.codes.flatten(1)], 1)
        ids = self.target.vocab.ids(codes, guidance)
        with self.watch.lap("draft_forward"):
            outputs = self.head(ids, hidden.flatten(0, 1), slots.context)
        return outputs.unflatten(0, (-1, guidance))[:, :, count:]

    def _mixed(self, predicted: Tensor, window: Window, round: Round) -> Drafted:
        """Return the drafts of predicted hidden states, mixed with the stale ones."""
        similarity, size = window.similarity, window.codes.shape[1:]
        mixed = self.head.mix(predicted, window.stale.flatten(2, 3), similarity.flatten(1))
        with self.watch.lap("draft_head"):
            log_q = self.score(mixed).unflatten(1, size)
        trust = self.head.confidence(similarity)
        return Drafted(window, mixed.unflatten(2, size), log_q, trust)


def block_drafter(parts: Drafting) -> BlockDrafter:
    """Build the drafter with weights that reads stale hidden states and drafts in three passes."""
    head = BlockHead.of(parts.loaded)
    return BlockDrafter(head, parts.target, parts.distribution, parts.largest, parts.proposal)
