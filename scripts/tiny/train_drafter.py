"""Train the tiny model's EAGLE head: `python -m scripts.tiny.train_drafter --work_dir work/tiny`.

Features are computed on the fly by the frozen target, for the conditional and the unconditional row. Continues where it
stopped.
"""

import time
from pathlib import Path

import fire
import torch
from safetensors.torch import save_file
from torch import Tensor

from drafters.eagle import EagleHead
from drafters.loading import eagle_keys, load_eagle_head
from drafters.losses import Row, agreement, eagle_loss
from models.chameleon import BEGIN_IMAGE, BOS, Chameleon, chameleon_spec
from models.transformer import Context
from models.weights import public_state, read_json
from scripts.tiny.common import JsonLog, cosine_lr, fast_autocast, fast_precision, load_state, save_state
from scripts.tiny.muon import muon_and_adamw, step_all
from scripts.tiny.train_model import Captions

GUIDANCE = 3.0
FEATURE_NOISE = 0.05


class Trainer:
    def __init__(self, work_dir: Path, model_dir: Path, batch_size: int, device: torch.device):
        self.target = Chameleon.load(model_dir, torch.float32, device)
        self.batch_size, self.device, words = batch_size, device, self.target.words
        self.train, self.validation = (Captions.read(work_dir, split, words) for split in ("train", "validation"))
        self.empty = [words[BOS], words[BEGIN_IMAGE]]
        torch.manual_seed(0)
        self.head = EagleHead(chameleon_spec(read_json(model_dir / "drafter" / "config.json"))).to(device)
        for name, parameter in self.head.named_parameters():
            if parameter.ndim > 1 and "qk_norm" not in name:
                torch.nn.init.normal_(parameter, std=0.02)
        self.head.embedding.weight.data.copy_(self.target.transformer.embedding.weight)
        self.head.embedding.requires_grad_(False)
        self.optimizers = muon_and_adamw(self.head, fast_precision(device))
        self.step, self.seconds = 0, 0.0

    def rows(self, captions: Captions, number: int) -> list[Row]:
        """Both guidance rows of batch `number`, with the target's features."""
        prompts, codes = (t.to(self.device) for t in captions.batch(number, self.batch_size, None))
        empty = torch.tensor(self.empty, device=self.device).expand(len(codes), -1)
        return [self._row(prompts, codes), self._row(empty, codes)]

    @torch.no_grad()
    def _row(self, prompts: Tensor, codes: Tensor) -> Row:
        ids = torch.cat([prompts, codes[:, :-1] + self.target.vocab.first_id], 1)
        positions = torch.arange(ids.shape[1], device=ids.device).expand(len(ids), -1)
        with fast_autocast(self.device):
            features = self.target.features(ids, Context(positions))
        return Row(ids, features.float(), prompts.shape[1])

    def update(self, rate: float) -> float:
        rows = self.rows(self.train, self.step)
        noise = [(torch.rand_like(row.features[:, :-1]) * 2 - 1) * FEATURE_NOISE for row in rows]
        with fast_autocast(self.device):
            loss = eagle_loss(self.target.transformer, self.head, rows, GUIDANCE, noise)
        self.head.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.head.parameters(), 0.5)
        step_all(self.optimizers, rate)
        self.step += 1
        return loss.item()

    def validate(self, batches: int = 4) -> dict[str, float]:
        """Mean depth-1 figures on validation images."""
        found = [
            agreement(self.target.transformer, self.head, self.rows(self.validation, 10**9 + number), GUIDANCE)
            for number in range(batches)
        ]
        return {name: sum(figures[name] for figures in found) / batches for name in found[0]}

    def save(self, path: Path) -> None:
        state = {"head": self.head.state_dict(), "step": self.step, "seconds": self.seconds}
        save_state(path, state | {"optimizers": [optimizer.state_dict() for optimizer in self.optimizers]})

    def resume(self, path: Path) -> bool:
        """Continue from a checkpoint of `save`; False if there is none."""
        state = load_state(path)
        if state is None:
            return False
        self.head.load_state_dict(state["head"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.step, self.seconds = state["step"], state["seconds"]
        return True

    def start_from(self, folder: Path) -> None:
        """Begin with the weights of an exported head; the target's embedding is kept."""
        weights = load_eagle_head(str(folder), self.target).state_dict()
        self.head.load_state_dict(weights | {"embedding.weight": self.target.transformer.embedding.weight})

    def export(self, folder: Path) -> None:
        """Write the head in the public drafter layout, in fp16."""
        state = public_state(self.head, eagle_keys(self.head.spec, True))
        save_file(
            {key: value.half().cpu() for key, value in state.items()}, folder / "model.safetensors", {"format": "pt"}
        )


def train(
    *,
    work_dir: str,
    model_dir: str = "ckpts/tiny",
    start: str | None = None,
    minutes: float = 14.0,
    batch_size: int = 16,
    lr: float = 2e-3,
) -> None:
    """Train for a wall-clock budget of `minutes` in all, resumed time included; then export to model_dir/drafter.

    Args:
        work_dir: folder with codes, captions and the checkpoint that an interrupted run continues from.
        model_dir: folder of the frozen target; the head is written to its subfolder.
        start: folder of an exported head to begin with when work_dir holds no checkpoint; random weights if None.
        minutes: budget.
        batch_size: images per step.
        lr: highest learning rate.
    """
    work, log = Path(work_dir), JsonLog(Path(work_dir) / "train_drafter.jsonl")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    trainer = Trainer(work, Path(model_dir), batch_size, device)
    if not trainer.resume(work / "drafter.pt") and start is not None:
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
            log.write(step=trainer.step, **trainer.validate())
            trainer.save(work / "drafter.pt")
    log.write(step=trainer.step, seconds=trainer.seconds, images=trainer.step * batch_size, **trainer.validate(16))
    trainer.save(work / "drafter.pt")
    trainer.export(Path(model_dir) / "drafter")


if __name__ == "__main__":
    fire.Fire(train)
