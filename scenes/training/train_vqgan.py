"""Training of the tiny image tokenizer, and then of its decoder alone.

The autoencoder first learns without quantisation. Then k-means on its latents fills the codebook,
which follows the latents by exponential averages. Most of the run uses 64 x 64 crops, the end whole
images. A run that starts from another tokenizer has a codebook from the first step.

When the decoder is trained further, encoder and codebook stay as they are, and so does every token:
the transformer and its drafter need no new training. In half of the images some codes are replaced
by near ones, because a transformer makes such errors too: the decoder learns to draw the shape that
the codes around suggest.
"""

from abc import abstractmethod
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.codecs.vqgan import ImageTokenizer, VqganConfig
from models.codecs.vqgan_files import load_vqgan, save_vqgan
from models.codecs.vqgan_network import Norm, Vqgan
from scenes.attribute_classifier import to_pixels
from scenes.scene import IMAGE_SIZE, Scene
from scenes.training.images import Split, scene_of
from scenes.training.training import TrainingRun, fast_autocast

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
_CROP = 64  # side in pixels
_PLAIN_UNTIL, _CROPS_UNTIL, _REVIVE_UNTIL = 0.05, 0.75, 0.85  # shares of the budget
_REVIVE_EVERY = 100  # steps
_COMMITMENT = 0.25
_CHUNK = 8  # images of a validation batch
REPLACED = 0.12  # largest share of an image's codes that are replaced
NEAREST = 24  # a code is replaced by one of so many nearest
NOISY_KINDS = ("noisy", "grassy")
_OBJECT_WEIGHTS, _NOISE_WEIGHT = {"small": 5.0, "large": 2.0}, 0.25
_GRADIENT_WEIGHT, _TEXTURE_WEIGHT = 0.5, 0.5


class FloatNorm(Norm):
    """Group norm in fp32 inside bf16 autocast, whose backward pass is slow in bf16 on CPUs."""

    def forward(self, input: Tensor, latents: Tensor | None = None) -> Tensor:
        wide = F.group_norm(input.float(), self.num_groups, self.weight, self.bias, self.eps)
        return wide.to(input.dtype)


def prepared(network: nn.Module) -> nn.Module:
    """Return a network in the layout and with the norms that train fastest, changed in place."""
    for module in network.modules():
        if isinstance(module, Norm):
            # Only the class: parameters and their keys stay as `save_vqgan` expects them.
            module.__class__ = FloatNorm
    return network.to(memory_format=torch.channels_last)


class CodecRun(TrainingRun):
    """Training of a part of the image tokenizer, on images of scenes."""

    def __init__(self, module: nn.Module, work_dir: Path, batch_size: int):
        weights = [weight for weight in module.parameters() if weight.requires_grad]
        adamw = torch.optim.AdamW(weights, lr=0.0, betas=(0.9, 0.99), weight_decay=1e-4, fused=True)
        super().__init__(module, batch_size, [adamw], clip=1.0)
        self.train, self.validation = (
            Split.read(work_dir, split) for split in ("train", "validation")
        )

    @abstractmethod
    def reconstruct(self, rows: slice) -> Tensor:
        """Return some images of the validation split as the networks show them: (n, 3, h, w)."""

    def targets(
        self, chosen: Sequence[int], crops: Sequence[tuple[slice, slice]]
    ) -> tuple[Tensor, Tensor]:
        """Return crops of images (n, 3, h, w), -1 to 1, and their pixels' weights (n, 1, h, w)."""
        images = [self.train.images[image][crop] for image, crop in zip(chosen, crops, strict=True)]
        scenes = [scene_of("train", self.train.records[image]) for image in chosen]
        weights = [pixel_weights(scene)[crop] for scene, crop in zip(scenes, crops, strict=True)]
        return (
            to_pixels(torch.from_numpy(np.stack(images))).to(self.device),
            torch.from_numpy(np.stack(weights)).unsqueeze(1).to(self.device),
        )

    @torch.no_grad()
    def validate(self, batches: int = 8) -> dict[str, float]:
        count = min(batches * _CHUNK, len(self.validation.records))
        images = to_pixels(torch.from_numpy(self.validation.images[:count].copy()))
        starts = range(0, count, _CHUNK)
        shown = [self.reconstruct(slice(first, min(first + _CHUNK, count))) for first in starts]
        errors = (torch.cat(shown).cpu().clamp(-1, 1) - images) * 127.5
        psnr = 10 * torch.log10(255.0**2 / errors.square().flatten(1).mean(1))
        return {"psnr": round(psnr.mean().item(), 2)}  # dB


