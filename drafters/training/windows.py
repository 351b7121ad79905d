"""The loss of a block head in the windows of recorded rounds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.noise import gumbel
from decoding.tree import hidden_at
from drafters.block import BlockHead
from drafters.similarity import SimilarNodes, UnitEmbeddings, path_suffixes
from drafters.state_memory import RecalledStates
from drafters.training.agreement import compared
from drafters.training.losses import EagleLoss, agreement, guided
from drafters.training.rounds import RecordedImage, RecordedPass
from drafters.training.rows import Joined, Rows, behind_padding, join_rows, mask_of, positions_of
from models.base import Context
from models.target import TargetModel
from support.constants import identity

RECORDED = 24  # passes of an image's rounds that an epoch trains on
# Epochs of an update over its images, each over other passes: to generate the images takes as long
# as one to three epochs.
EPOCHS = 4
# Positions after which a prediction weighs 1 / e of the first, because a round that ends early
# never reads later ones (as DFlash weighs the positions of its block, arXiv 2602.06036).
_FADES = 6


@dataclass(frozen=True)
class Windows:
    """Recorded rounds of some images, ready for the head: r windows of `steps` positions.

    Every image has as many, side by side.
    """

    rows: Rows  # of the images
    roots: Tensor  # (r,) position of the last decided token
    best: Tensor  # (r, steps) the best candidates
    true: Tensor  # (r, steps) the target's choices
    before: Tensor  # (r, guidance, steps - 1, hidden) features before both, below the root
    recalled: Tensor  # (r, guidance, steps, hidden) features after the target's choices
    similarity: Tensor  # (r, steps) of the tokens that they were recalled from
    goals: Tensor  # (r, steps) the next positions
    inside: Tensor  # (r, steps) whether these are in the image
    noise: Tensor  # (r, steps, vocab or 1) there

    def by_image(self, values: Tensor) -> Tensor:
        """Return values (rows or r, ...) as (images, guidance or rounds of each, ...)."""
        images = len(self.rows.ids) // self.before.shape[1]
        return values.unflatten(0, (images, -1))


def pick(
    passes: Sequence[RecordedPass], generator: torch.Generator, count: int = RECORDED
) -> list[RecordedPass]:
    """Return so many passes of an image, in random order."""
    order = torch.randperm(len(passes), generator=generator).tolist()
    # an image with few passes repeats some of them
    return [passes[order[number % len(order)]] for number in range(count)]


@torch.no_grad()
def windows_of(
    target: TargetModel,
    images: Sequence[RecordedImage],
    picks: Sequence[list[RecordedPass]],
    greedy: bool,
) -> Windows:
    """Return rounds of images as tensors; picks: equally many per image; greedy: without noise."""
    grid, passes = target.grid, list(chain.from_iterable(picks))
    slots = torch.stack([torch.cat(image.codes) for image in images])
    rows = join_rows([_rows_of(target, image) for image in images])
    roots = torch.tensor([one.root for one in passes], device=slots.device)
    best = _stacked(passes, lambda one: one.best)
    recent = _stacked(passes, lambda one: one.recent)
    r, steps = best.shape
    indices = roots[:, None] + torch.arange(steps, device=slots.device)
    # steps past the image's end read its last token; the loss leaves them out
    inner = grid.slots(indices.clamp(max=grid.tokens - 1)).unflatten(0, (len(images), -1))
    true = slots.gather(1, inner.flatten(1)).view(r, steps)
    sequence = torch.cat([recent[:, 1:].flip(1), best], 1)  # (r, SUFFIX - 1 + steps)
    suffixes = torch.cat([true[..., None], path_suffixes(sequence)[..., 1:]], 2)
    recalled, similarity = _recalled(target, rows, passes, suffixes, indices)
    goals = (indices + 1).clamp(max=grid.tokens - 1)
    wide = rows.features.dtype
    if greedy:
        noise = rows.features.new_zeros(r, steps, 1)
    else:
        pairs = zip(images, goals.unflatten(0, (len(images), -1)), strict=True)
        vocab = target.vocab.size
        noise = torch.cat([gumbel(image.seed, "target", at, vocab) for image, at in pairs])
    return Windows(
        rows, roots, best, true,
        _stacked(passes, lambda one: one.before).to(wide),
        recalled, similarity, goals, indices + 1 < grid.tokens, noise.to(wide),
    )  # fmt: skip


def _stacked(passes: list[RecordedPass], values: Callable[[RecordedPass], Tensor]) -> Tensor:
    """Return what passes have (images, ...) of their own images, (r, ...)."""
    return torch.stack([values(one)[one.row] for one in passes])


def _rows_of(target: TargetModel, image: RecordedImage) -> Rows:
    """Return an image's rows, with features in fp32 or better."""
    prompt, features = image.prompt, torch.cat(image.features, 1)
    ids = torch.cat(image.codes)[:-1] + target.vocab.first_id
    ids = torch.cat([prompt.ids, ids.expand(len(features), -1)], 1)
    origins = prompt.starts if prompt.origins is None else prompt.origins
    features = features.to(torch.promote_types(target.dtype, torch.float32))
    return Rows(ids, features, prompt.starts, origins, prompt.ids.shape[1])


