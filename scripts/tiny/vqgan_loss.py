"""What counts as a good reconstruction by the tokenizer: loss terms, pixel weights, PSNR."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from scenes.scene import IMAGE_SIZE, Scene

NOISY_KINDS = ("noisy", "grassy")
_OBJECT_WEIGHTS, _NOISE_WEIGHT = {"small": 5.0, "large": 2.0}, 0.25
_GRADIENT_WEIGHT, _TEXTURE_WEIGHT = 0.5, 0.5


def reconstruction_terms(output: Tensor, target: Tensor, weights: Tensor) -> dict[str, Tensor]:
    """Return the loss terms of images (n, 3, h, w) in [-1, 1] with pixel weights (n, 1, h, w).

    "texture" compares the local energy of fine detail without weights, so that noise stays noise.
    """
    error = output - target
    pixel = (weights * (error.abs() + 2.0 * error.square())).mean()
    # errors of one sign over 2 to 8 pixels: a wrong tone, which the eye sees first
    coarse = sum(F.avg_pool2d(weights * error, 2**level).abs().mean() for level in (1, 2, 3)) / 3
    # differences of neighbours keep edges sharp
    across, down = weights[..., 1:] * error.diff(dim=-1), weights[..., 1:, :] * error.diff(dim=-2)
    edges = (across.abs().mean() + down.abs().mean()) / 2
    texture = F.l1_loss(_energy(output), _energy(target))
    return {
        "pixel": pixel,
        "coarse": coarse,
        "edges": _GRADIENT_WEIGHT * edges,
        "texture": _TEXTURE_WEIGHT * texture,
    }


def _energy(images: Tensor) -> Tensor:
    """Return the mean size of the fine detail in 8 x 8 windows, (n, 3, h/8, w/8)."""
    detail = images - F.avg_pool2d(images, 3, stride=1, padding=1, count_include_pad=False)
    return F.avg_pool2d(detail.abs(), 8)


def pixel_weights(scene: Scene | None) -> np.ndarray:
    """Return how much each pixel counts, float32 (128, 128): objects more, noise textures less.

    Pixels of a photograph, which has no scene, count alike.
    """
    noisy = scene is not None and scene.background.kind in NOISY_KINDS
    # nobody sees which grain is where, yet it has most of the error
    weights = np.full((IMAGE_SIZE, IMAGE_SIZE), _NOISE_WEIGHT if noisy else 1.0, dtype=np.float32)
    for item in scene.objects if scene else ():
        reach = item.diameter // 2 + 3
        top, left = max(0, item.y - reach), max(0, item.x - reach)
        weights[top : item.y + reach, left : item.x + reach] = _OBJECT_WEIGHTS[item.size]
    return weights


def psnr_figures(drawn: Tensor, images: Tensor, scenes: Sequence[Scene | None]) -> dict[str, float]:
    """Return the mean PSNR in dB: of all images, and of scenes without and with noise textures.

    drawn: reconstructions, (n, 3, h, w), about -1 to 1. images: what they should show. scenes: what
    the images were rendered from; None for photographs.
    """
    errors = ((drawn.clamp(-1, 1) - images) * 127.5).square().flatten(1).mean(1)
    psnr = 10 * torch.log10(255.0**2 / errors)
    parts = {"psnr": psnr}
    if all(scenes):
        clean = torch.tensor([scene.background.kind not in NOISY_KINDS for scene in scenes])
        parts |= {"psnr_clean": psnr[clean], "psnr_noisy": psnr[~clean]}
    return {name: round(float(values.mean()), 2) for name, values in parts.items()}
