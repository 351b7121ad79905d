"""Train the tiny model's EAGLE head: `python -m scripts.tiny.train_drafter --work_dir work/tiny`.

The frozen target computes the features of the conditional and the unconditional row, which costs twice what the head's
own update does; with a pool of batches they are computed once and kept. Continues where it stopped.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from drafters.eagle import EagleHead
from drafters.loading import eagle_keys, load_eagle_head
from drafters.losses import Row, agreement, eagle_loss
from eval.script import run_script
from models.base import Context, TargetOptions
from models.chameleon import BEGIN_IMAGE, BOS, Chameleon, chameleon_spec
from models.weights import public_state, read_json
from scripts.tiny.common import fast_autocast
from scripts.tiny.train_model import Captions
from scripts.tiny.training import TrainingRun, torch_device, train_for

GUIDANCE = 3.0
FEATURE_NOISE = 0.05


@dataclass(frozen=True)
class Source:
    """What a head is trained on: a split, "own" for the target's own images; and the number of batches that take turns,
    their features kept in memory in fp16, or None for always new ones."""

    split: str = "train"
    pool: int | None = None


class DrafterRun(TrainingRun):
    """Training of an EAGLE head beside its frozen target."""

    def __init__(
        self,
        work_dir: Path,
        model_dir: Path,
        batch_size: int,
        device: torch.device,
        source: Source = Source(),  # noqa: B008
    ):
        self.pool, self.kept = source.pool, {}
        self.target = Chameleon.load(model_dir, TargetOptions(torch.float32, device))
        words = self.target.words
        self.empty = [words[BOS], words[BEGIN_IMAGE]]
        self.train, self.validation = (Captions.read(work_dir, part, words) for part in (source.split, "validation"))
        torch.manual_seed(0)
        head = EagleHead(chameleon_spec(read_json(model_dir / "drafter" / "config.json"))).to(device)
        for name, parameter in head.named_parameters():
            if parameter.ndim > 1 and "qk_norm" not in name:
                torch.nn.init.normal_(parameter, std=0.02)
        head.embedding.weight.data.copy_(self.target.transformer.embedding.weight)
        head.embedding.requires_grad_(False)
        super().__init__(head, batch_size, clip=0.5)

    def rows(self, captions: Captions, number: int) -> list[Row]:
        """Both guidance rows of batch `number`, with the target's features."""
        prompts, codes = (t.to(self.device) for t in captions.batch(number, self.batch_size, None)[:2])
        empty = torch.tensor(self.empty, device=self.device).expand(len(codes), -1)
        return [self._row(prompts, codes), self._row(empty, codes)]

    @torch.no_grad()
    def _row(self, prompts: Tensor, codes: Tensor) -> Row:
        ids = torch.cat([prompts, codes[:, :-1] + self.target.vocab.first_id], 1)
        positions = torch.arange(ids.shape[1], device=ids.device).expand(len(ids), -1)
        with fast_autocast(self.device):
            features = self.target.features(ids, Context(positions))
        return Row(ids, features.float(), prompts.shape[1])

    def loss(self) -> Tensor:
        rows = self.rows(self.train, self.step) if self.pool is None else self._pooled(self.step % self.pool)
        torch.manual_seed(self.step)  # a resumed run draws what the uninterrupted one would have drawn
        noise = [(torch.rand_like(row.features[:, :-1]) * 2 - 1) * FEATURE_NOISE for row in rows]
        with fast_autocast(self.device):
            return eagle_loss(self.target.transformer, self.module, rows, GUIDANCE, noise)

    def _pooled(self, number: int) -> list[Row]:
        if number not in self.kept:
            self.kept[number] = [_moved(row, torch.float16, "cpu") for row in self.rows(self.train, number)]
        return [_moved(row, torch.float32, self.device) for row in self.kept[number]]

    def validate(self, batches: int = 4) -> dict[str, float]:
        """Mean depth-1 figures on validation images."""
        found = [
            agreement(self.target.transformer, self.module, self.rows(self.validation, 10**9 + number), GUIDANCE)
            for number in range(batches)
        ]
        return {name: sum(figures[name] for figures in found) / batches for name in found[0]}

    def start_from(self, folder: Path) -> None:
        """Begin with the weights of an exported head; the target's embedding is kept."""
        weights = load_eagle_head(str(folder), self.target).state_dict()
        self.module.load_state_dict(weights | {"embedding.weight": self.target.transformer.embedding.weight})

    def export(self, folder: Path) -> None:
        state = public_state(self.module, eagle_keys(self.module.spec, True))
        save_file(
            {key: value.half().cpu() for key, value in state.items()}, folder / "model.safetensors", {"format": "pt"}
        )


def _moved(row: Row, precision: torch.dtype, device: torch.device | str) -> Row:
    return replace(row, ids=row.ids.to(device), features=row.features.to(device, precision))


def train(
    *,
    work_dir: str,
    model_dir: str = "ckpts/tiny",
    start: str | None = None,
    minutes: float = 14.0,
    batch_size: int = 16,
    lr: float = 2e-3,
    split: str = "train",
    pool: int | None = None,
) -> None:
    """Train for a wall-clock budget of `minutes` in all, resumed time included; then export to model_dir/drafter.

    Args:
        work_dir: folder with codes, captions and the checkpoint that an interrupted run continues from.
        model_dir: folder of the frozen target; the head is written to its subfolder.
        start: folder of an exported head to begin with when work_dir holds no checkpoint; random weights if None.
        minutes: budget.
        batch_size: images per step.
        lr: highest learning rate.
        split: "train", or "own" for what scripts.tiny.sample has drawn.
        pool: number of batches that take turns, their features kept in memory; always new batches if None.
    """
    run = DrafterRun(Path(work_dir), Path(model_dir), batch_size, torch_device(), Source(split, pool))
    train_for(minutes, run, Path(work_dir) / "drafter.pt", start, lr)
    run.export(Path(model_dir) / "drafter")


if __name__ == "__main__":
    run_script(train)
