"""Train the tiny Chameleon on captions and image codes: `python -m scripts.tiny.train_model --work_dir work/tiny`.

A batch holds captions of one token length, so nothing is padded; one batch in ten drops its captions and trains the
unconditional row of guidance. The loss is the cross-entropy of the image tokens. Continues where it stopped.
"""

import json
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import fire
import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

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
from models.transformer import Context, Transformer
from models.weights import public_state, read_json
from scripts.tiny.common import JsonLog, cosine_lr, fast_autocast, fast_precision, load_state, save_state
from scripts.tiny.muon import muon_and_adamw, step_all

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


class Trainer:
    def __init__(self, work_dir: Path, model_dir: Path, batch_size: int, device: torch.device):
        self.vocab = ChameleonVocab(load_tokenizer(model_dir / "tokenizer" / "text_tokenizer.json"))
        self.image, self.batch_size, self.device = self.vocab.image, batch_size, device
        self.empty = [self.vocab[BOS], self.vocab[BEGIN_IMAGE]]
        self.train, self.validation = (Captions.read(work_dir, split, self.vocab) for split in ("train", "validation"))
        torch.manual_seed(0)
        spec = chameleon_spec(read_json(model_dir / "config.json"))
        self.model = initialise(Transformer(spec, self.image.size)).to(device)
        self.average = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.optimizers = muon_and_adamw(self.model, fast_precision(device))
        self.step, self.seconds = 0, 0.0

    def update(self, rate: float) -> float:
        """One optimiser step at this learning rate; returns the loss."""
        prompts, codes = (t.to(self.device) for t in self.train.batch(self.step, self.batch_size, self.empty))
        with fast_autocast(self.device):
            loss = image_loss(self.model, prompts, codes, self.image.first_id)
        self.model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        step_all(self.optimizers, rate)
        decay = min(EMA_DECAY, (1 + self.step) / (10 + self.step))
        torch._foreach_lerp_(list(self.average.values()), list(self.model.state_dict().values()), 1 - decay)
        self.step += 1
        return loss.item()

    @torch.no_grad()
    def validate(self, batches: int = 8) -> float:
        """Mean validation loss of the averaged weights."""
        current = {key: value.clone() for key, value in self.model.state_dict().items()}
        self.model.load_state_dict(self.average)
        losses = []
        for number in range(batches):
            prompts, codes = (
                t.to(self.device) for t in self.validation.batch(10**9 + number, self.batch_size, self.empty)
            )
            with fast_autocast(self.device):
                losses.append(image_loss(self.model, prompts, codes, self.image.first_id).item())
        self.model.load_state_dict(current)
        return sum(losses) / batches

    def save(self, path: Path) -> None:
        save_state(
            path,
            {
                "model": self.model.state_dict(),
                "average": self.average,
                "step": self.step,
                "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
                "seconds": self.seconds,
            },
        )

    def resume(self, path: Path) -> bool:
        """Continue from a checkpoint of `save`; False if there is none."""
        state = load_state(path)
        if state is None:
            return False
        self.model.load_state_dict(state["model"])
        self.average = {key: value.to(self.device) for key, value in state["average"].items()}
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds = state["step"], state["seconds"]
        return True

    def start_from(self, folder: Path) -> None:
        """Begin with the weights that `export` wrote to a folder; the optimisers start anew."""
        self.model.load_state_dict(Chameleon.load(folder, torch.float32, self.device).transformer.state_dict())
        self.average = {key: value.clone() for key, value in self.model.state_dict().items()}

    def export(self, folder: Path) -> None:
        """Write the averaged weights in the public layout, in fp16; text rows of the head are zero: never scored."""
        self.model.load_state_dict(self.average)
        state = public_state(self.model, chameleon_keys(self.model.spec, None))
        head = torch.zeros(self.model.spec.vocab, self.model.spec.hidden)
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
    work, log = Path(work_dir), JsonLog(Path(work_dir) / "train_model.jsonl")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trainer = Trainer(work, Path(model_dir), batch_size, device)
    if not trainer.resume(work / "model.pt") and start is not None:
        trainer.start_from(Path(start))
    losses: list[float] = []
    while trainer.seconds < 60 * minutes:
        started = time.perf_counter()
        losses.append(trainer.update(cosine_lr(trainer.seconds / (60 * minutes), lr)))
        trainer.seconds += time.perf_counter() - started
        if trainer.step % 25 == 0:
            rate = trainer.step * batch_size / trainer.seconds
            log.write(
                step=trainer.step, loss=sum(losses) / len(losses), images_per_second=rate, seconds=trainer.seconds
            )
            losses = []
        if trainer.step % 200 == 0:
            log.write(step=trainer.step, validation_loss=trainer.validate())
            trainer.save(work / "model.pt")
    log.write(
        step=trainer.step, validation_loss=trainer.validate(), images=trainer.step * batch_size, seconds=trainer.seconds
    )
    trainer.save(work / "model.pt")
    trainer.export(Path(model_dir))


if __name__ == "__main__":
    fire.Fire(train)
