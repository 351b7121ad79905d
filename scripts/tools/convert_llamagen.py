"""Convert original LlamaGen weights to the folder that `--model llamagen` and `llamagen2` read.

`python -m scripts.tools.convert_llamagen --source t2i_XL_stage1_256.pt --output FOLDER`
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from configs.fields import SettingsError, refuse
from models.files.tensors import read_tensors
from support.durable import encode_json, give_usual_mode, replace_file
from support.script import run_script

# width -> heads, of all models of the authors
HEADS = {768: 12, 1024: 16, 1280: 20, 1536: 24, 2048: 32, 2560: 40, 3200: 32, 4096: 32}
SIDES = {"_256": 16, "_512": 32}  # codes per row and column, by the end of the file's name
_TOP = {
    "tok_embeddings.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "cls_embedding.uncond_embedding": "model.cls_embedding.uncond_embedding",
    "cls_embedding.cap_proj.fc1.weight": "model.cls_embedding.cap_proj.fc1.weight",
    "cls_embedding.cap_proj.fc2.weight": "model.cls_embedding.cap_proj.fc2.weight",
}
_LAYER = {
    "attention.wo.weight": "self_attn.o_proj.weight",
    "feed_forward.w1.weight": "mlp.gate_proj.weight",
    "feed_forward.w3.weight": "mlp.up_proj.weight",
    "feed_forward.w2.weight": "mlp.down_proj.weight",
    "attention_norm.weight": "input_layernorm.weight",
    "ffn_norm.weight": "post_attention_layernorm.weight",
}


def renamed(tensors: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yield original keys and tensors in the Hugging Face layout; refuse foreign keys."""
    for key, tensor in tensors:
        layer = re.fullmatch(r"layers\.(\d+)\.(.+)", key)
        if layer and layer[2] == "attention.wqkv.weight":
            for name, rows in zip("qkv", tensor.chunk(3), strict=True):
                yield f"model.layers.{layer[1]}.self_attn.{name}_proj.weight", rows.contiguous()
        elif layer and layer[2] in _LAYER:
            yield f"model.layers.{layer[1]}.{_LAYER[layer[2]]}", tensor.contiguous()
        elif key in _TOP:
            yield _TOP[key], tensor.contiguous()
        elif key != "freqs_cis":  # a table of rotations, which the authors' loaders leave out
            raise ValueError(f"unexpected key {key}: not the text-to-image GPT of LlamaGen")


def config_of(state: dict[str, Tensor], side: int, heads: int | None) -> dict:
    """Return the config.json of weights, which do not tell codes per row (`side`) and heads."""
    try:
        vocab, hidden = state["model.embed_tokens.weight"].shape
        slots, width = state["model.cls_embedding.uncond_embedding"].shape
        intermediate = len(state["model.layers.0.mlp.gate_proj.weight"])
    except KeyError as error:
        raise ValueError(f"missing key {error.args[0]}") from error
    if heads is None and hidden not in HEADS:
        refuse("heads", heads, f"the model's attention heads; its width {hidden} tells none")
    heads = heads or HEADS[hidden]
    if heads < 1 or hidden % heads:
        refuse("heads", heads, f"a divisor of the width {hidden}")
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "input_type": "t2i",
        "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": intermediate,
        "num_hidden_layers": sum(key.endswith("o_proj.weight") for key in state),
        "num_attention_heads": heads, "num_key_value_heads": heads, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "max_position_embeddings": slots + side**2, "rope_base": 10000,
        "attention_bias": False, "tie_word_embeddings": False, "block_size": side**2,
        "cls_token_num": slots, "caption_dim": width,
    }  # fmt: skip


def convert(*, source: str, output: str, heads: int | None = None) -> None:
    """Convert a file of weights.

    Args:
        source: t2i_XL_stage1_256.pt or t2i_XL_stage2_512.pt.
        output: folder for config.json and model.safetensors; made if it is not there.
        heads: attention heads of a model of your own; the authors' are known by their width.
    """
    try:
        state = dict(renamed(read_tensors([Path(source)])))
        if (side := SIDES.get(Path(source).stem[-4:])) is None:
            refuse("source", source, "a name that ends in _256 or _512, the image's size")
        config = config_of(state, side, heads)
    except SettingsError:
        raise
    except ValueError as error:
        raise ValueError(f"--source {source}: {error}") from error
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    give_usual_mode(folder / "model.safetensors")
    replace_file(folder / "config.json", encode_json(config))


if __name__ == "__main__":
    run_script(convert)
