"""transformers' classes for the families that it has, with a checkpoint's weights."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import (
    ChameleonConfig,
    ChameleonModel,
    Emu3TextConfig,
    Emu3TextModel,
    GemmaConfig,
    GemmaModel,
    JanusVQVAEConfig,
    LlamaConfig,
    LlamaModel,
)
from transformers.models.janus.modeling_janus import JanusVQVAEAlignerMLP, JanusVQVAEHead

from models.base import TargetModel
from models.files.tensors import read_tensors
from models.files.weights import weight_files
from models.targets.emu3_files import network as emu3_network
from models.targets.emu3_network import emu3_entries
from models.targets.janus_config import JanusConfig, janus_config
from models.targets.liquid_network import liquid_spec
from support.json_files import read_object

HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Oracle:
    """A family's networks in transformers, on the target's device and in its dtype.

    name: of the class. features: ids (1, n) -> (n, hidden). score: features (m, hidden) -> logits
    of the image codes (m, codes).
    """

    name: str
    features: Callable[[Tensor], Tensor]
    score: Callable[[Tensor], Tensor]


def chameleon_oracle(folder: Path, target: TargetModel) -> Oracle:
    """Return transformers' Chameleon; raises what `load_chameleon` raises."""
    return _with_head(*load_chameleon(folder, target))


def load_chameleon(folder: Path, target: TargetModel) -> tuple[ChameleonModel, Tensor]:
    """Return transformers' model with a folder's weights, and the head's rows of image codes.

    Both are on the target's device, in its dtype. Its image encoder, which nothing here uses, is
    left empty.

    Raises:
        ValueError: transformers misses weights, or does not expect some.
    """
    with torch.device("meta"):
        model = ChameleonModel(ChameleonConfig.from_pretrained(folder))
    model.vqmodel = None
    tensors = read_tensors(weight_files(folder))
    state = dict(_placed(tensors, "model.", ("model.vqmodel.",), target))
    head = _codes_of(state.pop(HEAD), target)
    _fill(model, state, folder, target)
    return model.eval(), head


def emu3_oracle(folder: Path, target: TargetModel) -> Oracle:
    """Return transformers' Emu3 decoder.

    Raises:
        ValueError: transformers misses weights, or does not expect some.
    """
    config = read_object(folder / "config.json")
    with torch.device("meta"):
        model = Emu3TextModel(_config(Emu3TextConfig, emu3_entries(config)))
    layout = emu3_network(config)
    tensors = ((layout.name(key), x) for key, x in read_tensors(weight_files(folder)))
    state = dict(_placed(tensors, "model.text_model.", layout.ignored, target))
    head = _codes_of(state.pop(HEAD), target)
    _fill(model, state, folder, target)
    return _with_head(model.eval(), head)


def janus_oracle(folder: Path, target: TargetModel) -> Oracle:
    """Return transformers' Llama, with Janus's embedding and head of image codes.

    Raises:
        ValueError: transformers misses weights, or does not expect some.
    """
    config = janus_config(read_object(folder / "config.json"))
    keys, tensors = config.keys, dict(read_tensors(weight_files(folder)))
    with torch.device("meta"):
        llama = LlamaModel(_config(LlamaConfig, config.decoder))
        sizes = _codes_config(config)
        aligner, head = JanusVQVAEAlignerMLP(sizes), JanusVQVAEHead(sizes)
    parts = (
        (llama, {"": keys.decoder}),
        (aligner, {"fc1.": keys.inner, "hidden_layers.0.": keys.outer}),
        (head, {"proj_out.": keys.score, "vision_head.": keys.head}),
    )
    for module, names in parts:
        state = {
            name + key: tensor
            for name, prefix in names.items()
            for key, tensor in _placed(_starting(tensors, prefix), prefix, (), target)
        }
        _fill(module, state, folder, target)
    vectors = tensors[keys.codes].to(target.device, target.dtype)

    def features(ids: Tensor) -> Tensor:
        code = ids - target.vocab.first_id
        words = llama.embed_tokens(ids.clamp(max=target.vocab.first_id - 1))
        images = aligner(vectors[code.clamp(min=0)])
        mixed = torch.where((code >= 0)[..., None], images, words)
        return llama(inputs_embeds=mixed, use_cache=False).last_hidden_state[0]

    return Oracle("LlamaModel with Janus's image parts", features, head)


