"""What a block head predicts in the windows of drawn rounds, and its loss."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.device import identity
from decoding.noise import gumbel
from drafters.block import BlockHead
from drafters.hidden_states import Stale
from drafters.similarity import Recollection, lineage_along
from drafters.training.agreement import compared
from drafters.training.losses import agreement, guided
from drafters.training.rounds import Drawn, Reading
from drafters.training.rows import Joined, behind_padding, mask_of, positions_of
from models.base import Context, ImageGrid
from models.target import TargetModel

READINGS = 12  # of an image, that a pass of an update trains on
# Passes of an update over its images, each over other readings: generating the images takes ten
# times as long as a pass (128 x 128 images on a CPU).
PASSES = 4
# Steps after which a prediction weighs 1 / e of the first: a round that ends early never reads the
# later ones (as DFlash weighs the positions of its block, arXiv 2602.06036).
_FADES = 6


@dataclass(frozen=True)
class Windows:
    """Rounds of one image, ready for the head; m rounds of so many steps."""

    drawn: Drawn
    ids: Tensor  # (guidance, n + 1) of its sequence
    features: Tensor  # (guidance, n, hidden) there, then the hidden states that the head reads
    roots: Tensor  # (m,) position of the last decided token
    best: Tensor  # (m, steps) the best candidates
    true: Tensor  # (m, steps) the target's choices
    before: Tensor  # (m, guidance, steps, hidden) features before both
    stale_best: Tensor  # (m, guidance, steps, hidden) stale ones after the best candidates
    stale_true: Tensor  # (m, guidance, steps, hidden) and after the target's choices
    similarity: Tensor  # (m, steps) of the tokens that the latter were recalled from
    goals: Tensor  # (m, steps) the next positions
    inside: Tensor  # (m, steps) whether these are in the image
    noise: Tensor  # (m, steps, vocab or 1) there

    @property
    def prompt(self) -> int:
        """Slots of the prompt."""
        return self.drawn.prompt.ids.shape[1]


def pick(readings: Sequence[Reading], generator: torch.Generator, part: int = 0) -> list[Reading]:
    """Return some readings of an image; part: which, in the generator's order of all of them."""
    order = torch.randperm(len(readings), generator=generator).tolist()
    first = part * READINGS
    numbers = range(first, first + min(READINGS, len(order)))
    # an image with few readings repeats some of them in later passes
    return [readings[order[number % len(order)]] for number in numbers]


@torch.no_grad()
def windows_of(target: TargetModel, drawn: Drawn, readings: list[Reading], greedy: bool) -> Windows:
    """Return rounds of an image as tensors; greedy: without noise."""
    grid, wide = target.grid, torch.promote_types(target.dtype, torch.float32)
    features = torch.cat(drawn.features, 1).to(wide)
    slots = torch.cat(drawn.codes)
    codes = slots[grid.slots(torch.arange(grid.tokens, device=slots.device))]
    ids = (slots + target.vocab.first_id).expand(len(features), -1)
    ids = torch.cat([drawn.prompt.ids, ids], 1)
    roots = torch.tensor([reading.root for reading in readings], device=slots.device)
    steps = readings[0].window.codes.shape[1]
    indices = roots[:, None] + torch.arange(steps, device=slots.device)
    best = torch.cat([reading.window.codes[:, :, 0] for reading in readings])
    # steps past the image's end read its last token; the loss leaves them out
    true = codes[indices.clamp(max=grid.tokens - 1)]
    recent = torch.cat([reading.recent for reading in readings])
    sequence = torch.cat([recent[:, 1:].flip(1), best], 1)  # (m, REACH - 1 + steps)
    mixed = torch.cat([true[..., None], lineage_along(sequence)[..., 1:]], 2)
    hidden = features[..., : target.spec.hidden]
    stale_true, similarity = _recalled(grid, hidden, drawn, readings, mixed, indices)
    goals = (indices + 1).clamp(max=grid.tokens - 1)
    # one column of zeros serves all codes
    width = 1 if greedy else target.vocab.size
    noise = features.new_zeros(*goals.shape, width)
    if not greedy:
        noise = gumbel(drawn.seed, "target", goals, width).to(features.dtype)
    return Windows(
        drawn, ids, features, roots, best, true,
        torch.cat([reading.window.before for reading in readings]).to(wide),
        torch.cat([reading.window.stale[:, :, :, 0] for reading in readings]).to(wide),
        stale_true, similarity, goals, indices + 1 < grid.tokens, noise,
    )  # fmt: skip


