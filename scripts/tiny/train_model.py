"""Train the tiny Chameleon on captions and image codes.

`python -m scripts.tiny.train_model --work_dir work/tiny`

The loss is the cross-entropy of the image tokens plus those of naming and outlining their objects
(`objects.py`). The captions of a batch have the same number of tokens, so nothing is padded. One
batch in ten has no captions and trains the unconditional guidance row. Random textures drown what
there is to learn about objects, so captions with plain backgrounds are drawn more often, and tokens
next to an object that has begun weigh more; neither changes the distribution that a caption is
trained towards. Continues where it stopped.
"""

import math
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor

from drafters.training.muon import muon_and_adamw
from models.base import Context, TargetOptions
from models.files.network import public_state
from models.files.tokenizer_file import load_tokenizer
from models.files.weights import read_json
from models.targets.chameleon import (
    BEGIN_IMAGE,
    BOS,
    Chameleon,
    ChameleonVocab,
)
from models.targets.chameleon_network import chameleon_keys, chameleon_spec
from models.transformer import Transformer
from scenes.scene import sample_scene
from scripts.tiny.caption_data import Captions
from scripts.tiny.common import fast_attention, fast_autocast, fast_precision
from scripts.tiny.objects import ObjectReading, near_objects, object_labels, outlines
from scripts.tiny.training import TrainingRun, torch_device, train_for
from support.script import run_script

EMA_DECAY = 0.998
NAMING = 1.0  # weight of the objects' names in the loss
OUTLINING = 0.25  # weight of the objects' outlines
HEAD_STEPS = 60  # batches that train the object heads alone, after weights without them were loaded
ELSEWHERE = 0.25  # weight of an image token that is not next to an object; 1 for one that is
ODDS = {
    "plain": 3.0,
    "gradient": 2.0,
    "striped": 2.5,
    "checkered": 3.0,
    "cloudy": 1.0,
    "noisy": 0.6,
    "grassy": 0.6,
}


def image_losses(model: Transformer, prompts: Tensor, codes: Tensor, first_id: int) -> Tensor:
    """Return the cross-entropy (nats) of each of codes (images, tokens), after prompts (images,
    length).
    """
    ids = torch.cat([prompts, codes[:, :-1] + first_id], 1)
    positions = torch.arange(ids.shape[1], device=ids.device).expand(len(ids), -1)
    features = model(ids, Context(positions))[:, prompts.shape[1] - 1 :]
    logits = model.score(features).flatten(0, 1).float()
    return F.cross_entropy(logits, codes.flatten(), reduction="none").view(codes.shape)