def _recalled(
    target: TargetModel, rows: Rows, passes: list[RecordedPass], suffixes: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor]:
    """Return features (r, guidance, k, hidden) as of `RecalledStates.after`, and similarities.

    Args:
        passes: of the images of `rows`, an image's side by side.
        suffixes: (r, k, SUFFIX).
        positions: (r, k) of their newest tokens.
    """
    grid, guidance = target.grid, passes[0].before.shape[1]
    nodes = _stacked(passes, lambda one: one.nodes.positions)
    node_suffixes = _stacked(passes, lambda one: one.nodes.suffixes)
    states = _stacked(passes, lambda one: one.nodes.hidden)
    root, above = positions[:, :1], grid.above(positions + 1)
    above = torch.where(above < 0, root, above).minimum(root)
    features = rows.features[..., : target.spec.hidden].unflatten(0, (-1, guidance))
    above = _features_at(features, rows.prompt - 1 + grid.slots(above))
    similar = SimilarNodes.at(positions, nodes, node_suffixes, UnitEmbeddings.of(target))
    return RecalledStates(similar, states.to(features.dtype), above).after(suffixes)


def _features_at(features: Tensor, slots: Tensor) -> Tensor:
    """Return features (images, guidance, n, hidden) at slots (r, k): (r, guidance, k, hidden)."""
    features = hidden_at(features, slots.view(len(features), -1))
    return features.unflatten(2, (-1, slots.shape[1])).transpose(1, 2).flatten(0, 1)


def predict(head: BlockHead, target: TargetModel, rounds: Windows) -> Tensor:
    """Return predicted features (r, guidance, steps, hidden) after the true tokens.

    Each is read after the best candidates of the steps before it, as `drafters.block` reads it.
    """
    rows, by_image, slots = rounds.rows, rounds.by_image, target.grid.slots
    # in the head's own type: an evaluated head has the target's
    features, before = (x.to(head.fc.weight.dtype) for x in (rows.features, rounds.before))
    steps, n = rounds.best.shape[1], features.shape[1] - 1
    starts = rows.starts if head.spec.hides_padding else torch.zeros_like(rows.starts)
    last, cache = head.spec.max_positions - 1, Joined()
    visible = mask_of(behind_padding(starts, n), features)
    read = head.fuse(features)
    context = Context(positions_of(rows.origins, n, last), visible, cache)
    head(rows.ids[:, 1:], read[:, :-1], context)
    step = torch.arange(steps, device=starts.device).repeat(2)
    roots = rows.prompt - 1 + slots(rounds.roots)  # (r,) slots of the roots
    after = rows.prompt - 1 + slots(rounds.roots[:, None] + step)  # (r, 2 steps)
    # (images, guidance, rounds, 2 steps)
    positions = by_image(after)[:, None] - by_image(rows.origins)[..., None, None]
    visible = mask_of(_seen(rounds, n, by_image(roots), by_image(starts)), features)
    ids = torch.cat([rounds.best, rounds.true], 1) + target.vocab.first_id
    before = by_image(before).transpose(1, 2)  # (images, guidance, rounds, steps - 1, hidden)
    at_roots = hidden_at(by_image(read), by_image(roots))[:, :, :, None]
    before = torch.cat([at_roots, before] * 2, 3)
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
class WindowScores:
    """Features and distributions of head and target in some rounds."""

    predicted: Tensor  # (r, guidance, steps, hidden) features
    target: Tensor  # (r, guidance, steps, hidden) features
    log_q: Tensor  # (r, steps, vocab) after the mixture
    log_p: Tensor  # (r, steps, vocab)


