"""Anole's sizes with random weights, made on the device: to time what need not be downloaded.

Distributions are random, so drafts are hardly ever right: it serves to time passes and rounds, not
speed-ups.
"""

from typing import Any

import torch
from torch import nn

from drafters.eagle_head import EagleHead
from drafters.loading import LoadedDrafter
from models.base import ImageGrid, ImageVocab, PromptRows, TransformerSpec
from models.targets.chameleon_network import chameleon_spec
from models.targets.transformer_target import TransformerTarget
from models.transformer import Transformer

# of leloy/Anole-7b-v0.1-hf
CODES, IDS, HIDDEN, INTERMEDIATE, HEADS, LAYERS = 8192, 65536, 4096, 11008, 32, 32
_FIRST_CODE, _PROMPT = 4, 16


def public_config(scale: int, layers: int) -> dict[str, Any]:
    """Return Anole's config.json with widths and heads divided by `scale`."""
    return {
        "architectures": ["ChameleonForConditionalGeneration"],
        "model_type": "chameleon",
        "vocab_size": IDS,
        "hidden_size": HIDDEN // scale,
        "intermediate_size": INTERMEDIATE // scale,
        "num_attention_heads": HEADS // scale,
        "num_key_value_heads": HEADS // scale,
        "num_hidden_layers": layers,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "swin_norm": False,
        "vq_config": {"num_embeddings": CODES},
    }


def head_config(config: dict[str, Any]) -> dict[str, Any]:
    """Return the config.json of a drafter of one layer, as jadohu/anole_drafter, for a target's."""
    return config | {"num_hidden_layers": 1, "bias": True}


def randomised(module: nn.Module, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """Give a module on the meta device random weights that keep the scale of activations."""
    module = module.to(dtype).to_empty(device=device).requires_grad_(False)
    for name, weight in module.named_parameters():
        if "norm" in name:
            weight.fill_(float(name.endswith("weight")))
        else:
            weight.normal_(0.0, weight[0].numel() ** -0.5 if weight.ndim > 1 else 0.02)
    return module


class ShapeTarget(TransformerTarget):
    """A target that has sizes and no words: every prompt is the same 16 ids, and no codec."""

    name = "random weights"

    def __init__(self, transformer: Transformer, vocab: ImageVocab, grid: ImageGrid):
        self.transformer, self.vocab, self.grid = transformer, vocab, grid
        self.spec: TransformerSpec = transformer.spec
        self.dtype, self.device = transformer.norm.weight.dtype, transformer.norm.weight.device

    def prompt(self, text: str, guidance: int) -> PromptRows:
        ids = torch.arange(_PROMPT, device=self.device).expand(guidance, -1)
        return PromptRows(ids, torch.tensor([0, _PROMPT - 2][:guidance], device=self.device))

    def drafter_spec(self, config: dict[str, Any]) -> TransformerSpec:
        return chameleon_spec(config)


def random_models(
    scale: int, layers: int, side: int, dtype: torch.dtype, device: torch.device
) -> tuple[ShapeTarget, LoadedDrafter]:
    """Return a target of Anole's sizes, widths divided by `scale`, and a drafter of one layer.

    side: rows and columns of an image's tokens.
    """
    config = public_config(scale, layers)
    with torch.device("meta"):
        network = Transformer(chameleon_spec(config), CODES)
        head = EagleHead(chameleon_spec(head_config(config)))
    torch.manual_seed(0)
    target = randomised(network, dtype, device)
    vocab, grid = ImageVocab(_FIRST_CODE, CODES), ImageGrid(side, side)
    drafter = LoadedDrafter(randomised(head, dtype, device))
    return ShapeTarget(target, vocab, grid), drafter