class ModelRun(TrainingRun):
    """Training of the transformer; the moving average of its weights is validated and exported."""

    def __init__(self, work_dir: Path, model_dir: Path, batch_size: int, device: torch.device):
        self.vocab = ChameleonVocab(load_tokenizer(model_dir / "tokenizer" / "text_tokenizer.json"))
        self.image, self.empty = self.vocab.image, [self.vocab[BOS], self.vocab[BEGIN_IMAGE]]
        self.train = Captions.read(work_dir, "train", self.vocab, ODDS)
        self.validation = Captions.read(work_dir, "validation", self.vocab)
        torch.manual_seed(0)
        spec = chameleon_spec(read_json(model_dir / "config.json"))
        module = ObjectReading(initialise(Transformer(spec, self.image.size))).to(device)
        super().__init__(
            module, batch_size, muon_and_adamw(module, fast_precision(device)), clip=1.0
        )
        self.average = {key: value.clone() for key, value in self.module.state_dict().items()}

    def losses(
        self,
        split: str,
        number: int,
        empty: list[int] | None,
        elsewhere: float,
        part: slice = slice(None),
    ) -> dict[str, Tensor]:
        """Return the cross-entropies of tokens, objects' names and outlines, for a part of a batch.

        Tokens and outlines that are not next to an object weigh `elsewhere`.
        """
        captions = self.train if split == "train" else self.validation
        prompts, codes, images = (
            found[part] for found in captions.batch(number, self.batch_size, empty)
        )
        side = math.isqrt(codes.shape[1])
        scenes = [sample_scene(split, image) for image in images]
        found = (
            [f(scene, side) for scene in scenes] for f in (object_labels, near_objects, outlines)
        )
        labels, near, shares = (
            torch.from_numpy(np.stack(of_scenes)).to(self.device) for of_scenes in found
        )
        prompts, codes = prompts.to(self.device), codes.to(self.device)
        weights = torch.where(near, 1.0, elsewhere)
        weights /= weights.sum()
        with fast_autocast(self.device), fast_attention(self.device):
            tokens = image_losses(self.module.transformer, prompts, codes, self.image.first_id)
            return {
                "tokens": (weights * tokens).sum(),
                "names": self.module.naming(labels),
                "outlines": (weights * self.module.outlining(shares)).sum(),
            }

    def loss(self) -> Tensor:
        losses = self.losses("train", self.step, self.empty, ELSEWHERE, self.part)
        return losses["tokens"] + NAMING * losses["names"] + OUTLINING * losses["outlines"]

    def update(self, rate: float) -> float:
        decay = min(EMA_DECAY, (1 + self.step) / (10 + self.step))
        loss = super().update(rate)
        torch._foreach_lerp_(
            list(self.average.values()), list(self.module.state_dict().values()), 1 - decay
        )
        return loss

    @torch.no_grad()
    def validate(self, batches: int = 8) -> dict[str, float]:
        current = {key: value.clone() for key, value in self.module.state_dict().items()}
        self.module.load_state_dict(self.average)
        found = [self.losses("validation", 10**9 + number, None, 1.0) for number in range(batches)]
        self.module.load_state_dict(current)
        return {
            f"validation_{part}": sum(losses[part].item() for losses in found) / batches
            for part in found[0]
        }

    def state(self) -> dict[str, object]:
        return super().state() | {"average": self.average}

    def load(self, state: dict[str, object]) -> None:
        super().load(state)
        self.average = {key: value.to(self.device) for key, value in state["average"].items()}

    def start_from(self, folder: Path) -> None:
        loaded = Chameleon.load(folder, TargetOptions(torch.float32, self.device)).transformer
        self.module.transformer.load_state_dict(loaded.state_dict())
        self._fit_heads(HEAD_STEPS)
        self.average = {key: value.clone() for key, value in self.module.state_dict().items()}

    def _fit_heads(self, steps: int) -> None:
        """Train the object heads alone.

        Gradients through random heads would first destroy what the transformer knows.
        """
        heads = [*self.module.names.parameters(), *self.module.cells.parameters()]
        optimizer = torch.optim.AdamW(heads, lr=1e-2, weight_decay=0.0)
        self.module.transformer.requires_grad_(False)
        for step in range(steps):
            losses = self.losses("train", 10**8 + step, self.empty, ELSEWHERE, self.part)
            optimizer.zero_grad()
            (losses["names"] + losses["outlines"]).backward()
            self.crew.average(weight.grad for weight in heads)
            optimizer.step()
        self.module.transformer.requires_grad_(True)

    def export(self, folder: Path) -> None:
        """Write the averaged weights in the public layout, in fp16.

        Text rows of the head are zero, because they are never scored.
        """
        self.module.load_state_dict(self.average)
        transformer = self.module.transformer
        state = public_state(transformer, chameleon_keys(transformer.spec, None))
        head = torch.zeros(transformer.spec.vocab, transformer.spec.hidden)
        head[self.image.first_id : self.image.first_id + self.image.size] = state["lm_head.weight"]
        state["lm_head.weight"] = head
        save_file(
            {key: value.half().cpu() for key, value in state.items()},
            folder / "model.safetensors",
            {"format": "pt"},
        )


def initialise(model: Transformer) -> Transformer:
    """Fill with normal weights of deviation 0.02; returns the model.

    Layers that write to the residual stream start smaller by sqrt(2 layers).
    """
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and "qk_norm" not in name:
            small = name.endswith(("out.weight", "down.weight"))
            torch.nn.init.normal_(
                parameter, std=0.02 / ((2 * model.spec.layers) ** 0.5 if small else 1.0)
            )
    return model


def train(
    *,
    work_dir: str,
    model_dir: str = "ckpts/tiny",
    start_from: str | None = None,
    minutes: float = 56.0,
    batch_size: int = 32,
    lr: float = 1.7e-3,
) -> None:
    """Train for `minutes` of wall clock in all, earlier calls included; then export to model_dir.

    Args:
        work_dir: folder with codes and captions, and the checkpoint that an interrupted run
            continues.
        model_dir: folder of config and tokenizer, which also receives the weights.
        start_from: folder of exported weights to begin with if work_dir has no checkpoint; random
            weights if None.
        minutes: budget.
        batch_size: images per step, shared between a launcher's processes.
        lr: highest learning rate.
    """
    run = ModelRun(Path(work_dir), Path(model_dir), batch_size, torch_device())
    train_for(minutes, run, Path(work_dir) / "model.pt", start_from, lr)
    if run.crew.rank == 0:
        run.export(Path(model_dir))


if __name__ == "__main__":
    run_script(train)
