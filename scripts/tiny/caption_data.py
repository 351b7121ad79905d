"""Training data of the tiny transformer: tokenised captions with the codes of their images."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from models.targets.chameleon import BEGIN_IMAGE, BOS, END_OF_TURN, ChameleonVocab

DROPPED_CAPTIONS = 0.1  # share of the batches that train without captions


@dataclass(frozen=True)
class Captions:
    """Tokenised captions and image codes of a split."""

    prompts: list[list[int]]  # with their frame: <s> text <reserved08706> <racm3:break>
    codes: np.ndarray  # (images, tokens) uint16
    odds: np.ndarray  # (images,) of being drawn

    @staticmethod
    def read(
        work_dir: Path, split: str, vocab: ChameleonVocab, odds: dict[str, float] | None = None
    ) -> "Captions":
        """Read a split; odds: by kind of background, all captions alike if None."""
        codes = np.load(work_dir / f"codes_{split}.npy", mmap_mode="r")
        with open(work_dir / f"captions_{split}.jsonl", encoding="utf-8") as lines:
            captions = [json.loads(line) for line, _ in zip(lines, codes, strict=False)]
        tail = [vocab[END_OF_TURN], vocab[BEGIN_IMAGE]]
        encoded = vocab.tokenizer.encode_batch(
            [line["caption"] for line in captions], add_special_tokens=False
        )
        weights = [odds[line["background"]["kind"]] if odds else 1.0 for line in captions]
        return Captions(
            [[vocab[BOS], *text.ids, *tail] for text in encoded], codes, np.array(weights)
        )

    def batch(
        self, seed: int, size: int, empty: list[int] | None
    ) -> tuple[Tensor, Tensor, list[int]]:
        """Return prompts (size, length), codes (size, tokens) and image numbers of batch `seed`.

        empty: a prompt that one batch in ten has instead of its captions.
        """
        rng = np.random.default_rng(seed)
        length = len(self.prompts[rng.choice(len(self.odds), p=self.odds / self.odds.sum())])
        alike = np.flatnonzero(self._lengths == length)
        chosen = rng.choice(alike, size, p=self.odds[alike] / self.odds[alike].sum())
        prompts = [self.prompts[i] for i in chosen]
        if empty and rng.random() < DROPPED_CAPTIONS:
            prompts = [empty] * size
        return (
            torch.tensor(prompts),
            torch.from_numpy(self.codes[chosen].astype(np.int64)),
            chosen.tolist(),
        )

    @cached_property
    def _lengths(self) -> np.ndarray:
        return np.array([len(prompt) for prompt in self.prompts])
