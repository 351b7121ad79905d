"""Block drafter: three passes of an EAGLE head over a window of positions draft a whole tree.

An EAGLE head reads the hidden state before a token and the token. Below the root it waits for its
own prediction of that state, level by level. But a verified tree leaves the target's hidden states
at the next positions, stale ones: after tokens that may have been wrong. They are recalled by
similarity of tokens (`drafters.state_memory`). With them instead of its own predictions, the head
reads a whole window of positions at once (block drafts: DFlash, arXiv 2602.06036). What it predicts
is mixed with the recalled states. Later passes read what the one before predicted. The window, its
candidates and passes are those of `drafters.window`.
"""

import torch
from torch import Tensor, nn

from decoding.round import Round, RoundResult, TreeShape
from decoding.sampling import SamplingDistribution
from decoding.stopwatch import Stopwatch
from decoding.tree import hidden_at
from drafters.drafting import Drafting
from drafters.eagle import EagleDrafter, EagleHead, loaded_head
from drafters.similarity import sharpness_of
from drafters.state_memory import StateMemory
from drafters.window import WindowDrafter, WindowPass, window_suffixes
from models.base import Context, PromptRows, TransformerSpec
from models.target import TargetModel
from support.constants import arange

CANDIDATES = 3  # per position; 4 or 6 accept no more
# What a head has until it is trained in its own rounds, by similarity m of the recalled states:
# their share in the mixture, the logistic function of a + b m, and the sharpness exp(a + b m^3).
# Fitted to closed-loop rounds of the shipped model at T = 1 and 0.
SHARE = -3.9, 6.0
SHARPNESS = -0.2, 1.6


class BlockHead(EagleHead):
    """An EAGLE head and four numbers: the share of recalled states, and how sharp drafts are."""

    def __init__(self, spec: TransformerSpec, bias: bool = True):
        super().__init__(spec, bias)
        self.share = nn.Parameter(torch.tensor(SHARE))
        self.sharpness = nn.Parameter(torch.tensor(SHARPNESS))

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
        block.share = nn.Parameter(weight.new_tensor(SHARE))
        block.sharpness = nn.Parameter(weight.new_tensor(SHARPNESS))
        return block.requires_grad_(False).eval()

    def mix(self, predicted: Tensor, recalled: Tensor, similarity: Tensor) -> Tensor:
        """Return hidden states (images, guidance, n, hidden): predicted mixed with recalled ones.

        similarity: (images, n) of what the states were recalled from.
        """
        share = (self.share[0] + self.share[1] * similarity).sigmoid()[:, None, :, None]
        return predicted + share.to(predicted.dtype) * (recalled - predicted)

    def sharpness_at(self, similarity: Tensor) -> Tensor:
        """Return `Predictions.sharpness` (images, n) of such mixtures."""
        return sharpness_of(similarity, self.sharpness[0], self.sharpness[1])


class BlockDrafter(WindowDrafter, EagleDrafter):
    """Drafts with a block head, which reads the newly decided tokens and the window in a pass."""

    head: BlockHead
    candidates = CANDIDATES

    def __init__(
        self,
        head: BlockHead,
        target: TargetModel,
        distribution: SamplingDistribution,
        largest: TreeShape,
    ):
        super().__init__(head, target, distribution, largest)
        self.room = max(largest.reach, 1) * CANDIDATES

    def open(self, images: int, slots: int, watch: Stopwatch) -> None:
        super().open(images, slots, watch)
        guidance = self.distribution.guidance
        self.memory = StateMemory(self.target, images, guidance, self.largest)

    def prefill(self, image: int, prompt: PromptRows, hidden: Tensor, code: Tensor) -> None:
        super().prefill(image, prompt, hidden, code)
        self.memory.prefill(image, hidden[:, -1:, : self.target.spec.hidden], code)

    def update(self, result: RoundResult) -> None:
        super().update(result)
        self.memory.update(result)

    def source(self, round: Round) -> "HeadPasses":
        return HeadPasses(self, round)


