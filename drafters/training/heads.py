"""The drafter that is trained: where it begins, and how it is written in the public layout.

A head reads a token's embedding beside a feature, and embeddings are many times smaller (34 times in the shipped
model): from equal weights it learns late what follows from the token that was drawn. So in training the embeddings are
enlarged to the features' size; in the public layout the head's weights for them are.
"""

import json
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from configs.fields import refuse
from configs.training import TrainSettings
from drafters.eagle import EagleHead
from drafters.loading import eagle_keys, load_drafter
from models.base import TargetModel
from models.files.folders import checkpoint_folder
from models.files.network import public_state
from models.files.weights import read_json
from models.linear import forget_packed
from support.durable import replace_file

# What a drafter's config.json has of its target's.
_SHARED = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
    "max_position_embeddings", "rms_norm_eps", "rope_theta", "rope_parameters", "rope_base", "hidden_act",
    "attention_bias", "mlp_bias", "swin_norm",
)  # fmt: skip


def head_config(settings: TrainSettings) -> dict:
    """The drafter's config.json: that of --start_from, or the target's with its own number of layers.

    Raises:
        SettingsError: --layers is not that of --start_from.
    """
    if settings.start_from is None:
        config = read_json(checkpoint_folder(settings.model_path, "--model_path") / "config.json")
        shared = {name: config[name] for name in _SHARED if name in config}
        return shared | {"num_hidden_layers": settings.layers or 1, "bias": True}
    config = read_json(checkpoint_folder(settings.start_from, "--start_from") / "config.json")
    if settings.layers not in (None, config.get("num_hidden_layers")):
        refuse("layers", settings.layers, f"{config.get('num_hidden_layers')}, as --start_from has")
    return config


def open_head(settings: TrainSettings, target: TargetModel) -> EagleHead:
    """The drafter at step 0, in fp32 on the target's device; its embedding is the target's own, `token_scale` times as
    large, and stays as it is."""
    config, scale = head_config(settings), token_scale(settings, target)
    if settings.start_from is None:
        with target.device:
            head = EagleHead(target.drafter_spec(config), config["bias"])
        _initialise(head, settings.seed)
    else:
        head = load_drafter(settings.start_from, target, torch.float32).network
        forget_packed(head)
        _scale_tokens(head.fc.weight.data, 1 / scale)
    head.requires_grad_(True)
    head.embedding = nn.Embedding.from_pretrained(target.embedding() * scale)
    return head


def token_scale(settings: TrainSettings, target: TargetModel) -> float:
    """The size of the target's features over that of its image tokens' embeddings (root mean squares); the final norm's
    weights are the features'. 1 without --enlarge_embeddings."""
    if not settings.enlarge_embeddings:
        return 1.0
    codes = target.embedding()[target.vocab.first_id :][: target.vocab.size]
    features, tokens = (
        weights.float().square().mean().sqrt()
        for weights in (target.transformer.norm.weight, codes)
    )
    return (features / tokens).item()


def _scale_tokens(weight: Tensor, factor: float) -> None:
    """Multiply the head's weights (hidden, 2 hidden) for embeddings."""
    weight[:, : len(weight)] *= factor


@torch.no_grad()
def _initialise(head: EagleHead, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in head.named_parameters():
        if parameter.ndim > 1 and "norm" not in name and "embedding" not in name:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    if head.fc.bias is not None:
        head.fc.bias.zero_()


def export(head: EagleHead, config: dict, folder: Path, target: TargetModel, scale: float) -> None:
    """Write config.json and model.safetensors, in fp16 as they are shipped; --drafter_path reads the folder. scale: of
    the head's embedding, over the target's."""
    folder.mkdir(parents=True, exist_ok=True)
    state = public_state(head, eagle_keys(head.spec, head.fc.bias is not None))
    state["embed_tokens.weight"] = target.embedding()
    _scale_tokens(state["fc.weight"], scale)
    content = save(
        {key: value.half().cpu().contiguous() for key, value in state.items()}, {"format": "pt"}
    )
    replace_file(folder / "model.safetensors", content)
    replace_file(folder / "config.json", (json.dumps(config, indent=2) + "\n").encode())
