"""A target's features of given images, for training: sequences of all guidance rows."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from models.base import Context, ImageGrid, Layers, PromptRows
from models.target import TargetModel


@dataclass(frozen=True)
class Rows:
    """Guidance rows of some images' sequences; an image's rows are adjacent.

    A row lacks its last image token, which predicts nothing.
    """

    ids: Tensor  # (rows, n) prompt, image tokens and row ends; all prompts end at the same slot
    features: Tensor  # (rows, n, hidden) of the target, then the hidden states that a drafter reads
    starts: Tensor  # (rows,) slot of a row's first token; the slots before it are padding
    origins: Tensor  # (rows,) slot of rotary position 0
    prompt: int  # slots before the image; decoding drafts from slot prompt - 1 on

    @property
    def drafted(self) -> int:
        """How many slots decoding drafts from."""
        return self.ids.shape[1] - self.prompt

    def to(self, device: torch.device, dtype: torch.dtype) -> "Rows":
        """Return the same on another device, with features of another dtype."""
        starts, origins = self.starts.to(device), self.origins.to(device)
        features = self.features.to(device, dtype)
        return Rows(self.ids.to(device), features, starts, origins, self.prompt)


class Joined:
    """A KV cache that concatenates what passes write, so that gradients flow through it.

    A pass may have several rows for each row of the passes before, which then see the same of them
    but not each other. All rows go through a pass together, also where --cfg_mode is sequential.
    """

    def __init__(self) -> None:
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}
        self.keeps = True  # whether what is written next is kept for later passes

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store and return as `models.base.Cache` says."""
        if layer in self.layers:
            before = self.layers[layer]
            times = len(keys) // len(before[0])
            keys, values = (
                torch.cat([old if times == 1 else old.repeat_interleave(times, 0), new], 2)
                for old, new in zip(before, (keys, values), strict=True)
            )
        if self.keeps:
            self.layers[layer] = keys, values
        return keys, values


def with_row_ends(codes: Tensor, grid: ImageGrid) -> Tensor:
    """Return codes (images, tokens) with row ends, up to the last image token."""
    if grid.row_end is None:
        return codes
    rows = codes.unflatten(1, (grid.rows, grid.columns))
    return F.pad(rows, (0, 1), value=grid.row_end).flatten(1)[:, :-1]


def join_prompts(prompts: Sequence[PromptRows]) -> PromptRows:
    """Return the prompts of several images as one, padded on the left to the longest."""
    longest = max(prompt.ids.shape[1] for prompt in prompts)
    parts = [_pad_prompt(prompt, longest - prompt.ids.shape[1]) for prompt in prompts]
    ids, starts, origins = (
        torch.cat([getattr(p, name) for p in parts]) for name in ("ids", "starts", "origins")
    )
    conditions = [prompt.condition for prompt in parts if prompt.condition is not None]
    return PromptRows(ids, starts, origins, torch.cat(conditions) if conditions else None)


def _pad_prompt(prompt: PromptRows, more: int) -> PromptRows:
    origins = prompt.starts if prompt.origins is None else prompt.origins
    condition = None if prompt.condition is None else F.pad(prompt.condition, (0, 0, more, 0))
    return PromptRows(F.pad(prompt.ids, (more, 0)), prompt.starts + more, origins + more, condition)


def join_rows(parts: Sequence[Rows]) -> Rows:
    """Return rows of several images as one, padded on the left to the longest prompt."""
    longest = max(rows.prompt for rows in parts)
    padded = [_pad_rows(rows, longest - rows.prompt) for rows in parts]
    ids, features, starts, origins = (
        torch.cat([getattr(rows, name) for rows in padded])
        for name in ("ids", "features", "starts", "origins")
    )
    return Rows(ids, features, starts, origins, longest)


def _pad_rows(rows: Rows, more: int) -> Rows:
    ids, features = F.pad(rows.ids, (more, 0)), F.pad(rows.features, (0, 0, more, 0))
    return Rows(ids, features, rows.starts + more, rows.origins + more, rows.prompt + more)


def row_of(rows: Rows, number: int) -> Rows:
    """Return one of the rows, without its padding."""
    chosen = slice(number, number + 1)
    starts, origins = rows.starts[chosen], rows.origins[chosen]
    cut = int(starts.minimum(origins.clamp_min(0)))
    ids, features = rows.ids[chosen, cut:], rows.features[chosen, cut:]
    return Rows(ids, features, starts - cut, origins - cut, rows.prompt - cut)


def mask_of(visible: Tensor, like: Tensor) -> Tensor:
    """Return an additive mask (..., 1, n, m) of what is visible (..., n, m).

    It has the dtype of `like`, since SDPA reads an fp32 mask wrongly with fp64 queries.
    """
    mask = torch.zeros(visible.shape, dtype=like.dtype, device=visible.device)
    return mask.masked_fill_(~visible, -torch.inf).unsqueeze(-3)


def behind_padding(starts: Tensor, n: int) -> Tensor:
    """Return what each of n slots sees, (rows, n, n): itself, and those before it after padding."""
    slot = torch.arange(n, device=starts.device)
    # padding sees itself, since a softmax over nothing is NaN
    return (slot <= slot[:, None]) & (slot >= starts[:, None, None]) | (slot == slot[:, None])


def positions_of(rows: Tensor, n: int, last: int) -> Tensor:
    """Return rotary positions (rows, n), at most `last`; rows: (rows,) the slot of position 0."""
    return (torch.arange(n, device=rows.device) - rows[:, None]).clamp_(0, last)


@torch.no_grad()
def target_rows(
    target: TargetModel, prompt: PromptRows, codes: Tensor, layers: Layers = ()
) -> Rows:
    """Return the rows of images with joined prompts; codes: (images, tokens).

    layers: whose hidden states a drafter reads.

    They are computed as decoding does: the prompt is read first, then the image in one pass.
    """
    images = (with_row_ends(codes, target.grid)[:, :-1] + target.vocab.first_id).to(target.device)
    ids = torch.cat([prompt.ids, images.repeat_interleave(len(prompt.ids) // len(codes), 0)], 1)
    origins = prompt.starts if prompt.origins is None else prompt.origins
    length, n = prompt.ids.shape[1], ids.shape[1]
    positions = positions_of(origins, n, target.spec.max_positions - 1)
    # without padding all rows see the same, and one mask serves them
    padded = bool(prompt.starts.any())
    visible = behind_padding(prompt.starts if padded else prompt.starts[:1], n)
    like = target.embedding()
    mask = mask_of(visible[:, :length, :length], like).expand(len(ids), -1, -1, -1)
    cache = Joined()
    before = Context(positions[:, :length], mask, cache)
    read = target.read(prompt, before, layers)
    # no pass follows that of the image, so its keys and values need not stay
    cache.keeps = False
    image = Context(positions[:, length:], mask_of(visible[:, length:], like), cache)
    features = torch.cat([read, target.features(ids[:, length:], image, layers)], 1)
    return Rows(ids, features, prompt.starts, origins, length)
