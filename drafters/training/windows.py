"""What a block head predicts in the windows of drawn rounds, and its loss."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.device import identity
from decoding.noise import gumbel
from decoding.round import hidden_at
from drafters.block import BlockHead
from drafters.hidden_states import Stale
from drafters.similarity import Directions, Recollection, lineage_along
from drafters.training.agreement import compared
from drafters.training.losses import EagleLoss, agreement, guided
from drafters.training.rounds import Drawn, Reading
from drafters.training.rows import Joined, Rows, behind_padding, join_rows, mask_of, positions_of
from models.base import Context
from models.target import TargetModel

READINGS = 24  # of an image, that a pass of an update trains on
# Passes of an update over its images, each over other readings: to generate the images takes as
# long as one to three passes.
PASSES = 4
# Steps after which a prediction weighs 1 / e of the first: a round that ends early never reads the
# later ones (as DFlash weighs the positions of its block, arXiv 2602.06036).
_FADES = 6


@dataclass(frozen=True)
class Windows:
    """As many rounds of each of some images, ready for the head: r rounds of so many steps.

    Those of an image are adjacent.
    """

    rows: Rows  # of the images
    roots: Tensor  # (r,) position of the last decided token
    best: Tensor  # (r, steps) the best candidates
    true: Tensor  # (r, steps) the target's choices
    before: Tensor  # (r, guidance, steps, hidden) features before both
    stale: Tensor  # (r, guidance, steps, hidden) stale ones after the target's choices
    similarity: Tensor  # (r, steps) of the tokens that these were recalled from
    goals: Tensor  # (r, steps) the next positions
    inside: Tensor  # (r, steps) whether these are in the image
    noise: Tensor  # (r, steps, vocab or 1) there

    def by_image(self, values: Tensor) -> Tensor:
        """Return values (rows or r, ...) as (images, guidance or rounds of each, ...)."""
        images = len(self.rows.ids) // self.before.shape[1]
        return values.unflatten(0, (images, -1))


def pick(
    readings: Sequence[Reading], generator: torch.Generator, count: int = READINGS
) -> list[Reading]:
    """Return so many readings of an image, in random order."""
    order = torch.randperm(len(readings), generator=generator).tolist()
    # an image with few readings repeats some of them
    return [readings[order[number % len(order)]] for number in range(count)]


@torch.no_grad()
def windows_of(
    target: TargetModel, images: Sequence[Drawn], picks: Sequence[list[Reading]], greedy: bool
) -> Windows:
    """Return rounds of images as tensors; picks: as many of each image; greedy: without noise."""
    grid, readings = target.grid, list(chain.from_iterable(picks))
    slots = torch.stack([torch.cat(image.codes) for image in images])
    rows = join_rows([_rows_of(target, image) for image in images])
    roots = torch.tensor([reading.root for reading in readings], device=slots.device)
    best = _stacked(readings, lambda reading: reading.best)
    recent = _stacked(readings, lambda reading: reading.recent)
    r, steps = best.shape
    indices = roots[:, None] + torch.arange(steps, device=slots.device)
    # steps past the image's end read its last token; the loss leaves them out
    inner = grid.slots(indices.clamp(max=grid.tokens - 1)).unflatten(0, (len(images), -1))
    true = slots.gather(1, inner.flatten(1)).view(r, steps)
    sequence = torch.cat([recent[:, 1:].flip(1), best], 1)  # (r, REACH - 1 + steps)
    mixed = torch.cat([true[..., None], lineage_along(sequence)[..., 1:]], 2)
    stale, similarity = _recalled(target, rows, readings, mixed, indices)
    goals = (indices + 1).clamp(max=grid.tokens - 1)
    wide = rows.features.dtype
    if greedy:
        noise = rows.features.new_zeros(r, steps, 1)
    else:
        each = zip(images, goals.unflatten(0, (len(images), -1)), strict=True)
        drawn = [gumbel(image.seed, "target", at, target.vocab.size) for image, at in each]
        noise = torch.cat(drawn)
    return Windows(
        rows, roots, best, true,
        _stacked(readings, lambda reading: reading.before).to(wide),
        stale, similarity, goals, indices + 1 < grid.tokens, noise.to(wide),
    )  # fmt: skip


def _stacked(readings: list[Reading], values: Callable[[Reading], Tensor]) -> Tensor:
    """Return what readings have (images, ...) of their own images, (r, ...)."""
    return torch.stack([values(reading)[reading.row] for reading in readings])


def _rows_of(target: TargetModel, image: Drawn) -> Rows:
    """Return an image's rows, with features in fp32 or better."""
    prompt, features = image.prompt, torch.cat(image.features, 1)
    ids = torch.cat(image.codes)[:-1] + target.vocab.first_id
    ids = torch.cat([prompt.ids, ids.expand(len(features), -1)], 1)
    origins = prompt.starts if prompt.origins is None else prompt.origins
    features = features.to(torch.promote_types(target.dtype, torch.float32))
    return Rows(ids, features, prompt.starts, origins, prompt.ids.shape[1])


