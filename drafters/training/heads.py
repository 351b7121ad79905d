"""The drafter that is trained: where it begins, and how it is written in the public layout.

An EAGLE head reads a feature and a token's embedding side by side. Embeddings are many times
smaller (34 times in the shipped model), so that from equal weights a head learns late to use the
token. In training the embeddings are therefore scaled up to the size of the features. In the
written file the embeddings are the target's own, or those of the head that training began with, and
the head's weights for them are scaled up instead.
"""

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from configs.fields import refuse
from configs.training import TrainSettings
from drafters.block import BlockHead
from drafters.eagle import EagleHead
from drafters.kinds import DEFAULT, ENTRY, KINDS, LAYERS, target_layers
from drafters.loading import load_drafter
from models.cpu.linear import forget_packed
from models.files.folders import checkpoint_folder
from models.files.network import public_state
from models.files.weights import read_config
from models.registry import family_of
from models.target import TargetModel
from support.durable import encode_json, replace_file
from support.json_files import read_object

# Public loaders of such heads read this entry; ours has no dropout.
_FOR_OTHERS = {"attention_dropout": 0.0}
# Entries that a drafter's config.json takes from its target's.
_SHARED = (
    "model_type", "vocab_size", "hidden_size", "intermediate_size", "num_attention_heads",
    "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "rope_theta",
    "rope_parameters", "rope_base", "hidden_act", "attention_bias", "mlp_bias", "swin_norm",
)  # fmt: skip


def head_config(settings: TrainSettings) -> dict:
    """Return the drafter's config.json: --start_from's, or the target's with its own layers.

    Raises:
        SettingsError: --layers, --target_layers or --drafter differs from --start_from.
    """
    read = {LAYERS: list(settings.layers_read)} if settings.layers_read else {}
    if settings.start_from is None:
        folder = checkpoint_folder(settings.engine.model_path, "--model_path")
        config = family_of(settings.engine.model).entries(read_config(folder))
        shared = {name: config[name] for name in _SHARED if name in config}
        kind = {} if settings.drafter == DEFAULT else {ENTRY: settings.drafter}
        sizes = {"num_hidden_layers": settings.layers or 1, "bias": True}
        return shared | _FOR_OTHERS | sizes | kind | read
    start = read_object(checkpoint_folder(settings.start_from, "--start_from") / "config.json")
    layers, drafter = start.get("num_hidden_layers"), start.get(ENTRY, DEFAULT)
    if settings.layers not in (None, layers):
        refuse("layers", settings.layers, f"{layers}, as --start_from has")
    # a head without hidden states may learn to read them
    if read and start.get(LAYERS, read[LAYERS]) != read[LAYERS]:
        refuse("target_layers", settings.target_layers, f"{start[LAYERS]}, as --start_from has")
    config = _FOR_OTHERS | start | read
    if (settings.drafter, drafter) == ("block", "eagle"):  # which is a block head without training
        return config | {ENTRY: "block"}
    if settings.drafter != drafter:
        allowed = f"{drafter}, as the drafter in {settings.start_from} is"
        refuse("drafter", settings.drafter, allowed)
    return config


def open_head(settings: TrainSettings, target: TargetModel) -> tuple[EagleHead, Tensor]:
    """Return the drafter at step 0, in fp32 on the target's device, and its embedding as written.

    It holds that `embedding_scale` times as large, and it is not trained. It is the target's unless
    --start_from has another one.
    """
    config, embedding = head_config(settings), target.embedding()
    layers = target_layers(config, target.spec, "--target_layers")
    if settings.start_from is None:
        spec = replace(target.drafter_spec(config), target_layers=layers)
        with target.device:
            head = KINDS[settings.drafter].network(spec, config["bias"])
        _initialise(head, settings.seed)
    else:
        head = load_drafter(settings.start_from, target, torch.float32)
        forget_packed(head)  # copies that training would not change
        if head.spec.target_layers != layers:
            head.read_layers(layers)
        head = BlockHead.of(head) if settings.drafter == "block" else head
        if not _equal(head.embedding.weight, embedding):  # as of LANTERN's code for LlamaGen
            embedding = head.embedding.weight.detach()
        # undoes what `export` did: the embedding below is the larger one again
        _scale_tokens(head.fc.weight.data, 1 / embedding_scale(settings, target, embedding))
    head.requires_grad_(True)
    scale = embedding_scale(settings, target, embedding)
    head.embedding = nn.Embedding.from_pretrained(embedding * scale)
    return head, embedding


def _equal(one: Tensor, other: Tensor) -> bool:
    """Return whether weights are equal up to rounding to 16 bits, as files have them."""
    return torch.allclose(one.float(), other.float(), rtol=2**-8, atol=1e-6)


def embedding_scale(settings: TrainSettings, target: TargetModel, embedding: Tensor) -> float:
    """Return how many times larger the target's features are than image tokens' embeddings.

    Both sizes are root mean squares. A feature leaves the final norm, so its size is that of the
    norm's weights. 1 without --enlarge_embeddings.
    """
    if not settings.enlarge_embeddings:
        return 1.0
    tokens = embedding[target.vocab.first_id :][: target.vocab.size]
    norm = target.transformer.norm.weight
    feature, token = (values.float().square().mean().sqrt() for values in (norm, tokens))
    return (feature / token).item()


def _scale_tokens(weight: Tensor, factor: float) -> None:
    """Multiply, in place, the half of the input weights (hidden, 2 hidden) for embeddings."""
    weight[:, : len(weight)] *= factor


@torch.no_grad()
def _initialise(head: EagleHead, seed: int) -> None:
    # on the CPU: a GPU's generator makes other numbers of the same seed
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in head.named_parameters():
        # norms begin at 1 and `states` at 0, and the embedding becomes the target's
        if parameter.ndim > 1 and not any(kept in name for kept in ("norm", "embedding", "states")):
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.02)
    head.fc.bias.zero_()  # which `head_config` gives every new head


def export(head: EagleHead, config: dict, folder: Path, embedding: Tensor, scale: float) -> None:
    """Write config.json and model.safetensors (fp16) into a folder that --drafter_path reads.

    embedding: of the file; scale: how many times larger the head's is.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kind = KINDS[config.get(ENTRY, DEFAULT)]
    state = public_state(head, kind.keys(head.spec, head.fc.bias is not None))
    state["embed_tokens.weight"] = embedding
    # the written embedding is smaller, so the weights that read it make up for it
    _scale_tokens(state["fc.weight"], scale)
    half = {key: value.half().cpu().contiguous() for key, value in state.items()}
    content = save(half, {"format": "pt"})
    replace_file(folder / "model.safetensors", content)
    replace_file(folder / "config.json", encode_json(config, indent=2))
