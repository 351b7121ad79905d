"""Training of the tiny Chameleon on captions and image codes.

The loss is the cross-entropy of the image tokens; with rendered scenes also of naming and outlining
their objects (`objects.py`). The captions of a batch have the same number of tokens, so nothing is
padded. One batch in ten has no captions and trains the unconditional guidance row. Random textures
drown what there is to learn about their objects, so captions with plain backgrounds are drawn
more often, and tokens next to an object that has begun weigh more; neither changes the distribution
that a caption is trained towards.
"""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from drafters.training.optimizers import AveragedWeights, make_optimizers
from models.base import Context, TargetOptions
from models.files.network import public_state
from models.files.tokenizer_file import load_tokenizer
from models.targets.chameleon import BEGIN_IMAGE, BOS, END_OF_TURN, Chameleon, ChameleonVocab
from models.targets.llama import decoder_keys, decoder_spec
from models.transformer import Transformer
from scenes.training.images import read_captions, scene_of
from scenes.training.objects import ObjectReading, near_objects, object_labels, outlines
from scenes.training.training import TrainingRun, fast_autocast, fast_precision
from support.durable import give_usual_mode
from support.json_files import read_object

DROPPED_CAPTIONS = 0.1  # share of the batches that train without captions
EMA_DECAY = 0.998
WEIGHTS = {"tokens": 1.0, "names": 1.0, "outlines": 0.25}  # of the parts of the loss
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


@dataclass(frozen=True)
class Captions:
    """Tokenised captions and image codes of a split."""

    split: str
    records: Sequence[dict[str, Any]]
    prompts: list[list[int]]  # with their frame: <s> text <reserved08706> <racm3:break>
    lengths: np.ndarray  # (images,) of the prompts
    codes: np.ndarray  # (images, tokens) uint16
    odds: np.ndarray  # (images,) of being drawn

    @classmethod
    def read(
        cls, work_dir: Path, split: str, vocab: ChameleonVocab, odds: dict[str, float] | None = None
    ) -> "Captions":
        """Read a split. odds: of scenes, by their kind of background; None: all captions alike."""
        codes = np.load(work_dir / f"codes_{split}.npy", mmap_mode="r")
        records = read_captions(work_dir, split)[: len(codes)]
        texts = [record["caption"] for record in records]
        encoded = vocab.tokenizer.encode_batch(texts, add_special_tokens=False)
        tail = [vocab[END_OF_TURN], vocab[BEGIN_IMAGE]]
        prompts = [[vocab[BOS], *text.ids, *tail] for text in encoded]
        weights = [
            odds[record["background"]["kind"]] if odds and "background" in record else 1.0
            for record in records
        ]
        lengths = np.array(list(map(len, prompts)))
        return cls(split, records, prompts, lengths, codes, np.array(weights))

    def batch(
        self, seed: int, size: int, empty: list[int] | None
    ) -> tuple[Tensor, Tensor, list[int]]:
        """Return prompts (size, length), codes (size, tokens) and image numbers of batch `seed`.

        empty: a prompt that one batch in ten has instead of its captions.
        """
        rng = np.random.default_rng(seed)
        # a length first, by how often it occurs, so that the batch needs no padding
        length = rng.choice(self.lengths, p=self.odds / self.odds.sum())
        same_length = np.flatnonzero(self.lengths == length)
        odds = self.odds[same_length]
        chosen = rng.choice(same_length, size, p=odds / odds.sum())
        prompts = [self.prompts[i] for i in chosen]
        if empty and rng.random() < DROPPED_CAPTIONS:
            prompts = [empty] * size
        codes = torch.from_numpy(self.codes[chosen].astype(np.int64))
        return torch.tensor(prompts), codes, chosen.tolist()


def fast_attention(device: torch.device) -> AbstractContextManager:
    """Return a context that computes attention by plain matrix products on CPUs.

    There torch's own kernel takes twice as long in training.
    """
    if device.type != "cpu":
        return nullcontext()
    # read on CPUs too: products stay in bf16
    torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp(True)
    return sdpa_kernel(SDPBackend.MATH)


