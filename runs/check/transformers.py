"""transformers' classes for the families that it has, with a checkpoint's weights.

All raise a ValueError if transformers misses weights, or does not expect some.
"""

from collections.abc import Callable, Iterable
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
    GlmImageConfig,
    GlmImageModel,
    JanusVQVAEConfig,
    LlamaConfig,
    LlamaModel,
    Qwen3Config,
    Qwen3Model,
)
from transformers.models.janus.modeling_janus import JanusVQVAEAlignerMLP, JanusVQVAEHead

from models.files.weights import read_tensors, weight_files
from models.target import TargetModel
from models.targets.emu3 import Emu3, Emu35
from models.targets.glm_image import UNREAD
from models.targets.janus import JanusPro, janus_config
from models.targets.liquid import Liquid
from support.json_files import read_object

HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Oracle:
    """A family's networks in transformers, on the target's device and in its dtype."""

    name: str  # of the class
    features: Callable[[Tensor], Tensor]  # ids (1, n) -> (n, hidden)
    score: Callable[[Tensor], Tensor]  # (m, hidden) -> logits of the image codes (m, codes)


def load_chameleon(folder: Path, target: TargetModel) -> tuple[ChameleonModel, Tensor]:
    """Return transformers' model with a folder's weights, and the head's rows of image codes.

    Its image encoder, which nothing here uses, is left empty.
    """
    with torch.device("meta"):  # its weights are assigned below, so none are made here
        model = ChameleonModel(ChameleonConfig.from_pretrained(folder))
    model.vqmodel = None
    shared = ("q_norm.weight", "q_norm.bias", "k_norm.weight", "k_norm.bias")
    tensors = (  # Lumina-mGPT 2.0 has one norm for all heads
        (key, x.expand_as(model.get_parameter(key[len("model.") :])) if key.endswith(shared) else x)
        for key, x in read_tensors(weight_files(folder))
    )
    return model, _fill_decoder(model, folder, target, "model.", ("model.vqmodel.",), tensors)


def chameleon_oracle(folder: Path, target: TargetModel) -> Oracle:
    return _with_head(*load_chameleon(folder, target))


def emu3_oracle(folder: Path, target: TargetModel) -> Oracle:
    config = read_object(folder / "config.json")
    with torch.device("meta"):
        model = Emu3TextModel(_config(Emu3TextConfig, Emu3().entries(config)))
    layout = Emu3().network(config)
    tensors = ((layout.name(key), x) for key, x in read_tensors(weight_files(folder)))
    places = "model.text_model.", layout.ignored
    return _with_head(model, _fill_decoder(model, folder, target, *places, tensors))


def emu3_5_oracle(folder: Path, target: TargetModel) -> Oracle:
    """Return transformers' Qwen3, which has Emu3.5's norms on queries and keys."""
    entries = Emu35().entries(read_object(folder / "config.json"))
    entries["head_dim"] = target.spec.head_dim
    with torch.device("meta"):
        model = Qwen3Model(_config(Qwen3Config, entries))
    return _with_head(model, _fill_decoder(model, folder, target))


def liquid_oracle(folder: Path, target: TargetModel) -> Oracle:
    """Return transformers' Gemma, whose head is its embedding."""
    config = read_object(folder / "config.json")
    Liquid().spec(config)  # of this family
    # the formula that Gemma means by "gelu", too; later versions take the entry at its word
    config = _config(GemmaConfig, config | {"hidden_act": "gelu_pytorch_tanh"})
    with torch.device("meta"):
        model = GemmaModel(config)
    if hasattr(model.embed_tokens, "embed_scale"):  # computed, not read
        model.embed_tokens.embed_scale = torch.tensor(config.hidden_size**0.5, device=target.device)
    return _with_head(model, _fill_decoder(model, folder, target, ignored=(HEAD,)))


def glm_image_oracle(folder: Path, target: TargetModel) -> Oracle:
    """Return transformers' GLM-Image; it reads prompt and image apart, as in generation."""
    with torch.device("meta"):
        model = GlmImageModel(GlmImageConfig.from_pretrained(folder))
    model.visual = model.vqmodel = None
    head = _fill_decoder(model.language_model, folder, target, "model.language_model.", UNREAD)
    grid = target.grid
    grids = torch.tensor([[1, grid.rows, grid.columns], [1, *grid.preview]], device=target.device)

    def features(ids: Tensor) -> Tensor:
        begin = int((ids[0] == model.config.image_start_token_id).nonzero()[-1]) + 1
        prompt = model(input_ids=ids[:, :begin], image_grid_thw=grids, use_cache=True)
        cache = prompt.past_key_values
        image = model(input_ids=ids[:, begin:], image_grid_thw=grids, past_key_values=cache)
        return torch.cat([prompt.last_hidden_state, image.last_hidden_state], 1)[0]

    return Oracle("GlmImageModel", features, lambda features: features @ head.T)