def _recalled(
    target: TargetModel, rows: Rows, readings: list[Reading], tokens: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Return stale features (r, guidance, k, hidden) after tokens, and similarities (r, k).

    As `Stale.after`. readings: of the images of `rows`, those of an image side by side. tokens: (r,
    k, REACH) the last ones, the newest first. positions: (r, k) of the newest.
    """
    grid, guidance = target.grid, readings[0].before.shape[1]
    standing = _stacked(readings, lambda reading: reading.nodes.positions)
    lineage = _stacked(readings, lambda reading: reading.nodes.lineage)
    states = _stacked(readings, lambda reading: reading.nodes.hidden)
    root, above = positions[:, :1], grid.above(positions + 1)
    above = torch.where(above < 0, root, above).minimum(root)
    features = rows.features[..., : target.spec.hidden].unflatten(0, (-1, guidance))
    exact = _features_at(features, rows.prompt - 1 + grid.slots(above))
    recollection = Recollection.at(positions, standing, lineage, Directions.of(target))
    return Stale(recollection, states.to(features.dtype), exact).after(tokens)


def _features_at(features: Tensor, slots: Tensor) -> Tensor:
    """Return features (images, guidance, n, hidden) at slots (r, k): (r, guidance, k, hidden)."""
    found = hidden_at(features, slots.view(len(features), -1))
    return found.unflatten(2, (-1, slots.shape[1])).transpose(1, 2).flatten(0, 1)


def predict(head: BlockHead, target: TargetModel, rounds: Windows) -> Tensor:
    """Return predicted features (r, guidance, steps, hidden) after the true tokens.

    Each is read after the best candidates of the steps before it, as `drafters.block` reads it.
    """
    rows, by_image, slots = rounds.rows, rounds.by_image, target.grid.slots
    steps, n = rounds.best.shape[1], rows.features.shape[1] - 1
    starts = rows.starts if head.spec.hides_padding else torch.zeros_like(rows.starts)
    last, cache = head.spec.max_positions - 1, Joined()
    visible = mask_of(behind_padding(starts, n), rows.features)
    read = head.fuse(rows.features)
    context = Context(positions_of(rows.origins, n, last), visible, cache)
    head(rows.ids[:, 1:], read[:, :-1], context)
    step = torch.arange(steps, device=starts.device).repeat(2)
    roots = rows.prompt - 1 + slots(rounds.roots)  # (r,) slots of the roots
    after = rows.prompt - 1 + slots(rounds.roots[:, None] + step)  # (r, 2 steps)
    # (images, guidance, rounds, 2 steps)
    positions = by_image(after)[:, None] - by_image(rows.origins)[..., None, None]
    visible = mask_of(_seen(rounds, n, by_image(roots), by_image(starts)), rows.features)
    ids = torch.cat([rounds.best, rounds.true], 1) + target.vocab.first_id
    before = by_image(rounds.before).transpose(1, 2)  # (images, guidance, rounds, steps, hidden)
    at_roots = hidden_at(by_image(read), by_image(roots))[:, :, :, None]
    before = torch.cat([at_roots, before[:, :, :, 1:]] * 2, 3)
    # each window sees the sequence, but not the others
    cache.keeps = False
    ids = by_image(ids)[:, None].expand(positions.shape).flatten(0, 2)
    context = Context(positions.clamp(0, last).flatten(0, 2), visible, cache)
    outputs = head(ids, before.flatten(0, 2), context)
    # the true tokens' half; candidates are in the pass only to be seen by it
    outputs = outputs[:, steps:].unflatten(0, before.shape[:3])
    return outputs.transpose(1, 2).flatten(0, 1)


def _seen(rounds: Windows, n: int, roots: Tensor, starts: Tensor) -> Tensor:
    """Return what the windows' slots see, (images x guidance x rounds, 2 steps, n + 2 steps).

    They are the best candidates, then the true tokens. Both see the sequence before the root.

    roots: (images, rounds) and starts: (images, guidance) slots of the n in the sequence.
    """
    steps, slot = rounds.best.shape[1], torch.arange(n, device=roots.device)
    sequence = (slot < roots[:, None, :, None]) & (slot >= starts[..., None, None])
    sequence = sequence[..., None, :].expand(-1, -1, -1, 2 * steps, -1)
    every = torch.ones(steps, steps, dtype=torch.bool, device=roots.device)
    best = torch.cat([every.tril(), torch.zeros_like(every)], 1)
    # a true token sees the candidates before it and itself, as a candidate does in decoding
    true = torch.cat([every.tril(-1), identity(steps, roots.device)], 1)
    window = torch.cat([best, true]).expand(*sequence.shape[:3], -1, -1)
    return torch.cat([sequence, window], 4).flatten(0, 2)


@dataclass(frozen=True)
class Scored:
    """What head and target say in some rounds."""

    predicted: Tensor  # (r, guidance, steps, hidden) features
    wanted: Tensor  # (r, guidance, steps, hidden) the target's
    log_q: Tensor  # (r, steps, vocab) after the mixture
    log_p: Tensor  # (r, steps, vocab)


def scored(head: BlockHead, target: TargetModel, rounds: Windows, cfg: float) -> Scored:
    """Return what the head predicts in some rounds, and what the target does."""
    features = rounds.by_image(rounds.rows.features)
    predicted = predict(head, target, rounds).to(features.dtype)
    mixed = head.mix(predicted, rounds.stale, rounds.similarity)
    slots = rounds.rows.prompt - 1 + target.grid.slots(rounds.goals)
    wanted = _features_at(features[..., : predicted.shape[-1]], slots)
    log_q, log_p = (
        guided(target, features.flatten(0, 1), cfg).log_softmax(-1) for features in (mixed, wanted)
    )
    return Scored(predicted, wanted, log_q, log_p)


@dataclass(frozen=True)
class BlockLoss:
    """The loss of an EAGLE head on an image's levels, and the same of its windows' steps.

    The windows' is that of the features that the head predicts, and of the distributions after the
    mixture, the first steps weighted most. What the mixture is trusted with is fitted besides: to
    the target's choices, as the estimates of `coupled` drafts.
    """

    target: TargetModel
    eagle: EagleLoss
    greedy: bool

    @property
    def weights(self) -> tuple[float, float, float]:
        """Of the parts."""
        return self.eagle.weights

    def __call__(
        self, head: BlockHead, images: list[Drawn], picks: list[list[Reading]]
    ) -> tuple[Tensor, Tensor]:
        """Return the loss, and its parts (levels + steps, 3) detached; picks: of each image."""
        rounds = windows_of(self.target, images, picks, self.greedy)
        scores = scored(head, self.target, rounds, self.eagle.cfg)
        levels, parts = self.eagle(head, rounds.rows, None)
        steps, fit = self._steps(rounds, scores), self._fit(head, rounds, scores)
        return levels + self._windows(steps) + fit, torch.cat([parts, steps.detach()])

    def total(self, parts: Tensor) -> Tensor:
        """Return the loss of parts (levels + steps, 3)."""
        levels = len(self.eagle.levels.indices)
        return self.eagle.total(parts[:levels]) + self._windows(parts[levels:])

    def _windows(self, parts: Tensor) -> Tensor:
        """Return the loss of parts (steps, 3)."""
        share = (torch.arange(len(parts), device=parts.device) / -_FADES).softmax(0)
        return share.to(parts) @ parts @ parts.new_tensor(self.weights)

    def _steps(self, rounds: Windows, scores: Scored) -> Tensor:
        """Return the parts (steps, 3): means over the rounds of an image, then over images."""
        # an image's last rounds have fewer steps
        inside = rounds.by_image(rounds.inside)  # (images, rounds, steps)
        share = (inside / inside.sum(1, keepdim=True).clamp_min(1)).flatten(0, 1)  # (r, steps)
        regression = F.smooth_l1_loss(scores.predicted, scores.wanted, reduction="none")
        p = scores.log_p.exp()
        entropy = -(p * scores.log_q).sum(-1)
        differ = torch.zeros_like(entropy)
        if self.weights[2]:
            differ = 1 - agreement(p, scores.log_q.exp())
        parts = torch.stack([regression.mean((1, 3)), entropy, differ], 2)  # (r, steps, 3)
        return (parts * share[..., None]).sum(0) / len(inside)

    def _fit(self, head: BlockHead, rounds: Windows, scores: Scored) -> Tensor:
        """Return how badly the mixtures' trust fits the target's choices, a mean like the parts."""
        inside = rounds.by_image(rounds.inside)  # (images, rounds, steps)
        share = inside / inside.sum((1, 2), keepdim=True).clamp_min(1) / len(inside)
        trusted = head.confidence(rounds.similarity)[..., None]
        # detached: the fit changes what the mixture is trusted with, not what is predicted
        values = (scores.log_q.detach() + rounds.noise).flatten(0, 1)
        chosen = (scores.log_p + rounds.noise).argmax(-1).flatten()
        best, which, among = compared(values, chosen)
        fits = F.cross_entropy(trusted.flatten(0, 1) * best, which, reduction="none")
        # of an untrained head's drafts none may be chosen; a code that is cut cannot be compared
        return (fits.where(among, 0) * share.flatten()).sum()
