"""Image GPT with random weights, as PyTorch Lightning writes it."""

import sys
from functools import partial
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import torch
from torch import Tensor

from models.targets.image_gpt import ImageGpt
from scripts.checkpoints.parts import add_drafter

SIZES = {"embed_dim": 16, "num_heads": 2, "num_layers": 2, "num_pixels": 5, "num_vocab": 7}
_ARGUMENTS = "pytorch_lightning.utilities.parsing"


def write_image_gpt(folder: Path, sizes: dict[str, int] = SIZES) -> Path:
    """Write a checkpoint and a drafter; returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    write_lightning(folder / "model.ckpt", public_weights(sizes), **sizes)
    add_drafter(ImageGpt(), folder)
    return folder


def public_weights(sizes: dict[str, int] = SIZES) -> dict[str, Tensor]:
    """Return random weights by the public names, neither flat nor certain."""
    generator = torch.Generator().manual_seed(0)
    width, side, colours = (sizes[name] for name in ("embed_dim", "num_pixels", "num_vocab"))

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(shape, generator=generator)

    def linear(prefix: str, outputs: int, inputs: int) -> dict[str, Tensor]:
        weight, bias = normal(outputs, inputs, scale=inputs**-0.5), normal(outputs, scale=0.1)
        return {f"{prefix}weight": weight, f"{prefix}bias": bias}

    def norm(name: str) -> dict[str, Tensor]:
        weight, bias = normal(width, scale=0.2), normal(width, scale=0.2)
        return {f"{name}.weight": 1 + weight, f"{name}.bias": bias}

    state = {
        "centroids": torch.rand(colours, 1, generator=generator),
        "gpt.sos": normal(width),
        "gpt.token_embeddings.weight": normal(colours, width),
        "gpt.position_embeddings.weight": normal(side**2, width, scale=0.5),
    }
    for layer in range(sizes["num_layers"]):
        at = f"gpt.layers.{layer}."
        state |= norm(f"{at}ln_1") | norm(f"{at}ln_2")
        state |= linear(f"{at}attn.in_proj_", 3 * width, width)
        state |= linear(f"{at}attn.out_proj.", width, width)
        state |= linear(f"{at}mlp.0.", 4 * width, width) | linear(f"{at}mlp.2.", width, 4 * width)
    state |= norm("gpt.ln_f") | {"gpt.head.weight": normal(colours, width, scale=0.4)}
    return state | linear("gpt.clf_head.", 10, width)


def write_lightning(path: Path, state: dict[str, Tensor], **sizes: object) -> None:
    """Write what `Trainer.save_checkpoint` does: weights, optimisers and Lightning's own class."""
    places = ("pytorch_lightning", "pytorch_lightning.utilities", _ARGUMENTS)
    modules = {place: ModuleType(place) for place in places}
    kind = type("AttributeDict", (dict,), {"__module__": _ARGUMENTS})
    modules[_ARGUMENTS].AttributeDict = kind  # type: ignore[attr-defined]
    with patch.dict(sys.modules, modules):
        whole = {
            "epoch": 1,
            "pytorch-lightning_version": "0.9.1rc1",
            "optimizer_states": [{"state": {0: {"step": 1, "exp_avg": torch.zeros(3)}}}],
            "state_dict": state,
            "hparams_name": "kwargs",
            "hyper_parameters": kind({"learning_rate": 0.003} | SIZES | sizes),
        }
        torch.save(whole, path)


# The published sizes are small.
PUBLISHED = SIZES | {"num_layers": 8, "num_pixels": 28, "num_vocab": 16}
SMALL = FULL = {"image_gpt": partial(write_image_gpt, sizes=PUBLISHED)}