class VqganRun(CodecRun):
    """Training of encoder, decoder and codebook together."""

    def __init__(self, work_dir: Path, model_dir: Path, batch_size: int, device: torch.device):
        torch.manual_seed(0)
        network = prepared(Vqgan(TINY))
        network.quantize.requires_grad_(False)  # the codebook beside it takes its place
        codebook = EmaCodebook(TINY.n_embed, TINY.embed_dim)
        module = nn.ModuleDict({"network": network, "codebook": codebook}).to(device)
        super().__init__(module, work_dir, batch_size)
        if self.crew.count > 1:
            raise ValueError(
                f"--network vqgan: expected one process, got {self.crew.count}, but the codebook "
                "follows the latents of one process"
            )
        self.network, self.codebook = network, codebook
        self.recent: deque[Tensor] = deque(maxlen=32)  # latents (n, d) of the last steps

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
        # crops are four times as many images in the same time, but only whole images have borders
        crops = self.progress < _CROPS_UNTIL
        count, side = (self.batch_size, _CROP) if crops else (self.batch_size // 2, TINY.resolution)
        rng = np.random.default_rng((19, self.step))
        chosen = rng.integers(len(self.train.records), size=count).tolist()
        corners = rng.integers(TINY.resolution - side + 1, size=(count, 2)).tolist()
        return self.targets(chosen, [(slice(y, y + side), slice(x, x + side)) for y, x in corners])

    def loss(self) -> Tensor:
        images, weights = self.batch()
        latents = self.encode(images)
        flat = latents.detach().permute(0, 2, 3, 1).flatten(0, 2)
        self.recent.append(flat)
        commitment = latents.new_zeros(())
        if self.codebook.ready:
            chosen, codes = self.codebook.rounded(latents.detach())
            self.codebook.update(flat, codes)
            commitment = F.mse_loss(latents, chosen)
            latents = latents + (chosen - latents).detach()  # the gradient passes as if unrounded
        return reconstruction_loss(self.decode(latents), images, weights) + _COMMITMENT * commitment

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

    def reconstruct(self, rows: slice) -> Tensor:
        latents = self.encode(to_pixels(torch.from_numpy(self.validation.images[rows].copy())))
        if self.codebook.ready:
            latents, codes = self.codebook.rounded(latents)
            self.used.update(codes.tolist())
        return self.decode(latents)

    def validate(self, batches: int = 8) -> dict[str, float]:
        self.used: set[int] = set()  # codes that the images are shown with
        return super().validate(batches) | {"codes_used": len(self.used)}

    def start_from(self, model_dir: Path) -> None:
        tokenizer = load_vqgan(model_dir / "tokenizer")
        if tokenizer.config != TINY:
            raise ValueError(
                f"--start_from {model_dir}: expected a tokenizer of {TINY}, got {tokenizer.config}"
            )
        self.network.load_state_dict(tokenizer.model.state_dict())
        self.codebook.start(tokenizer.codebook)

    def state(self) -> dict[str, object]:
        return super().state() | {"recent": list(self.recent)}

    def load(self, state: dict[str, Any]) -> None:
        super().load(state)
        self.recent.extend(latents.to(self.device) for latents in state["recent"])

    def export(self, model_dir: Path) -> None:
        self.network.quantize.embedding.weight.data.copy_(self.codebook.codes)
        save_vqgan(ImageTokenizer(self.network, TINY), model_dir / "tokenizer", dtype=torch.float16)


def kmeans(points: Tensor, clusters: int, generator: torch.Generator, rounds: int = 12) -> Tensor:
    """Return centres (clusters, d) of points (n, d) by Lloyd's algorithm; empty ones are random."""
    centres = points[torch.randperm(len(points), generator=generator)[:clusters]].clone()
    for _ in range(rounds):
        nearest = torch.cdist(points, centres).argmin(1)
        counts = torch.bincount(nearest, minlength=clusters)
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        centres = sums / counts.clamp_min(1).unsqueeze(1)
        empty = (counts == 0).nonzero().flatten()
        centres[empty] = points[torch.randint(len(points), empty.shape, generator=generator)]
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
        """Fill the codebook, which then is `ready`."""
        self.codes.copy_(centres)
        self.sums.copy_(centres)
        self.counts.fill_(1.0)
        self.ready.fill_(True)

    def rounded(self, latents: Tensor) -> tuple[Tensor, Tensor]:
        """Return the nearest codes of latents (n, d, h, w) in their shape, and their indices."""
        points = latents.permute(0, 2, 3, 1)
        squares = self.codes.square().sum(1)
        nearest = (squares - 2.0 * points.flatten(0, 2) @ self.codes.T).argmin(1)
        return self.codes[nearest].view(points.shape).permute(0, 3, 1, 2), nearest

    def update(self, latents: Tensor, nearest: Tensor) -> None:
        """Move the codes towards the latents (n, d) assigned to them."""
        counts = torch.bincount(nearest, minlength=len(self.counts)).float()
        sums = torch.zeros_like(self.sums).index_add_(0, nearest, latents)
        self.counts.lerp_(counts, 1 - self.decay)
        self.sums.lerp_(sums, 1 - self.decay)
        # Sums and counts decay alike, so a code without latents stays where it is.
        self.codes.copy_(self.sums / self.counts.clamp_min(1e-4).unsqueeze(1))

    def revive(self, latents: Tensor, generator: torch.Generator) -> None:
        """Put codes used less than a twentieth of the average onto random latents (n, d)."""
        mean = self.counts.mean()
        dead = (self.counts < 0.05 * mean).nonzero().flatten()
        picks = torch.randint(len(latents), (len(dead),), generator=generator)
        self.codes[dead] = latents[picks]
        # Above that share, so that the next call does not move the code again at once.
        self.counts[dead] = 0.3 * mean
        self.sums[dead] = latents[picks] * (0.3 * mean)


class DecoderRun(CodecRun):
    """Training of the decoder and the convolution before it, from the model's tokenizer on."""

    def __init__(self, work_dir: Path, model_dir: Path, batch_size: int, device: torch.device):
        self.tokenizer = load_vqgan(model_dir / "tokenizer").to(device)
        model = self.tokenizer.model
        decoder = nn.Sequential(model.post_quant_conv, model.decoder).requires_grad_(True)
        super().__init__(prepared(decoder), work_dir, batch_size)
        distances = torch.cdist(self.tokenizer.codebook, self.tokenizer.codebook)
        # without the nearest, which is the code itself
        self.near = distances.argsort(1)[:, 1 : NEAREST + 1].cpu().numpy()
        self.codes, self.validation_codes = (
            np.load(work_dir / f"codes_{split}.npy", mmap_mode="r")
            for split in ("train", "validation")
        )

    def draw(self, codes: np.ndarray) -> Tensor:
        """Return images (n, 3, h, w), about -1 to 1, for codes (n, tokens)."""
        side = self.tokenizer.config.side
        squares = torch.from_numpy(codes.astype(np.int64)).unflatten(1, (side, side))
        latents = self.tokenizer.codebook[squares.to(self.device)].permute(0, 3, 1, 2)
        with fast_autocast(self.device):
            return self.module(latents.contiguous(memory_format=torch.channels_last)).float()

    def loss(self) -> Tensor:
        rng = np.random.default_rng((17, self.step))
        chosen = np.sort(rng.choice(len(self.codes), self.batch_size, replace=False))[self.share]
        images, weights = self.targets(chosen.tolist(), [(slice(None), slice(None))] * len(chosen))
        shown = self.draw(replaced(self.codes[chosen], self.near, rng))
        return reconstruction_loss(shown, images, weights)

    def reconstruct(self, rows: slice) -> Tensor:
        return self.draw(self.validation_codes[rows])

    def export(self, model_dir: Path) -> None:
        save_vqgan(self.tokenizer, model_dir / "tokenizer", dtype=torch.float16)


def replaced(codes: np.ndarray, near: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return codes (n, tokens) with some replaced by one of their `near` codes (codes, k).

    Half of the rows on average are changed, in up to a share of REPLACED of their codes.
    """
    share = rng.uniform(0, REPLACED, (len(codes), 1)) * rng.integers(2, size=(len(codes), 1))
    other = near[codes, rng.integers(near.shape[1], size=codes.shape)]
    return np.where(rng.random(codes.shape) < share, other, codes)


def reconstruction_loss(output: Tensor, target: Tensor, weights: Tensor) -> Tensor:
    """Return the loss of images (n, 3, h, w) in [-1, 1] with pixel weights (n, 1, h, w)."""
    error = output - target
    pixel = (weights * (error.abs() + 2.0 * error.square())).mean()
    # errors of one sign over 2 to 8 pixels: a wrong tone, which the eye sees first
    coarse = sum(F.avg_pool2d(weights * error, 2**level).abs().mean() for level in (1, 2, 3)) / 3
    # differences of neighbours keep edges sharp
    across, down = weights[..., 1:] * error.diff(dim=-1), weights[..., 1:, :] * error.diff(dim=-2)
    edges = (across.abs().mean() + down.abs().mean()) / 2
    # the local energy of fine detail, without weights, so that noise stays noise
    texture = F.l1_loss(_energy(output), _energy(target))
    return pixel + coarse + _GRADIENT_WEIGHT * edges + _TEXTURE_WEIGHT * texture


def _energy(images: Tensor) -> Tensor:
    """Return the mean size of the fine detail in 8 x 8 windows, (n, 3, h/8, w/8)."""
    detail = images - F.avg_pool2d(images, 3, stride=1, padding=1, count_include_pad=False)
    return F.avg_pool2d(detail.abs(), 8)


def pixel_weights(scene: Scene | None) -> np.ndarray:
    """Return how much each pixel counts, float32 (128, 128); all alike without a scene."""
    noisy = scene is not None and scene.background.kind in NOISY_KINDS
    # nobody sees which grain is where, yet it has most of the error
    weights = np.full((IMAGE_SIZE, IMAGE_SIZE), _NOISE_WEIGHT if noisy else 1.0, dtype=np.float32)
    for item in scene.objects if scene else ():
        reach = item.diameter // 2 + 3
        top, left = max(0, item.y - reach), max(0, item.x - reach)
        weights[top : item.y + reach, left : item.x + reach] = _OBJECT_WEIGHTS[item.size]
    return weights
