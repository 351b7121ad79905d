"""What a drafter is to compute, by definition: the EAGLE head over whole unpadded sequences, without cache or mask.

Slot i reads the target's feature i and the embedding of token i + 1, stands at position i, and predicts feature i + 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from decoding.sampling import SamplingLaw
from eval.session import Session
from models.base import Context


class Image:
    """An image that is decided step by step, with the answers of uncached passes over its unpadded rows."""

    def __init__(self, session: Session, law: SamplingLaw, text: str, codes: list[int]):
        self.target, self.head, self.law = session.target, session.head, law
        self.prompt = self.target.prompt(text, law.guidance)
        self.codes = torch.tensor(codes)
        starts = self.prompt.starts.tolist()
        self.rows = [ids[start:].tolist() for ids, start in zip(self.prompt.ids, starts, strict=True)]

    @torch.inference_mode()
    def features(self, count: int) -> list[Tensor]:
        """The target's features of each row's prompt and its first `count` codes, (n, hidden)."""
        found = []
        for row in self.rows:
            ids = torch.tensor([row + (self.codes[:count] + self.target.vocab.first_id).tolist()])
            found.append(self.target.features(ids, Context(torch.arange(ids.shape[1])[None]))[0])
        return found

    def decided(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Features (guidance, n, hidden) of the positions before the codes start to stop, and these codes (n,)."""
        return torch.stack([f[-(stop - start) :] for f in self.features(stop - 1)]), self.codes[start:stop]

    @torch.inference_mode()
    def law_behind(self, count: int, path: tuple[int, ...] = ()) -> Tensor:
        """log q (vocab,) behind `count` decided codes and a path of drafted ones, by definition."""
        last = []
        for row, features in zip(self.rows, self.features(count - 1), strict=True):
            tokens = row + (self.codes[:count] + self.target.vocab.first_id).tolist()
            ids, inputs = torch.tensor([tokens[1:]]), features[None]
            for code in (*path, None):
                outputs = self.head(ids, inputs, Context(torch.arange(ids.shape[1])[None]))
                if code is not None:
                    ids = torch.cat([ids, torch.tensor([[code + self.target.vocab.first_id]])], 1)
                    inputs = torch.cat([inputs, outputs[:, -1:]], 1)
            last.append(outputs[:, -1:])
        return self.law(self.target.score(torch.cat(last)))[0, 0]
