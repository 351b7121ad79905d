"""What a drafter is to compute, by definition: the EAGLE head over whole unpadded sequences,
without cache or mask.

Slot i reads the target's feature i and the embedding of token i + 1, stands at position i, and
predicts feature i + 1.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import torch
from torch import Tensor

from decoding.sampling import SamplingDistribution
from models.base import Context
from runs.session import Session


def session_reading(session: Session, layers: tuple[int, ...]) -> Session:
    """A session whose head also reads the target's hidden states after these layers."""
    if not layers:
        return session
    head = deepcopy(session.drafter.network)
    head.read_layers(layers)
    generator = torch.Generator().manual_seed(5)
    weight = head.states.weight
    weight.data.copy_(torch.randn(weight.shape, generator=generator) * 0.05)
    head.requires_grad_(False)
    return replace(session, drafter=replace(session.drafter, network=head))


class Image:
    """An image that is decided step by step, with the answers of uncached passes over its unpadded
    rows.
    """

    def __init__(
        self, session: Session, distribution: SamplingDistribution, text: str, codes: list[int]
    ):
        self.target, self.head, self.distribution = (
            session.target,
            session.drafter.network,
            distribution,
        )
        self.prompt = self.target.prompt(text, distribution.guidance)
        self.codes = torch.tensor(codes)
        starts = self.prompt.starts.tolist()
        self.rows = [
            ids[start:].tolist() for ids, start in zip(self.prompt.ids, starts, strict=True)
        ]

    def sequence(self, codes: list[int]) -> list[int]:
        """Ids of the first codes of the image, each row closed where the model closes rows."""
        grid, first = self.target.grid, self.target.vocab.first_id
        ids = []
        for position, code in enumerate(codes):
            ids.append(code + first)
            if grid.row_end is not None and position % grid.columns == grid.columns - 1:
                ids.append(grid.row_end + first)
        return ids

    @torch.inference_mode()
    def features(self, count: int) -> list[Tensor]:
        """The target's features of each row's prompt and its first `count` codes, (n, hidden),
        with the hidden states that the head reads.
        """
        found = []
        for row in self.rows:
            ids = torch.tensor([row + self.sequence(self.codes[:count].tolist())])
            context = Context(torch.arange(ids.shape[1])[None])
            found.append(self.target.features(ids, context, self.head.spec.target_layers)[0])
        return found

    def decided(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Features (guidance, n, hidden) from the code before number start on, and what follows
        them, up to the code before number stop (n,).
        """
        first, known = (len(self.sequence(self.codes[: end - 1].tolist())) for end in (start, stop))
        after = self.sequence(self.codes[:stop].tolist())[first + 1 : known + 1]
        codes = torch.tensor(after) - self.target.vocab.first_id
        return torch.stack([f[-(known - first) :] for f in self.features(stop - 1)]), codes

    @torch.inference_mode()
    def distribution_after(self, count: int, path: tuple[int, ...] = ()) -> Tensor:
        """log q (vocab,) after `count` decided codes and a path of drafted ones, by definition."""
        last = []
        for row, features in zip(self.rows, self.features(count - 1), strict=True):
            ids = torch.tensor([row + self.sequence([*self.codes[:count].tolist(), *path])])[:, 1:]
            inputs = self.head.fuse(features[None])
            while True:
                n = inputs.shape[1]
                outputs = self.head(ids[:, :n], inputs, Context(torch.arange(n)[None]))
                if n == ids.shape[1]:
                    break
                inputs = torch.cat([inputs, outputs[:, -1:]], 1)
            last.append(outputs[:, -1:])
        return self.distribution(self.target.score(torch.cat(last)))[0, 0]