def _recalled(
    grid: ImageGrid,
    hidden: Tensor,
    drawn: Drawn,
    readings: list[Reading],
    tokens: Tensor,
    positions: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return stale features (m, guidance, k, hidden) after tokens, and similarities (m, k).

    As `Stale.after`, but in m rounds of one image at once.

    Args:
        grid: of the image.
        hidden: (guidance, n, hidden) the features of the image's sequence.
        drawn: the image.
        readings: the rounds.
        tokens: (m, k, REACH) the last ones, the newest first.
        positions: (m, k) of the newest.
    """
    standing, lineage, states = (
        torch.cat([getattr(reading.nodes, name) for reading in readings])
        for name in ("positions", "lineage", "hidden")
    )
    root, above = positions[:, :1], grid.above(positions + 1)
    above = torch.where(above < 0, root, above).minimum(root)
    slots = drawn.prompt.ids.shape[1] - 1 + grid.slots(above)
    exact = hidden[:, slots].transpose(0, 1)
    recollection = Recollection.at(positions, standing, lineage, drawn.directions)
    return Stale(recollection, states.to(hidden.dtype), exact).after(tokens)


def predict(head: BlockHead, target: TargetModel, rounds: Windows) -> Tensor:
    """Return predicted features (m, guidance, steps, hidden) after the true tokens.

    Each is read after the best candidates of the steps before it, as `drafters.block` reads it.
    """
    m, steps = rounds.best.shape
    guidance, prompt = len(rounds.features), rounds.drawn.prompt
    starts = prompt.starts if head.spec.hides_padding else torch.zeros_like(prompt.starts)
    origins, cache = prompt.starts if prompt.origins is None else prompt.origins, Joined()
    last = head.spec.max_positions - 1
    positions = positions_of(origins, rounds.features.shape[1], last)
    visible = mask_of(behind_padding(starts, positions.shape[1]), rounds.features)
    read = head.fuse(rounds.features)
    head(rounds.ids[:, 1:], read, Context(positions, visible, cache))
    slots, step = target.grid.slots, torch.arange(steps, device=starts.device).repeat(2)
    ahead = slots(rounds.roots[:, None] + step) - slots(rounds.roots)[:, None]  # (m, 2 steps)
    roots = rounds.prompt - 1 + slots(rounds.roots)  # (m,) the slots of the roots
    window_positions = (roots[:, None] + ahead - origins[:, None, None]).clamp(0, last)
    visible = mask_of(_seen(rounds, roots, starts), rounds.features)
    ids = torch.cat([rounds.best, rounds.true], 1) + target.vocab.first_id
    stale = torch.cat([rounds.stale_best, rounds.stale_true], 2).transpose(0, 1).flatten(0, 1)
    before = torch.cat([read[:, roots].transpose(0, 1)[:, :, None], rounds.before[:, :, 1:]], 2)
    before = torch.cat([before, before], 2).transpose(0, 1).flatten(0, 1)
    # each window sees the sequence, but not the others
    cache.keeps = False
    context = Context(window_positions.flatten(0, 1), visible, cache)
    outputs = head.read(ids.repeat(guidance, 1), before, stale, step, context)
    # the true tokens' half; candidates are in the pass only to be seen by it
    return outputs.unflatten(0, (guidance, m)).transpose(0, 1)[:, :, steps:]


def _seen(rounds: Windows, roots: Tensor, starts: Tensor) -> Tensor:
    """Return what the windows' slots see, (guidance m, 2 steps, n + 2 steps).

    They are the best candidates, then the true tokens. Both see the sequence before the root.

    roots: (m,), starts: (guidance,) slots of the sequence.
    """
    (m, steps), (guidance, n, _) = rounds.best.shape, rounds.features.shape
    slot = torch.arange(n, device=starts.device)
    sequence = (slot < roots[:, None]) & (slot >= starts[:, None, None])  # (guidance, m, n)
    sequence = sequence[:, :, None].expand(-1, -1, 2 * steps, -1)
    every = torch.ones(steps, steps, dtype=torch.bool, device=starts.device)
    best = torch.cat([every.tril(), torch.zeros_like(every)], 1)
    # a true token sees the candidates before it and itself, as a candidate does in decoding
    true = torch.cat([every.tril(-1), identity(steps, starts.device)], 1)
    window = torch.cat([best, true]).expand(guidance, m, -1, -1)
    return torch.cat([sequence, window], 3).flatten(0, 1)


@dataclass(frozen=True)
class Scored:
    """What head and target say in some rounds."""

    predicted: Tensor  # (m, guidance, steps, hidden) features
    wanted: Tensor  # (m, guidance, steps, hidden) the target's
    log_q: Tensor  # (m, steps, vocab) after the mixture
    log_p: Tensor  # (m, steps, vocab)


def scored(head: BlockHead, target: TargetModel, rounds: Windows, cfg: float) -> Scored:
    """Return what the head predicts in some rounds, and what the target does."""
    predicted = predict(head, target, rounds).to(rounds.features.dtype)
    mixed = head.mix(predicted, rounds.stale_true, rounds.similarity)
    slots = rounds.prompt - 1 + target.grid.slots(rounds.goals)
    wanted = rounds.features[:, slots, : predicted.shape[-1]].transpose(0, 1)
    log_q, log_p = (
        guided(target, features.flatten(0, 1), cfg).log_softmax(-1) for features in (mixed, wanted)
    )
    return Scored(predicted, wanted, log_q, log_p)


@dataclass(frozen=True)
class BlockLoss:
    """The weighted mean over steps of regression, cross-entropy and disagreement.

    They are those of the features that the head predicts, and of the distributions after the
    mixture. What the mixture is trusted with is fitted besides: to the target's choices, as the
    estimates of `coupled` drafts.
    """

    target: TargetModel
    cfg: float
    weights: tuple[float, float, float]
    greedy: bool

    def __call__(
        self, head: BlockHead, images: list[Drawn], picks: list[list[Reading]]
    ) -> tuple[Tensor, Tensor]:
        """Return the loss, and its parts (steps, 3) detached; picks: rounds of each image."""
        losses = [self._image(head, *pair) for pair in zip(images, picks, strict=True)]
        parts, fits = zip(*losses, strict=True)
        mean = torch.stack(parts).mean(0)
        return self.total(mean) + torch.stack(fits).mean(), mean.detach()

    def total(self, parts: Tensor) -> Tensor:
        """Return the loss of parts (steps, 3)."""
        share = (torch.arange(len(parts), device=parts.device) / -_FADES).softmax(0)
        return share.to(parts) @ parts @ parts.new_tensor(self.weights)

    def _image(
        self, head: BlockHead, drawn: Drawn, readings: list[Reading]
    ) -> tuple[Tensor, Tensor]:
        """Return the parts (steps, 3) of one image, and the fit of the trust in its mixtures."""
        rounds = windows_of(self.target, drawn, readings, self.greedy)
        scores = scored(head, self.target, rounds, self.cfg)
        # a step's mean is over the rounds that have it: an image's last ones have fewer steps
        share = rounds.inside / rounds.inside.sum(0).clamp_min(1)  # (m, steps)
        regression = F.smooth_l1_loss(scores.predicted, scores.wanted, reduction="none")
        p = scores.log_p.exp()
        entropy = -(p * scores.log_q).sum(-1)
        differ = torch.zeros_like(entropy)
        if self.weights[2]:
            differ = 1 - agreement(p, scores.log_q.exp())
        parts = torch.stack([regression.mean((1, 3)), entropy, differ], 2)  # (m, steps, 3)
        trusted = head.confidence(rounds.similarity)[..., None]
        # detached: the fit changes what the mixture is trusted with, not what is predicted
        values = (scores.log_q.detach() + rounds.noise)[rounds.inside]
        chosen = (scores.log_p + rounds.noise).argmax(-1)[rounds.inside]
        best, which, among = compared(values, chosen)
        fits = F.cross_entropy(trusted[rounds.inside] * best, which, reduction="none")
        # of an untrained head's drafts none may be chosen
        fit = (fits * among).sum() / rounds.inside.sum().clamp_min(1)
        return (parts * share[..., None]).sum(0), fit