def image_losses(model: Transformer, prompts: Tensor, codes: Tensor, first_id: int) -> Tensor:
    """Return the cross-entropy (nats) of each of codes (images, tokens) after their prompts."""
    ids = torch.cat([prompts, codes[:, :-1] + first_id], 1)
    positions = torch.arange(ids.shape[1], device=ids.device).expand(len(ids), -1)
    # The prompt's last token predicts the first code, so the last code is no input.
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
        self.scenes = scene_of("train", self.train.records[0]) is not None
        torch.manual_seed(0)
        spec = decoder_spec(read_object(model_dir / "config.json"))
        transformer = initialise(Transformer(spec, self.image.size))
        plain = nn.ModuleDict({"transformer": transformer})
        # on rendered scenes the middle layers also learn which objects the tokens show
        module = (ObjectReading(transformer) if self.scenes else plain).to(device)
        optimizers = make_optimizers(module, fast_precision(device))
        super().__init__(module, batch_size, optimizers, clip=1.0)
        self.average = AveragedWeights(dict(module.named_parameters()), EMA_DECAY)

    def losses(
        self,
        captions: Captions,
        number: int,
        empty: list[int] | None,
        elsewhere: float,
        rows: slice = slice(None),
    ) -> dict[str, Tensor]:
        """Return the mean losses of the `rows` of batch `number`, by what they are of.

        elsewhere: weight of a token that is not next to an object of a rendered scene.
        """
        batch = captions.batch(number, self.batch_size, empty)
        images = batch[2][rows]
        prompts, codes = (column[rows].to(self.device) for column in batch[:2])
        with fast_autocast(self.device), fast_attention(self.device):
            tokens = image_losses(self.module.transformer, prompts, codes, self.image.first_id)
            if not self.scenes:
                return {"tokens": tokens.mean()}
            return self._scene_losses(tokens, captions, images, elsewhere)

    def _scene_losses(
        self, tokens: Tensor, captions: Captions, images: list[int], elsewhere: float
    ) -> dict[str, Tensor]:
        """Return the mean losses from those of the tokens, (images, tokens)."""
        side = math.isqrt(tokens.shape[1])
        found = [scene_of(captions.split, captions.records[image]) for image in images]
        scenes = [scene for scene in found if scene is not None]  # all: no crops of pictures
        labels, near, shares = (
            torch.from_numpy(np.stack([of_scene(scene, side) for scene in scenes])).to(self.device)
            for of_scene in (object_labels, near_objects, outlines)
        )
        weights = torch.where(near, 1.0, elsewhere)
        weights /= weights.sum()
        return {
            "tokens": (weights * tokens).sum(),
            "names": self.module.naming(labels),
            "outlines": (weights * self.module.outlining(shares)).sum(),
        }

    def loss(self) -> Tensor:
        losses = self.losses(self.train, self.step, self.empty, ELSEWHERE, self.share)
        return torch.stack([WEIGHTS[name] * loss for name, loss in losses.items()]).sum()

    def update(self, rate: float) -> float:
        loss = super().update(rate)
        self.average.update(self.step - 1)
        return loss

    @torch.no_grad()
    def validate(self, batches: int = 8) -> dict[str, float]:
        with self.average.applied():
            numbers = range(10**9, 10**9 + batches)  # that no training step reaches
            losses = [self.losses(self.validation, number, None, 1.0) for number in numbers]
        return {
            f"validation_{name}": fmean(batch[name].item() for batch in losses)
            for name in losses[0]
        }

    def state(self) -> dict[str, object]:
        return super().state() | {"average": self.average.values}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.average.load(state["average"])

    def start_from(self, model_dir: Path) -> None:
        if self.scenes:  # gradients through new object heads would destroy what is loaded
            raise ValueError("--start_from: expected images of pictures, got rendered scenes")
        loaded = Chameleon().load(model_dir, TargetOptions(torch.float32, self.device)).transformer
        weights = self.module.transformer.state_dict()
        for key, weight in loaded.state_dict().items():
            # other captions make more or fewer words; codes and bytes have the same ids in all
            rows = min(len(weight), len(weights[key]))
            weights[key][:rows].copy_(weight[:rows])
        self.average.restart()

    def export(self, model_dir: Path) -> None:
        transformer = self.module.transformer
        with self.average.applied():
            state = public_state(transformer, decoder_keys(transformer.spec))
            # text rows of the head are zero, because they are never scored
            head = torch.zeros(transformer.spec.vocab, transformer.spec.hidden)
            first = self.image.first_id
            head[first : first + self.image.size] = state["lm_head.weight"]
            state["lm_head.weight"] = head
            half = {key: value.half().cpu() for key, value in state.items()}
        save_file(half, model_dir / "model.safetensors", {"format": "pt"})
        give_usual_mode(model_dir / "model.safetensors")


def initialise(model: Transformer) -> Transformer:
    """Fill with normal weights of deviation 0.02; returns the model."""
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and "qk_norm" not in name:
            # GPT-2's recipe: what every layer adds to the residual stream, twice, starts smaller.
            residual = name.endswith(("out.weight", "down.weight"))
            nn.init.normal_(parameter, std=0.02 / (2 * model.spec.layers) ** (0.5 * residual))
    return model