class HeadPasses:
    """The passes of a block head over a round's window, each of which writes the same slots.

    The newly decided tokens stand before the window.
    """

    def __init__(self, drafter: BlockDrafter, round: Round):
        self.drafter, self.window = drafter, round.shape.reach
        ahead = arange(self.window, drafter.codes.device)
        self.recalled = drafter.memory.at(round.position(ahead - 1), round)
        self.repeated = self.recalled.repeat(CANDIDATES)
        self.recent = drafter.memory.last.recent
        self.codes, self.hidden = drafter.pending(round)  # (images, n), and the states before them
        pending = round.inputs.pending  # of the n slots; the root's is the last of them
        self.before_root = hidden_at(self.hidden, (pending - 1)[:, None])
        self.context = self._open(ahead.repeat_interleave(CANDIDATES), round)

    def _open(self, ahead: Tensor, round: Round) -> Context:
        """Return the context of all slots; ahead: (candidates,) positions from the root."""
        images, count = self.codes.shape
        pending, slots = round.inputs.pending, self.drafter.target.grid.slots
        root = round.inputs.decided - 1
        ahead = pending[:, None] - 1 + slots(root + ahead) - slots(root)
        depths = torch.cat([arange(count, ahead.device).expand(images, -1), ahead], 1)
        view = self.drafter.before_pending(round, depths.shape[1])
        return view.open(depths, visible(pending, count, self.window))

    def first(self) -> tuple[Tensor, Tensor]:
        # the root's code stands for tokens that are not known yet
        root = self.recent[:, :1, None].expand(-1, self.window, 1)
        states, _ = self.recalled.after(window_suffixes(root, self.recent)[:, :, 0])
        return self.drafter.score(states), states

    def read(self, codes: Tensor, states: Tensor | None) -> WindowPass:
        assert states is not None, "`first` predicts some"
        drafter, size = self.drafter, codes.shape[1:]
        suffixes = window_suffixes(codes, self.recent).flatten(1, 2)
        recalled, similarity = self.repeated.after(suffixes)
        mixed = drafter.head.mix(self.predict(codes, states), recalled, similarity)
        with drafter.watch.lap("draft_head"):
            log_q = drafter.score(mixed).unflatten(1, size)
        similarity = similarity.unflatten(1, size)
        sharpness = drafter.head.sharpness_at(similarity)
        return WindowPass(codes, log_q, similarity, sharpness, mixed.unflatten(2, size))

    def predict(self, codes: Tensor, states: Tensor) -> Tensor:
        """Return what the head predicts: (images, guidance, positions x candidates, hidden)."""
        count = self.codes.shape[1]
        before = torch.cat([self.before_root, states[:, :, :-1]], 2)
        hidden = torch.cat([self.hidden, before.repeat_interleave(CANDIDATES, 2)], 2)
        codes = torch.cat([self.codes, codes.flatten(1)], 1)
        return self.drafter.run(codes, hidden, self.context)[:, :, count:]


def visible(counts: Tensor, decided: int, window: int) -> Tensor:
    """Return what slots see, (images, n, n) bool: decided tokens, then the candidates.

    A decided token sees those before it. A candidate sees the decided ones before the root, the
    best candidates of earlier positions, and itself.

    counts: (images,) how many of the `decided` slots are valid; the root's is the last of them.
    """
    slot = arange(decided + window * CANDIDATES, counts.device)
    ahead = (slot - decided).div(CANDIDATES, rounding_mode="floor")
    best = (slot >= decided) & ((slot - decided) % CANDIDATES == 0)
    itself = slot == slot[:, None]
    decided_only = (slot <= slot[:, None]) & (slot < decided)
    earlier = best & (ahead < ahead[:, None]) | itself
    before_root = slot < counts[:, None, None] - 1  # (images, 1, slots)
    in_window = (slot >= decided)[:, None]
    return torch.where(in_window, before_root | earlier, decided_only)


def block_drafter(parts: Drafting) -> BlockDrafter:
    """Build the drafter with weights that recalls hidden states and drafts in three passes."""
    head = BlockHead.of(loaded_head(parts))
    return BlockDrafter(head, parts.target, parts.distribution, parts.largest)