def janus_oracle(folder: Path, target: TargetModel) -> Oracle:
    """Return transformers' Llama, with Janus's embedding and head of image codes."""
    content = read_object(folder / "config.json")
    config, layout = janus_config(content), JanusPro().network(content)
    tensors = {layout.name(key): x for key, x in read_tensors(weight_files(folder))}
    with torch.device("meta"):
        llama = LlamaModel(_config(LlamaConfig, config.decoder))
        sizes = JanusVQVAEConfig(
            embed_dim=config.width,
            num_embeddings=config.codes,
            projection_dim=config.inner,
            image_token_embed_dim=config.decoder["hidden_size"],
        )
        aligner, head = JanusVQVAEAlignerMLP(sizes), JanusVQVAEHead(sizes)
    parts = {"language_model.": llama, "generation_aligner.": aligner, "generation_head.": head}
    for name, module in parts.items():
        state = {
            key.removeprefix(f"model.{name}"): tensor.to(target.device, target.dtype)
            for key, tensor in tensors.items()
            if key.startswith(f"model.{name}")
        }
        _fill(module, state, folder, target)
    vectors = tensors["model.generation_embeddings.weight"].to(target.device, target.dtype)

    def features(ids: Tensor) -> Tensor:
        code = ids - target.vocab.first_id
        # torch.where computes both sides, so each gets ids that its table has.
        words = llama.embed_tokens(ids.clamp(max=target.vocab.first_id - 1))
        images = aligner(vectors[code.clamp(min=0)])
        mixed = torch.where((code >= 0)[..., None], images, words)
        return llama(inputs_embeds=mixed, use_cache=False).last_hidden_state[0]

    return Oracle("LlamaModel with Janus's image parts", features, head)


ORACLES: dict[str, Callable[[Path, TargetModel], Oracle]] = {
    "chameleon": chameleon_oracle,
    "lumina_mgpt": chameleon_oracle,
    "lumina_mgpt2": chameleon_oracle,
    "emu3": emu3_oracle,
    "emu3_5": emu3_5_oracle,
    "janus_pro": janus_oracle,
    "liquid": liquid_oracle,
    "glm_image": glm_image_oracle,
}


def _with_head(model: nn.Module, head: Tensor) -> Oracle:
    """Return a model whose head is a matrix (codes, hidden)."""
    return Oracle(
        type(model).__name__,
        lambda ids: model(input_ids=ids, use_cache=False).last_hidden_state[0],
        lambda features: features @ head.T,
    )


def _fill_decoder(
    model: nn.Module,
    folder: Path,
    target: TargetModel,
    prefix: str = "model.",  # of the decoder's keys
    ignored: tuple[str, ...] = (),  # prefixes of keys that are not the decoder's
    tensors: Iterable[tuple[str, Tensor]] | None = None,  # by default those of the folder
) -> Tensor:
    """Give a decoder on the meta device its weights; returns the head's rows of image codes.

    Without a head among the weights, the embedding is the head.
    """
    state = {
        key.removeprefix(prefix): tensor.to(target.device, target.dtype)
        for key, tensor in tensors or read_tensors(weight_files(folder))
        if not key.startswith(ignored)
    }
    head = state.pop(HEAD) if HEAD in state else state["embed_tokens.weight"]
    _fill(model.eval(), state, folder, target)
    first = target.vocab.first_id
    return head[first : first + target.vocab.size]


def _config(owner: type, entries: dict) -> object:
    """Return transformers' configuration with the entries that it knows."""
    names = owner().to_dict().keys()
    given = {name: value for name, value in entries.items() if name in names}
    if "rope_theta" in entries and not entries.get("rope_parameters"):
        # transformers 5 keeps the base in rope_parameters, not as an entry of its own.
        given["rope_parameters"] = {"rope_type": "default", "rope_theta": entries["rope_theta"]}
    return owner(**given)


def _fill(model: nn.Module, state: dict[str, Tensor], folder: Path, target: TargetModel) -> None:
    """Give a network on the meta device its weights; ValueError if they do not fit."""
    # assign: parameters on the meta device have no memory to copy into.
    missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    if missing or unexpected:
        raise ValueError(f"{folder}: transformers misses {missing}, does not expect {unexpected}")
    if hasattr(model, "rotary_emb"):
        with target.device:  # its buffers are computed, not read
            model.rotary_emb = type(model.rotary_emb)(model.config)
    if empty := [name for name, value in model.named_buffers() if value.is_meta]:
        raise ValueError(f"this version of transformers computes {empty} elsewhere")