def liquid_oracle(folder: Path, target: TargetModel) -> Oracle:
    """Return transformers' Gemma, whose head is its embedding.

    Raises:
        ValueError: transformers misses weights, or does not expect some.
    """
    config = read_object(folder / "config.json")
    liquid_spec(config)  # of this family
    # the formula that Gemma means by "gelu", too; later versions take the entry at its word
    config = _config(GemmaConfig, config | {"hidden_act": "gelu_pytorch_tanh"})
    with torch.device("meta"):
        model = GemmaModel(config)
    tensors = read_tensors(weight_files(folder))
    state = dict(_placed(tensors, "model.", (HEAD,), target))
    if hasattr(model.embed_tokens, "embed_scale"):  # computed, not read
        model.embed_tokens.embed_scale = torch.tensor(config.hidden_size**0.5, device=target.device)
    _fill(model, state, folder, target)
    return _with_head(model.eval(), _codes_of(state["embed_tokens.weight"], target))


ORACLES: dict[str, Callable[[Path, TargetModel], Oracle]] = {
    "chameleon": chameleon_oracle,
    "lumina_mgpt": chameleon_oracle,
    "emu3": emu3_oracle,
    "janus_pro": janus_oracle,
    "liquid": liquid_oracle,
}


def _with_head(model: nn.Module, head: Tensor) -> Oracle:
    """Return a model whose head is a matrix (codes, hidden)."""
    return Oracle(
        type(model).__name__,
        lambda ids: model(input_ids=ids, use_cache=False).last_hidden_state[0],
        lambda features: features @ head.T,
    )


def _codes_of(head: Tensor, target: TargetModel) -> Tensor:
    first = target.vocab.first_id
    return head[first : first + target.vocab.size]


def _config(owner: type, entries: dict) -> object:
    """Return transformers' configuration with the entries that it knows."""
    names = owner().to_dict().keys()
    given = {name: value for name, value in entries.items() if name in names}
    if "rope_theta" in entries and not entries.get("rope_parameters"):
        theta = entries["rope_theta"]
        given["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    return owner(**given)


def _codes_config(config: JanusConfig) -> JanusVQVAEConfig:
    return JanusVQVAEConfig(
        embed_dim=config.width,
        num_embeddings=config.codes,
        projection_dim=config.inner,
        image_token_embed_dim=config.decoder["hidden_size"],
    )


def _starting(tensors: dict[str, Tensor], prefix: str) -> Iterator[tuple[str, Tensor]]:
    return ((key, tensor) for key, tensor in tensors.items() if key.startswith(prefix))


def _placed(
    tensors: Iterable[tuple[str, Tensor]],
    prefix: str,
    ignored: tuple[str, ...],
    target: TargetModel,
) -> Iterator[tuple[str, Tensor]]:
    """Yield a network's tensors without the prefix of its keys, on the target's device."""
    for key, tensor in tensors:
        if not key.startswith(ignored):
            yield key.removeprefix(prefix), tensor.to(target.device, target.dtype)


def _fill(model: nn.Module, state: dict[str, Tensor], folder: Path, target: TargetModel) -> None:
    """Give a network on the meta device its weights; ValueError if they do not fit."""
    missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    if missing or unexpected:
        raise ValueError(f"{folder}: transformers misses {missing}, does not expect {unexpected}")
    if hasattr(model, "rotary_emb"):
        with target.device:  # its buffers are computed, not read
            model.rotary_emb = type(model.rotary_emb)(model.config)
    if empty := [name for name, value in model.named_buffers() if value.is_meta]:
        raise ValueError(f"this version of transformers computes {empty} elsewhere")
