"""Train the decoder of the tiny image tokenizer further.

`python -m scripts.tiny.train_decoder --work_dir work/tiny`

Encoder and codebook stay as they are, and so does every token: the transformer and its drafter need
no new training. In half of the images some codes are replaced by near ones, because a transformer
makes such errors too: the decoder learns to draw the shape that the codes around suggest. Continues
where it stopped.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from eval.metrics.attribute_classifier import to_pixels
from models.codecs.vqgan import load_vqgan
from scripts.tiny.common import fast_autocast, with_float_norms
from scripts.tiny.images import Split
from scripts.tiny.training import TrainingRun, torch_device, train_for
from scripts.tiny.vqgan_loss import pixel_weights, psnr_figures, reconstruction_terms
from support.script import run_script

REPLACED = 0.12  # largest share of an image's codes that are replaced
NEAREST = 24  # a code is replaced by one of so many nearest
_CHUNK = 8  # images of a validation batch


class DecoderRun(TrainingRun):
    """Training of the decoder and the convolution before it."""

    def __init__(self, work_dir: Path, tokenizer: Path, batch_size: int, device: torch.device):
        self.tokenizer = load_vqgan(tokenizer).to(device)
        model = self.tokenizer.model
        decoder = nn.Sequential(model.post_quant_conv, model.decoder).requires_grad_(True)
        decoder = with_float_norms(decoder).to(memory_format=torch.channels_last)
        adamw = torch.optim.AdamW(
            decoder.parameters(), lr=0.0, betas=(0.9, 0.99), weight_decay=1e-4, fused=True
        )
        super().__init__(decoder, batch_size, [adamw], clip=1.0)
        self.work_dir = work_dir
        distances = torch.cdist(self.tokenizer.codebook, self.tokenizer.codebook)
        self.near = distances.argsort(1)[:, 1 : NEAREST + 1].cpu().numpy()
        self.train, self.validation = (
            Split.read(work_dir, split) for split in ("train", "validation")
        )
        self.codes = np.load(work_dir / "codes_train.npy", mmap_mode="r")

    def draw(self, codes: np.ndarray) -> Tensor:
        """Return images (n, 3, h, w), about -1 to 1, for codes (n, tokens)."""
        squares = torch.from_numpy(codes).to(self.device).unflatten(1, self.tokenizer.grid)
        latents = self.tokenizer.codebook[squares].permute(0, 3, 1, 2)
        with fast_autocast(self.device):
            return self.module(latents.contiguous(memory_format=torch.channels_last)).float()

    def loss(self) -> Tensor:
        rng = np.random.default_rng((17, self.step))
        chosen = np.sort(rng.choice(len(self.codes), self.batch_size, replace=False))[self.share]
        codes = replaced(self.codes[chosen].astype(np.int64), self.near, rng)
        weights = np.stack([pixel_weights(self.train.scene(image)) for image in chosen])[:, None]
        target = to_pixels(torch.from_numpy(self.train.images[chosen])).to(self.device)
        output = self.draw(codes)
        terms = reconstruction_terms(output, target, torch.from_numpy(weights).to(self.device))
        return sum(terms.values())

    @torch.no_grad()
    def validate(self, batches: int = 8) -> dict[str, float]:
        codes = np.load(self.work_dir / "codes_validation.npy")[: batches * _CHUNK]
        images = to_pixels(torch.from_numpy(self.validation.images[: len(codes)].copy()))
        parts = np.array_split(codes.astype(np.int64), range(_CHUNK, len(codes), _CHUNK))
        drawn = torch.cat([self.draw(batch).cpu() for batch in parts])
        return psnr_figures(drawn, images, [self.validation.scene(i) for i in range(len(codes))])

    def start_from(self, folder: Path) -> None:
        """Do nothing: the run begins with the tokenizer that it was made with."""

    def export(self, folder: Path) -> None:
        self.tokenizer.save(folder, dtype=torch.float16)


def replaced(codes: np.ndarray, near: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return codes (n, tokens) with some replaced by one of their `near` codes (codes, k).

    Half of the rows on average are changed, in up to a share of REPLACED of their codes.
    """
    share = rng.uniform(0, REPLACED, (len(codes), 1)) * rng.integers(2, size=(len(codes), 1))
    other = near[codes, rng.integers(near.shape[1], size=codes.shape)]
    return np.where(rng.random(codes.shape) < share, other, codes)


def train(
    *,
    work_dir: str = "work/tiny",
    tokenizer: str = "ckpts/tiny/tokenizer",
    output: str = "ckpts/tiny/tokenizer",
    minutes: float = 20.0,
    batch_size: int = 8,
    lr: float = 5e-4,
) -> None:
    """Train for `minutes` of wall clock in all, earlier calls included; then write the tokenizer.

    Args:
        work_dir: folder with images and codes of both splits, and with the checkpoint.
        tokenizer: folder of the tokenizer to begin with.
        output: folder that receives vqgan.yaml and vqgan.safetensors.
        minutes: budget.
        batch_size: images per step, shared between a launcher's processes.
        lr: highest learning rate.
    """
    run = DecoderRun(Path(work_dir), Path(tokenizer), batch_size, torch_device())
    train_for(minutes, run, Path(work_dir) / "decoder.pt", None, lr)
    if run.crew.rank == 0:
        run.export(Path(output))


if __name__ == "__main__":
    run_script(train)
