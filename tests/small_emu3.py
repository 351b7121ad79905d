"""A complete small Emu3-Gen with random weights, in its two public layouts."""

import base64
from pathlib import Path

import torch
from safetensors.torch import save_file
from small import randomised, scaled, special_tokenizer, spread, write_llama_drafter
from tokenizers import pre_tokenizers
from torch import Tensor
from transformers import Emu3Config, Emu3VQVAE, Emu3VQVAEConfig
from transformers.convert_slow_tokenizer import bytes_to_unicode

from models.files.network import public_state
from models.targets.emu3 import DECODER, Emu3
from models.targets.llama import decoder_keys
from models.transformer import Transformer

BEFORE = (
    "<|endoftext|>", "<image>", "<|extra_200|>", "<|extra_201|>", "<|extra_203|>",
    "<|extra_204|>", "<|image token|>", "<|image start|>", "<|image end|>",
)  # fmt: skip
AUTHORS = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205)),
    "<|image token|>", "<|image start|>", "<|image end|>",
)  # fmt: skip
CODES = 24


def write_emu3(folder: Path, layout: str = "new") -> Path:
    """Write target, drafter and tokenizer; returns the folder.

    layout: new (of today's transformers) or old (keys of the public files).
    """
    codes = (f"<|visual token {code:06d}|>" for code in range(CODES))
    tokenizer = special_tokenizer([*BEFORE, *codes])
    config = public_config(tokenizer.get_vocab())
    spec, entries = Emu3().spec(config.to_dict()), Emu3().entries(config.to_dict())
    target = randomised(Transformer(spec, spec.vocab), 0)
    # first, since it also makes the target's weights more like the drafter's
    write_llama_drafter(folder, entries, target)
    state = public_state(target, decoder_keys(target.spec, None, DECODER))
    codec = small_movq(config.vq_config).state_dict()
    state |= {f"model.vqmodel.{key}": value.clone() for key, value in codec.items()}
    named = old_names(state) if layout == "old" else state
    save_file(named, folder / "model.safetensors", {"format": "pt"})
    config.save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def write_words(folder: Path, codes: int) -> None:
    """Write the authors' tokenizer: letters, the special tokens AUTHORS, so many image codes."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}
    ranks = (
        f"{base64.b64encode(bytes([byte_of[letter]])).decode()} {rank}"
        for rank, letter in enumerate(letters)
    )
    (folder / "emu3.tiktoken").write_text("\n".join(ranks) + "\n")
    names = (f"<|visual token {code:06d}|>" for code in range(codes))
    (folder / "emu3_vision_tokens.txt").write_text("\n".join([*AUTHORS[-3:], *names]) + "\n")


def old_names(state: dict[str, Tensor]) -> dict[str, Tensor]:
    names = (
        ("model.text_model.", "text_model.model."),
        ("model.vqmodel.", "vqmodel."),
        ("lm_head.", "text_model.lm_head."),
    )
    pairs = ((next(p for p in names if key.startswith(p[0])), key) for key in state)
    return {new + key.removeprefix(old): state[key] for (old, new), key in pairs}


def public_config(vocabulary: dict[str, int]) -> Emu3Config:
    return Emu3Config(
        architectures=["Emu3ForConditionalGeneration"],
        vocabulary_map=vocabulary,
        text_config={
            "vocab_size": len(vocabulary), "hidden_size": 32,
            "intermediate_size": 40, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": 260, "pad_token_id": 256,
            "bos_token_id": vocabulary["<|extra_203|>"],
            "eos_token_id": vocabulary["<|extra_204|>"],
        },
        vq_config={
            "codebook_size": CODES, "base_channels": 32, "hidden_size": 64,
            "channel_multiplier": [1, 1, 1, 2], "num_res_blocks": 1,
        },
    )  # fmt: skip


def small_movq(config: Emu3VQVAEConfig) -> Emu3VQVAE:
    torch.manual_seed(0)
    model = scaled(Emu3VQVAE(config))
    colours = torch.rand(8, 1, 3, 4, 4) * 2 - 1
    pixels = colours.repeat_interleave(8, 3).repeat_interleave(8, 4).repeat(1, 4, 1, 1, 1)
    latents = model.quant_conv(model.encoder(pixels).transpose(1, 2)).transpose(0, 1).flatten(1)
    spread(model.quantize.embedding.weight, latents)
    return model
