"""What a block head predicts in the windows of drawn rounds."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.noise import gumbel
from drafters.block import BlockHead
from drafters.hidden_states import UNKNOWN, Nodes, recall
from drafters.similarity import lineage_along
from drafters.training.losses import guided
from drafters.training.rounds import Drawn, Reading
from drafters.training.rows import behind_padding, mask_of, positions_of
from models.base import Context, TargetModel

ROUNDS = 12  # of an image, that an update trains on


class Split:
    """A KV cache of a sequence, then of windows that see the sequence, but not each other."""

    def __init__(self, windows: int):
        self.windows = windows
        self.known: dict[int, tuple[Tensor, Tensor]] = {}

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store and return as `models.base.Cache` says; the sequence is written first."""
        if layer not in self.known:
            self.known[layer] = keys, values
            return keys, values
        old = (kept.repeat_interleave(self.windows, 0) for kept in self.known[layer])
        return tuple(torch.cat(pair, 2) for pair in zip(old, (keys, values), strict=True))


@dataclass(frozen=True)
class Windows:
    """Rounds of one image, ready for the head; m rounds of so many steps.

    ids: (guidance, n + 1), features: (guidance, n, hidden) of its sequence, with the hidden states
    that the head reads. roots: (m,). best,
    true: (m, steps) the best candidates and the target's choices. before: (m, guidance, steps,
    hidden) the features before both. stale_best, stale_true: stale ones after them. similarity: (m,
    steps) the similarity of the latter. goals: (m, steps) the next positions; known: whether they
    are in the image. noise: (m, steps, vocab or 1) there.
    """

    drawn: Drawn
    ids: Tensor
    features: Tensor
    roots: Tensor
    best: Tensor
    true: Tensor
    before: Tensor
    stale_best: Tensor
    stale_true: Tensor
    similarity: Tensor
    goals: Tensor
    known: Tensor
    noise: Tensor

    @property
    def prompt(self) -> int:
        """Slots of the prompt."""
        return self.drawn.prompt.ids.shape[1]


def pick(drawn: Drawn, generator: torch.Generator, count: int = ROUNDS) -> list[Reading]:
    """Return some of an image's rounds."""
    order = torch.randperm(len(drawn.readings), generator=generator).tolist()
    return [drawn.readings[number] for number in order[:count]]


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
    hidden, length = features[..., : target.spec.hidden], drawn.prompt.ids.shape[1]
    memory = _Memory(target, hidden, length, readings, roots)
    stale_true, similarity = memory(mixed, indices)
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


class _Memory:
    """Recalls as `StaleFeatures`, in several rounds of one image at once."""

    def __init__(
        self,
        target: TargetModel,
        features: Tensor,
        prompt: int,
        readings: list[Reading],
        roots: Tensor,
    ):
        codes = target.embedding()[target.vocab.first_id :][: target.vocab.size]
        self.directions = F.normalize(codes.to(features.dtype), dim=-1)
        self.grid, self.features, self.prompt, self.roots = target.grid, features, prompt, roots
        most = max(reading.nodes.positions.shape[1] for reading in readings)
        tables = [_padded(reading.nodes, most) for reading in readings]
        names = "positions", "lineage", "hidden"
        positions, lineage, stale = (torch.cat([getattr(t, n) for t in tables]) for n in names)
        self.nodes = Nodes(positions, lineage, stale.to(features.dtype))

    def __call__(self, tokens: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """Return features (m, guidance, k, hidden) and similarities (m, k)."""
        recalled, similarity = recall(tokens, places, self.nodes, self.directions)
        above = places + 1 - self.grid.columns
        above = torch.where(above < 0, self.roots[:, None], above).minimum(self.roots[:, None])
        exact = self.features[:, self.prompt - 1 + self.grid.slots(above)].transpose(0, 1)
        return torch.where((similarity > UNKNOWN)[:, None, :, None], recalled, exact), similarity


def _padded(nodes: Nodes, count: int) -> Nodes:
    more = count - nodes.positions.shape[1]
    return Nodes(
        F.pad(nodes.positions, (0, more), value=-1),
        F.pad(nodes.lineage, (0, 0, 0, more)),
        F.pad(nodes.hidden, (0, 0, 0, more)),
    )


def predict(head: BlockHead, target: TargetModel, rounds: Windows) -> Tensor:
    """Return predicted features (m, guidance, steps, hidden) after the true tokens.

    Each is read after the best candidates of the steps before it, as `drafters.block` reads it.
    """
    m, steps = rounds.best.shape
    guidance, prompt = len(rounds.features), rounds.drawn.prompt
    starts = prompt.starts if head.spec.hides_padding else torch.zeros_like(prompt.starts)
    origins, cache = prompt.starts if prompt.origins is None else prompt.origins, Split(m)
    last = head.spec.max_positions - 1
    positions = positions_of(origins, rounds.features.shape[1], last)
    visible = mask_of(behind_padding(starts, positions.shape[1]), rounds.features)
    read = head.fuse(rounds.features)
    head(rounds.ids[:, 1:], read, Context(positions, visible, cache))
    slots, step = target.grid.slots, torch.arange(steps, device=starts.device).repeat(2)
    ahead = slots(rounds.roots[:, None] + step) - slots(rounds.roots)[:, None]  # (m, 2 steps)
    roots = rounds.prompt - 1 + slots(rounds.roots)  # (m,) the slots of the roots
    window_positions = (
        (roots[:, None] + ahead - origins[:, None, None]).clamp(0, last).flatten(0, 1)
    )
    visible = mask_of(_seen(rounds, roots, starts), rounds.features)
    ids = torch.cat([rounds.best, rounds.true], 1) + target.vocab.first_id
    stale = torch.cat([rounds.stale_best, rounds.stale_true], 2).transpose(0, 1).flatten(0, 1)
    before = torch.cat([read[:, roots].transpose(0, 1)[:, :, None], rounds.before[:, :, 1:]], 2)
    before = torch.cat([before, before], 2).transpose(0, 1).flatten(0, 1)
    context = Context(window_positions, visible, cache)
    outputs = head.read(ids.repeat(guidance, 1), before, stale, step, context)
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
    window = _visible(steps, starts.device).expand(guidance, m, -1, -1)
    return torch.cat([sequence, window], 3).flatten(0, 1)


def _visible(steps: int, device: torch.device) -> Tensor:
    """Return what a window's slots see, (2 steps, 2 steps): best candidates, then true tokens."""
    every = torch.ones(steps, steps, dtype=torch.bool, device=device)
    diagonal = torch.eye(steps, dtype=torch.bool, device=device)
    best = torch.cat([every.tril(), every & False], 1)
    # a true token sees the candidates before it and itself, as a candidate does in decoding
    return torch.cat([best, torch.cat([every.tril(-1), diagonal], 1)])


@dataclass(frozen=True)
class Scored:
    """predicted, wanted: (m, guidance, steps, hidden) features. log_q, log_p: (m, steps, vocab)."""

    predicted: Tensor
    wanted: Tensor
    log_q: Tensor
    log_p: Tensor


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
