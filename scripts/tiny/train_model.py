"""Train the tiny Chameleon on captions and image codes: `python -m scripts.tiny.train_model --work_dir work/tiny`.

A batch holds captions of one token length, so nothing is padded; one batch in ten drops its captions and trains the
unconditional row of guidance. The loss is the cross-entropy of the image tokens. Continues where it stopped.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import fire
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from models.base import Context
from models.chameleon import (
    BEGIN_IMAGE,
    BOS,
    END_OF_TURN,
    Chameleon,
    ChameleonVocab,
    chameleon_keys,
    chameleon_spec,
    load_tokenizer,
)
from models.transformer import Transformer
from models.weights import public_state, read_json
from scripts.tiny.common import fast_autocast
from scripts.tiny.training import TrainingRun, torch_device, train_for

DROPPED_CAPTIONS = 0.1
EMA_DECAY = 0.998


@dataclass(frozen=True)
class Captions:
    """Tokenised captions and image codes of a split."""

    prompts: list[list[int]]  # with their frame: <s> text <reserved08706> <racm3:break>
    codes: np.ndarray  # (images, tokens) uint16

    @staticmethod
    def read(work_dir: Path, split: str, vocab: ChameleonVocab) -> "Captions":
        codes = np.load(work_dir / f"codes_{split}.npy", mmap_mode="r")
        with open(work_dir / f"captions_{split}.jsonl", encoding="utf-8") as lines:
            texts = [json.loads(line)["caption"] for line, _ in zip(lines, codes, strict=False)]
        tail = [vocab[END_OF_TURN], vocab[BEGIN_IMAGE]]
        encoded = vocab.tokenizer.encode_batch(texts, add_special_tokens=False)
        return Captions([[vocab[BOS], *text.ids, *tail] for text in encoded], codes)

    def batch(self, seed: int, size: int, empty: list[int] | None) -> tuple[Tensor, Tensor]:
        """Batch number `seed`: prompts (size, length), codes (size, tokens); with `empty`, one in ten has that
        prompt."""
        rng = np.random.default_rng(seed)
        length = len(self.prompts[rng.integers(len(self.prompts))])
        chosen = rng.choice(np.flatnonzero(self._lengths == length), size)
        prompts = [self.prompts[i] for i in chosen]
        if empty and rng.random() < DROPPED_CAPTIONS:
            prompts = [empty] * size
        return torch.tensor(prompts), torch.from_numpy(self.codes[chosen].astype(np.int64))

    @cached_property
    def _lengths(self) -> np.ndarray:
        return np.array([len(prompt) for prompt in self.prompts])


def image_loss(model: Transformer, prompts: Tensor, codes: Tensor, first_id: int) -> Tensor:
    """Mean cross-entropy (nats per token) of codes (images, tokens) behind prompts (images, length)."""
    ids = torch.cat([prompts, codes[:, :-1] + first_id], 1)
    positions = torch.arange(ids.shape[1], device=ids.device).expand(len(ids), -1)
    features = model(ids, Context(positions))[:, prompts.shape[1] - 1 :]
    return F.cross_entropy(model.score(features).flatten(0, 1).float(), codes.flatten())


class ModelRun(TrainingRun):
    """Training of the transformer; what is validated and exported is the moving average of its weights."""

    def __init__(self, work_dir: Path, model_dir: Path, batch_size: int, device: torch.device):
        self.vocab = ChameleonVocab(load_tokenizer(model_dir / "tokenizer" / "text_tokenizer.json"))
        self.image, self.empty = self.vocab.image, [self.vocab[BOS], self.vocab[BEGIN_IMAGE]]
        self.train, self.validation = (Captions.read(work_dir, split, self.vocab) for split in ("train", "validation"))
        torch.manual_seed(0)
        spec = chameleon_spec(read_json(model_dir / "config.json"))
        super().__init__(initialise(Transformer(spec, self.image.size)).to(device), batch_size, clip=1.0)
        self.average = {key: value.clone() for key, value in self.module.state_dict().items()}

    def _loss(self, captions: Captions, number: int) -> Tensor:
        prompts, codes = (t.to(self.device) for t in captions.batch(number, self.batch_size, self.empty))
        with fast_autocast(self.device):
            return image_loss(self.module, prompts, codes, self.image.first_id)

    def loss(self) -> Tensor:
        return self._loss(self.train, self.step)

    def update(self, rate: float) -> float:
        decay = min(EMA_DECAY, (1 + self.step) / (10 + self.step))
        loss = super().update(rate)
        torch._foreach_lerp_(list(self.average.values()), list(self.module.state_dict().values()), 1 - decay)
        return loss

    @torch.no_grad()
    def validate(self, batches: int = 8) -> dict[str, float]:
        current = {key: value.clone() for key, value in self.module.state_dict().items()}
        self.module.load_state_dict(self.average)
        losses = [self._loss(self.validation, 10**9 + number).item() for number in range(batches)]
        self.module.load_state_dict(current)
        return {"validation_loss": sum(losses) / batches}

    def state(self) -> dict[str, object]:
        return super().state() | {"average": self.average}

    def load(self, state: dict[str, object]) -> None:
        super().load(state)
        self.average = {key: value.to(self.device) for key, value in state["average"].items()}

    def start_from(self, folder: Path) -> None:
        self.module.load_state_dict(Chameleon.load(folder, torch.float32, self.device).transformer.state_dict())
        self.average = {key: value.clone() for key, value in self.module.state_dict().items()}

    def export(self, folder: Path) -> None:
        """Write the averaged weights in the public layout, in fp16; text rows of the head are zero: never scored."""
        self.module.load_state_dict(self.average)
        state = public_state(self.module, chameleon_keys(self.module.spec, None))
        head = torch.zeros(self.module.spec.vocab, self.module.spec.hidden)
        head[self.image.first_id : self.image.first_id + self.image.size] = state["lm_head.weight"]
        state["lm_head.weight"] = head
        save_file(
            {key: value.half().cpu() for key, value in state.items()}, folder / "model.safetensors", {"format": "pt"}
        )


def initialise(model: Transformer) -> Transformer:
    """Normal weights of deviation 0.02; the layers that write to the residual stream start smaller by sqrt(2
    layers)."""
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and "qk_norm" not in name:
            small = name.endswith(("out.weight", "down.weight"))
            torch.nn.init.normal_(parameter, std=0.02 / ((2 * model.spec.layers) ** 0.5 if small else 1.0))
    return model


def train(
    *,
    work_dir: str,
    model_dir: str = "ckpts/tiny",
    start: str | None = None,
    minutes: float = 56.0,
    batch_size: int = 16,
    lr: float = 1.2e-3,
) -> None:
    """Train for a wall-clock budget of `minutes` in all, resumed time included; then export to model_dir.

    Args:
        work_dir: folder with codes, captions and the checkpoint that an interrupted run continues from.
        model_dir: folder of the config and the tokenizer; the weights are written there.
        start: folder of exported weights to begin with when work_dir holds no checkpoint; random weights if None.
        minutes: budget.
        batch_size: images per step.
        lr: highest learning rate.
    """
    run = ModelRun(Path(work_dir), Path(model_dir), batch_size, torch_device())
    train_for(minutes, run, Path(work_dir) / "model.pt", start, lr)
    run.export(Path(model_dir))


if __name__ == "__main__":
    fire.Fire(train)
