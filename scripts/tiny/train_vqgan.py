"""Train the tiny image tokenizer:
`python -m scripts.tiny.train_vqgan --work_dir work/tiny --minutes 27`.

The autoencoder first learns without quantisation. Then k-means on its latents fills the codebook,
which follows the latents by exponential averages. Most of the run uses 64 x 64 crops, the end whole
images. A run that starts from another tokenizer has a codebook from the first step. Continues where
it stopped.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eval.metrics.attribute_classifier import to_pixels
from models.codecs.vqgan import ImageTokenizer, load_vqgan
from models.codecs.vqgan_config import VqganConfig
from models.codecs.vqgan_layout import build_vqmodel
from scripts.tiny.common import fast_autocast, with_float_norms
from scripts.tiny.images import Split
from scripts.tiny.training import TrainingRun, torch_device, train_for
from scripts.tiny.vqgan_loss import pixel_weights, psnr_figures, reconstruction_terms
from support.script import run_script

TINY = VqganConfig(
    ch=32,
    ch_mult=(1, 2, 3, 4),
    num_res_blocks=1,
    z_channels=32,
    embed_dim=32,
    n_embed=1024,
    resolution=128,
    num_groups=8,
)
_CROPS, _WHOLE = (8, 64), (4, 128)  # images per batch, side in pixels
_PLAIN_UNTIL, _CROPS_UNTIL, _REVIVE_UNTIL = 0.05, 0.75, 0.85  # shares of the budget
_REVIVE_EVERY = 100  # steps
_COMMITMENT = 0.25


class VqganRun(TrainingRun):
    """Training of the autoencoder and its codebook."""

    def __init__(self, work_dir: Path, device: torch.device):
        network = with_float_norms(build_vqmodel(TINY)).to(memory_format=torch.channels_last)
        network.quantize.requires_grad_(False)  # the codebook beside it takes its place
        module = nn.ModuleDict(
            {"network": network, "codebook": EmaCodebook(TINY.n_embed, TINY.embed_dim)}
        ).to(device)
        adamw = torch.optim.AdamW(
            (weight for weight in module.parameters() if weight.requires_grad),
            lr=0.0,
            betas=(0.9, 0.99),
            weight_decay=1e-4,
            fused=True,
        )
        super().__init__(module, _CROPS[0], [adamw], clip=1.0)
        if self.crew.count > 1:
            raise ValueError(
                f"train_vqgan: found {self.crew.count} processes; allowed: one, as the codebook "
                "follows the latents of one process"
            )
        self.train, self.validation = (
            Split.read(work_dir, split) for split in ("train", "validation")
        )
        self.recent: deque[Tensor] = deque(maxlen=32)  # latents (n, d) of the last steps

    @property
    def network(self) -> nn.Module:
        return self.module["network"]

    @property
    def codebook(self) -> EmaCodebook:
        return self.module["codebook"]

    def encode(self, images: Tensor) -> Tensor:
        """Return the latents of images (n, 3, h, w), -1 to 1, as (n, d, h/8, w/8)."""
        images = images.to(self.device).contiguous(memory_format=torch.channels_last)
        with fast_autocast(self.device):
            return self.network.quant_conv(self.network.encoder(images)).float()

    def decode(self, latents: Tensor) -> Tensor:
        """Return images (n, 3, h, w), about -1 to 1, of latents (n, d, h/8, w/8)."""
        with fast_autocast(self.device):
            return self.network.decoder(self.network.post_quant_conv(latents)).float()

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return images (n, 3, side, side), -1 to 1, and pixel weights (n, 1, side, side)."""
        # crops are four times as many images in the same time, but only whole images have borders
        count, side = _CROPS if self.progress < _CROPS_UNTIL else _WHOLE
        rng = np.random.default_rng((19, self.step))
        chosen = rng.integers(len(self.train.records), size=count).tolist()
        corners = rng.integers(TINY.resolution - side + 1, size=(count, 2)).tolist()
        crops = [(slice(y, y + side), slice(x, x + side)) for y, x in corners]
        images, weights = [], []
        for image, crop in zip(chosen, crops, strict=True):
            images.append(self.train.images[image][crop])
            weights.append(pixel_weights(self.train.scene(image))[crop])
        return (
            to_pixels(torch.from_numpy(np.stack(images))).to(self.device),
            torch.from_numpy(np.stack(weights)).unsqueeze(1).to(self.device),
        )

    def loss(self) -> Tensor:
        images, weights = self.batch()
        latents = self.encode(images)
        flat = latents.detach().permute(0, 2, 3, 1).flatten(0, 2)
        self.recent.append(flat)
        commitment = latents.new_zeros(())
        if self.codebook.ready:
            codes = self.codebook.nearest(flat)
            chosen = as_latents(self.codebook.codes[codes], latents)
            self.codebook.update(flat, codes)
            commitment = F.mse_loss(latents, chosen)
            latents = latents + (chosen - latents).detach()  # the gradient passes as if unrounded
        terms = reconstruction_terms(self.decode(latents), images, weights)
        return sum(terms.values()) + _COMMITMENT * commitment

    def update(self, rate: float) -> float:
        loss = super().update(rate)
        latents, generator = torch.cat(tuple(self.recent)), torch.Generator().manual_seed(self.step)
        if not self.codebook.ready:
            if self.progress >= _PLAIN_UNTIL:
                self.codebook.start(kmeans(latents, TINY.n_embed, generator))
        # later the decoder has no time to learn what a moved code shows
        elif self.step % _REVIVE_EVERY == 0 and self.progress < _REVIVE_UNTIL:
            self.codebook.revive(latents, generator)
        return loss

    @torch.no_grad()
    def validate(self, batches: int = 8) -> dict[str, float]:
        images = to_pixels(torch.from_numpy(self.validation.images[: 8 * batches].copy()))
        drawn, used = [], set()
        for batch in images.split(8):
            latents = self.encode(batch)
            if self.codebook.ready:
                codes = self.codebook.nearest(latents.permute(0, 2, 3, 1).flatten(0, 2))
                used.update(codes.tolist())
                latents = as_latents(self.codebook.codes[codes], latents)
            drawn.append(self.decode(latents).cpu())
        scenes = [self.validation.scene(image) for image in range(len(images))]
        return {**psnr_figures(torch.cat(drawn), images, scenes), "codes_used": len(used)}

    def start_from(self, folder: Path) -> None:
        tokenizer = load_vqgan(folder)
        if tokenizer.config != TINY:
            raise ValueError(f"--start_from {folder}: found {tokenizer.config}; allowed: {TINY}")
        self.network.load_state_dict(tokenizer.model.state_dict())
        self.codebook.start(tokenizer.codebook)

    def state(self) -> dict[str, object]:
        return super().state() | {"recent": list(self.recent)}

    def load(self, state: dict[str, object]) -> None:
        super().load(state)
        self.recent.extend(latents.to(self.device) for latents in state["recent"])

    def export(self, folder: Path) -> None:
        self.network.quantize.embedding.weight.data.copy_(self.codebook.codes)
        ImageTokenizer(self.network, TINY).save(folder, dtype=torch.float16)