def scored(head: BlockHead, target: TargetModel, rounds: Windows, cfg: float) -> WindowScores:
    """Score some rounds by head and target."""
    features = rounds.by_image(rounds.rows.features)
    predicted = predict(head, target, rounds).to(features.dtype)
    mixed = head.mix(predicted, rounds.recalled, rounds.similarity)
    slots = rounds.rows.prompt - 1 + target.grid.slots(rounds.goals)
    exact = _features_at(features[..., : predicted.shape[-1]], slots)
    log_q, log_p = (
        guided(target, features.flatten(0, 1), cfg).log_softmax(-1) for features in (mixed, exact)
    )
    return WindowScores(predicted, exact, log_q, log_p)


@dataclass(frozen=True)
class BlockLoss:
    """The loss of an EAGLE head on an image's levels, and the same in its windows.

    In windows the regression is of the features that the head predicts, the other parts are of the
    distributions after the mixture, and the first positions weigh most. The sharpness of mixtures
    is fitted to the target's choices, as the estimates of `coupled` drafts use it.
    """

    target: TargetModel
    eagle: EagleLoss
    greedy: bool

    @property
    def weights(self) -> tuple[float, float, float]:
        """Of the parts."""
        return self.eagle.weights

    def __call__(
        self, head: BlockHead, images: list[RecordedImage], picks: list[list[RecordedPass]]
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

    def _steps(self, rounds: Windows, scores: WindowScores) -> Tensor:
        """Return the parts (steps, 3): means over the rounds of an image, then over images."""
        # an image's last rounds have fewer steps
        inside = rounds.by_image(rounds.inside)  # (images, rounds, steps)
        share = (inside / inside.sum(1, keepdim=True).clamp_min(1)).flatten(0, 1)  # (r, steps)
        regression = F.smooth_l1_loss(scores.predicted, scores.target, reduction="none")
        p = scores.log_p.exp()
        entropy = -(p * scores.log_q).sum(-1)
        differ = torch.zeros_like(entropy)
        if self.weights[2]:
            differ = 1 - agreement(p, scores.log_q.exp())
        parts = torch.stack([regression.mean((1, 3)), entropy, differ], 2)  # (r, steps, 3)
        return (parts * share[..., None]).sum(0) / len(inside)

    def _fit(self, head: BlockHead, rounds: Windows, scores: WindowScores) -> Tensor:
        """Return how badly the sharpness of mixtures fits the target's choices."""
        inside = rounds.by_image(rounds.inside)  # (images, rounds, steps)
        share = inside / inside.sum((1, 2), keepdim=True).clamp_min(1) / len(inside)
        sharpness = head.sharpness_at(rounds.similarity)[..., None]
        # detached: the fit changes the sharpness, not the predictions
        values = (scores.log_q.detach() + rounds.noise).flatten(0, 1)
        chosen = (scores.log_p + rounds.noise).argmax(-1).flatten()
        best, which, is_among = compared(values, chosen)
        fits = F.cross_entropy(sharpness.flatten(0, 1) * best, which, reduction="none")
        # perhaps no draft is chosen, as of an untrained head; a code that is cut is not compared
        return (fits.where(is_among, 0) * share.flatten()).sum()
