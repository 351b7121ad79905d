"""Train the tiny image tokenizer:
`python -m scripts.tiny.train_vqgan --work_dir work/tiny --minutes 27`.

The autoencoder first learns without quantisation. Then k-means on its latents fills the codebook,
which follows the latents by exponential averages. Most of the run uses 64 x 64 crops, the end whole
images.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from drafters.training.schedule import cosine_lr, set_lr
from models.codecs.vqgan import ImageTokenizer
from models.codecs.vqgan_config import VqganConfig
from models.codecs.vqgan_layout import build_vqmodel
from scenes.painting import render_scene
from scenes.scene import sample_scene
from scripts.tiny.common import fast_autocast, with_float_norms
from scripts.tiny.ema_codebook import EmaCodebook, kmeans
from scripts.tiny.vqgan_loss import pixel_weights, psnr_figures, reconstruction_terms
from support.log import JsonLog
from support.script import run_script
from support.training_state import load_state, save_state

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
_PLAIN_UNTIL, _CROPS_UNTIL, _REVIVE_UNTIL = 0.05, 0.75, 0.85
_COMMITMENT = 0.25


@dataclass
class Run:
    """What a checkpoint holds: the networks, the optimiser and how far the run has come."""

    model: nn.Module
    codebook: EmaCodebook
    optimizer: torch.optim.Optimizer
    step: int = 0
    seconds: float = 0.0

    def save(self, path: Path) -> None:
        """Write all of it to `path`."""
        parts = {
            name: getattr(self, name).state_dict() for name in ("model", "codebook", "optimizer")
        }
        save_state(path, {**parts, "step": self.step, "seconds": self.seconds})

    def restore(self, path: Path) -> None:
        """Continue from `path` if it exists."""
        state = load_state(path)
        if state is None:
            return
        for name in ("model", "codebook", "optimizer"):
            getattr(self, name).load_state_dict(state[name])
        self.step, self.seconds = state["step"], state["seconds"]


def train(
    *,
    work_dir: str = "work/tiny",
    output: str = "ckpts/tiny/tokenizer",
    minutes: float = 27.0,
    steps: int = 20000,
    seed: int = 0,
) -> None:
    """Train for `steps` or `minutes` (wall clock, restarts included), then write the tokenizer.

    Args:
        work_dir: folder with images_train.npy and captions_train.jsonl; receives checkpoint and
            log.
        output: folder that receives vqgan.yaml and vqgan.safetensors.
        minutes: budget of training time.
        steps: budget of optimiser steps.
        seed: of the initial weights and of the order of the images.
    """
    folder = Path(work_dir)
    torch.manual_seed(seed)
    model = with_float_norms(build_vqmodel(TINY)).to(memory_format=torch.channels_last)
    model.quantize.requires_grad_(False)
    codebook = EmaCodebook(TINY.n_embed, TINY.embed_dim)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(
        trained, lr=1e-3, betas=(0.9, 0.99), weight_decay=1e-4, fused=True
    )
    run = Run(model, codebook, optimizer)
    run.restore(folder / "vqgan.pt")
    log = JsonLog(folder / "train_vqgan.jsonl")
    _fit(run, folder, log, minutes=minutes, steps=steps)
    run.save(folder / "vqgan.pt")
    model.quantize.embedding.weight.data.copy_(codebook.codes)
    ImageTokenizer(model, TINY).save(Path(output), dtype=torch.float16)
    log.write(event="done", step=run.step, seconds=round(run.seconds), **evaluate(run))


def _fit(run: Run, folder: Path, log: JsonLog, *, minutes: float, steps: int) -> None:
    generator = torch.Generator().manual_seed(1000 + run.step)
    source = CropSource(folder, generator)
    recent: list[Tensor] = []
    last_save = time.perf_counter()
    while (progress := max(run.step / steps, run.seconds / (60 * minutes))) < 1.0:
        started = time.perf_counter()
        count, size = _CROPS if progress < _CROPS_UNTIL else _WHOLE
        images, weights = source.draw(count, size)
        quantise = bool(run.codebook.ready)
        set_lr(run.optimizer, cosine_lr(progress, 8e-4))
        values, latents = _step(run, images, weights, quantise)
        recent = [*recent[-31:], latents]
        if not quantise and progress >= _PLAIN_UNTIL:
            run.codebook.start(kmeans(torch.cat(recent), TINY.n_embed, generator))
        elif quantise and run.step % 100 == 99 and progress < _REVIVE_UNTIL:
            values["revived"] = run.codebook.revive(torch.cat(recent), generator)
        run.step += 1
        run.seconds += time.perf_counter() - started
        if run.step % 100 == 0:
            log.write(
                step=run.step,
                seconds=round(run.seconds),
                progress=round(progress, 4),
                size=size,
                **values,
            )
        if run.step % 500 == 0:
            log.write(event="validation", step=run.step, **evaluate(run))
        if time.perf_counter() - last_save > 120:
            run.save(folder / "vqgan.pt")
            last_save = time.perf_counter()


def _step(
    run: Run, images: Tensor, weights: Tensor, quantise: bool
) -> tuple[dict[str, float], Tensor]:
    """Do one update on images (n, 3, h, w) in [-1, 1].

    Returns the loss terms and the latents (n*h*w/64, d).
    """
    model = run.model
    with fast_autocast(torch.device("cpu")):
        hidden = model.quant_conv(model.encoder(images))
    latent = hidden.float()
    flat = latent.permute(0, 2, 3, 1).reshape(-1, latent.shape[1])
    commitment = flat.new_zeros(())
    if quantise:
        codes = run.codebook.nearest(flat.detach())
        chosen = (
            run.codebook.codes[codes].view(latent.permute(0, 2, 3, 1).shape).permute(0, 3, 1, 2)
        )
        commitment = F.mse_loss(latent, chosen)
        run.codebook.update(flat.detach(), codes)
        latent = latent + (chosen - latent).detach()
    with fast_autocast(torch.device("cpu")):
        output = model.decoder(model.post_quant_conv(latent))
    terms = reconstruction_terms(output.float(), images, weights)
    loss = sum(terms.values()) + _COMMITMENT * commitment
    run.optimizer.zero_grad(set_to_none=True)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(run.optimizer.param_groups[0]["params"], 1.0)
    run.optimizer.step()
    values = {name: round(float(term.detach()), 4) for name, term in terms.items()}
    return {
        **values,
        "commit": round(float(commitment.detach()), 4),
        "norm": round(float(norm), 3),
    }, flat.detach()


class CropSource:
    """Random crops of the finished training images: those that have a caption."""

    def __init__(self, folder: Path, generator: torch.Generator) -> None:
        self.images = np.load(folder / "images_train.npy", mmap_mode="r")
        with (folder / "captions_train.jsonl").open("rb") as file:
            self.rows = min(sum(1 for _ in file), len(self.images))
        self.generator = generator

    def draw(self, count: int, size: int) -> tuple[Tensor, Tensor]:
        """Return images (count, 3, size, size) in [-1, 1] and pixel weights (count, 1, size,
        size).
        """
        picks = torch.randint(self.rows, (count,), generator=self.generator).tolist()
        corners = torch.randint(
            TINY.resolution - size + 1, (count, 2), generator=self.generator
        ).tolist()
        places = [
            (i, slice(y, y + size), slice(x, x + size))
            for i, (y, x) in zip(picks, corners, strict=True)
        ]
        crops = np.stack([self.images[place] for place in places])
        weights = np.stack([pixel_weights(sample_scene("train", i))[y, x] for i, y, x in places])
        batch = torch.from_numpy(crops).permute(0, 3, 1, 2).float() / 127.5 - 1.0
        return batch.contiguous(memory_format=torch.channels_last), torch.from_numpy(
            weights
        ).unsqueeze(1)


@torch.no_grad()
def evaluate(run: Run, count: int = 64) -> dict[str, float]:
    """Return the PSNR in dB on validation scenes (all, without and with noise) and the codes
    used.
    """
    scenes = [sample_scene("validation", index) for index in range(count)]
    images = torch.from_numpy(np.stack([render_scene(scene) for scene in scenes])).permute(
        0, 3, 1, 2
    )
    scores, used = [], set()
    for image in images.split(8):
        pixels = (image.float() / 127.5 - 1.0).contiguous(memory_format=torch.channels_last)
        with fast_autocast(torch.device("cpu")):
            latent = run.model.quant_conv(run.model.encoder(pixels)).float()
        if run.codebook.ready:
            codes = run.codebook.nearest(latent.permute(0, 2, 3, 1).flatten(0, 2))
            used.update(codes.tolist())
            latent = (
                run.codebook.codes[codes]
                .view(len(pixels), *latent.shape[2:], -1)
                .permute(0, 3, 1, 2)
            )
        with fast_autocast(torch.device("cpu")):
            output = run.model.decoder(run.model.post_quant_conv(latent)).float().clamp(-1, 1)
        scores.append(((output - pixels) * 127.5).square().flatten(1).mean(1))
    return {**psnr_figures(torch.cat(scores), scenes), "codes_used": len(used)}


if __name__ == "__main__":
    run_script(train)