def as_latents(codes: Tensor, like: Tensor) -> Tensor:
    """Return vectors (n*h*w, d) in the shape of latents `like` (n, d, h, w)."""
    return codes.view(like.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)


def kmeans(points: Tensor, clusters: int, generator: torch.Generator, rounds: int = 12) -> Tensor:
    """Return centres (clusters, d) of points (n, d) by Lloyd's algorithm.

    An empty cluster takes a random point.
    """
    centres = points[torch.randperm(len(points), generator=generator)[:clusters]].clone()
    for _ in range(rounds):
        nearest = torch.cdist(points, centres).argmin(1)
        counts = torch.bincount(nearest, minlength=clusters)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = sums / counts.clamp_min(1).unsqueeze(1)
        empty = counts == 0
        centres[empty] = points[
            torch.randint(len(points), (int(empty.sum()),), generator=generator)
        ]
    return centres


class EmaCodebook(nn.Module):
    """Codes (K, d) without gradients: each is the running mean of the latents nearest to it."""

    def __init__(self, count: int, width: int, decay: float = 0.993) -> None:
        super().__init__()
        self.decay = decay
        self.register_buffer("codes", torch.zeros(count, width))
        self.register_buffer("sums", torch.zeros(count, width))
        self.register_buffer("counts", torch.zeros(count))
        self.register_buffer("ready", torch.tensor(False))

    def start(self, centres: Tensor) -> None:
        """Fill the codebook; from now on `ready` is true."""
        self.codes.copy_(centres)
        self.sums.copy_(centres)
        self.counts.fill_(1.0)
        self.ready.fill_(True)

    def nearest(self, latents: Tensor) -> Tensor:
        """Return the index of the nearest code, (n,) int64, of each of the latents (n, d)."""
        return (self.codes.square().sum(1) - 2.0 * latents @ self.codes.T).argmin(1)

    def update(self, latents: Tensor, nearest: Tensor) -> None:
        """Move the codes towards the latents (n, d) assigned to them."""
        counts = torch.bincount(nearest, minlength=len(self.counts)).float()
        sums = torch.zeros_like(self.sums).index_add_(0, nearest, latents)
        self.counts.lerp_(counts, 1 - self.decay)
        self.sums.lerp_(sums, 1 - self.decay)
        self.codes.copy_(self.sums / self.counts.clamp_min(1e-4).unsqueeze(1))

    def revive(self, latents: Tensor, generator: torch.Generator, share: float = 0.05) -> int:
        """Put codes used less than `share` of the average onto random latents (n, d); returns how
        many.
        """
        mean = self.counts.mean()
        dead = (self.counts < share * mean).nonzero().flatten()
        picks = torch.randint(len(latents), (len(dead),), generator=generator)
        self.codes[dead] = latents[picks]
        self.counts[dead] = 0.3 * mean
        self.sums[dead] = latents[picks] * (0.3 * mean)
        return len(dead)


def train(
    *,
    work_dir: str = "work/tiny",
    output: str = "ckpts/tiny/tokenizer",
    start_from: str | None = None,
    minutes: float = 27.0,
    lr: float = 8e-4,
    seed: int = 0,
) -> None:
    """Train for `minutes` of wall clock in all, earlier calls included; then write the tokenizer.

    Args:
        work_dir: folder with images and captions; receives checkpoint and log.
        output: folder that receives vqgan.yaml and vqgan.safetensors.
        start_from: folder of a tokenizer to begin with if work_dir has no checkpoint; random
            weights if None.
        minutes: budget.
        lr: highest learning rate.
        seed: of the initial weights.
    """
    torch.manual_seed(seed)
    run = VqganRun(Path(work_dir), torch_device())
    train_for(minutes, run, Path(work_dir) / "vqgan.pt", start_from, lr)
    run.export(Path(output))


if __name__ == "__main__":
    run_script(train)
