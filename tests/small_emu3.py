"""A complete small Emu3-Gen with random weights, in the layouts of old and new transformers."""

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from small import make_kin, randomised
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from transformers import Emu3Config, Emu3VQVAE, Emu3VQVAEConfig

from configs.schema import RunSettings, SamplingSettings
from drafters.eagle import EagleHead
from drafters.loading import eagle_keys
from models.files.network import public_state
from models.targets.emu3_network import emu3_entries, emu3_keys, emu3_spec
from models.targets.llama_spec import llama_drafter_spec
from models.transformer import Transformer

BEFORE = (
    "<|endoftext|>", "<image>", "<|extra_200|>", "<|extra_201|>", "<|extra_203|>",
    "<|extra_204|>", "<|image token|>", "<|image start|>", "<|image end|>",
)  # fmt: skip


@dataclass(frozen=True)
class Emu3Sizes:
    """Sizes: images of `size` pixels, 8 per token, out of so many `codes`."""

    size: str = "40x32"
    codes: int = 24
    hidden: int = 32
    positions: int = 260


def write_emu3(folder: Path, sizes: Emu3Sizes = Emu3Sizes(), old: bool = False) -> Path:  # noqa: B008
    """Write target, drafter and tokenizer; returns the folder. old: keys of the public files."""
    tokenizer = small_tokenizer(sizes.codes)
    config = public_config(sizes, tokenizer.get_vocab())
    target, head, drafter = small_networks(config.to_dict())
    state = public_state(target, emu3_keys(target.spec, None))
    codec = small_movq(config.vq_config).state_dict()
    state |= {f"model.vqmodel.{key}": value.clone() for key, value in codec.items()}
    (folder / "drafter").mkdir(parents=True)
    save_file(old_names(state) if old else state, folder / "model.safetensors", {"format": "pt"})
    config.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "drafter" / "config.json").write_text(json.dumps(drafter))
    save_file(
        public_state(head, eagle_keys(head.spec, True)), folder / "drafter" / "model.safetensors"
    )
    return folder


def old_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the weights under the keys of the public files."""
    names = (
        ("model.text_model.", "text_model.model."),
        ("model.vqmodel.", "vqmodel."),
        ("lm_head.", "text_model.lm_head."),
    )
    pairs = ((next(p for p in names if key.startswith(p[0])), key) for key in state)
    return {new + key.removeprefix(old): state[key] for (old, new), key in pairs}


def public_config(sizes: Emu3Sizes, vocabulary: dict[str, int]) -> Emu3Config:
    """Return transformers' config.json of the family with small numbers."""
    return Emu3Config(
        architectures=["Emu3ForConditionalGeneration"],
        vocabulary_map=vocabulary,
        text_config={
            "vocab_size": len(vocabulary), "hidden_size": sizes.hidden,
            "intermediate_size": sizes.hidden + 8, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 260,
            "max_position_embeddings": sizes.positions, "pad_token_id": 256, "eos_token_id": 261,
        },
        vq_config={
            "codebook_size": sizes.codes, "base_channels": 32, "hidden_size": 64,
            "channel_multiplier": [1, 1, 1, 2], "num_res_blocks": 1,
        },
    )  # fmt: skip


def small_networks(config: dict) -> tuple[Transformer, EagleHead, dict]:
    """Return random networks of target and drafter, and the drafter's config.json."""
    spec = emu3_spec(config)
    target = randomised(Transformer(spec, spec.vocab), 0)
    drafter = emu3_entries(config) | {"num_hidden_layers": 1, "bias": True}
    drafter = {name: value for name, value in drafter.items() if "token_id" not in name}
    head = randomised(EagleHead(llama_drafter_spec(drafter, spec)), 1)
    make_kin(target, head)
    return target, head, drafter


def small_movq(config: Emu3VQVAEConfig) -> Emu3VQVAE:
    """Return transformers' codec with random weights; activations keep their scale.

    The codes' latents are spread as the encoder's outputs are.
    """
    torch.manual_seed(0)
    model = Emu3VQVAE(config).eval()
    for name, weight in model.named_parameters():
        if "norm" in name and weight.ndim == 1:
            weight.data += 0.2 * torch.randn_like(weight)
        elif weight.ndim > 1:
            weight.data = torch.randn_like(weight) / weight[0].numel() ** 0.5
    model.requires_grad_(False)
    colours = torch.rand(8, 1, 3, 4, 4) * 2 - 1
    pixels = colours.repeat_interleave(8, 3).repeat_interleave(8, 4).repeat(1, 4, 1, 1, 1)
    latents = model.quant_conv(model.encoder(pixels).transpose(1, 2)).transpose(0, 1).flatten(1)
    codes = model.quantize.embedding.weight
    codes.data = latents.mean(1) + latents.std(1) * torch.randn_like(codes)
    return model


def small_tokenizer(codes: int) -> Tokenizer:
    """Return a tokenizer of bytes; Emu3's special tokens follow them, then the image codes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    names = [*BEFORE, *(f"<|visual token {code:06d}|>" for code in range(codes))]
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer


def emu3_settings(folder: Path, dtype: str = "fp64", **sampling: float) -> RunSettings:
    """Return the settings of a run on a small checkpoint, with its drafter."""
    return RunSettings(
        prompt="a cat",
        model="emu3",
        model_path=str(folder),
        target_size=Emu3Sizes().size,
        negative_prompt="lowres, blurry.",
        dtype=dtype,
        device="cpu",
        sampling=SamplingSettings(**{"cfg": 3.0, **sampling}),
    )
