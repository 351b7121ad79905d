"""A complete small checkpoint in the public format.

Its weights are random; its distributions are neither flat nor certain.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn

from configs.schema import RunSettings, SamplingSettings
from drafters.eagle import EagleHead
from drafters.kinds import eagle_keys
from models.codecs.vqgan import ImageTokenizer, VqganConfig
from models.codecs.vqgan_files import build_vqmodel, save_vqgan
from models.files.network import public_state
from models.targets.llama import decoder_keys, decoder_spec, llama_spec
from models.transformer import Transformer
from runs.session import Session, open_session
from scripts.tiny.make_tokenizer import CLOSING_NAMES, LEADING_NAMES, image_token_name

torch.set_num_threads(1)  # small matrices; the machine has few cores


@dataclass(frozen=True)
class Sizes:
    """Sizes of a checkpoint: `side` x `side` image tokens out of `codes` codes.

    spread: about the standard deviation of its logits.
    """

    side: int = 4
    codes: int = 24
    hidden: int = 32
    layers: int = 2
    heads: int = 2
    kv_heads: int = 2
    positions: int = 160
    swin_norm: bool = False
    shared_norm: bool = False  # query/key norms of the shape (1, head_dim), as in Lumina's drafter
    spread: float = 0.8
    halvings: int = 1  # how often the VQGAN halves an image's side
    words: tuple[str, ...] = ()  # more names of the tokenizer


SIZE_WORDS = tuple(
    f"<reserved{8799 + i:05d}>" for i in range(6)
)  # the row's end, and sizes up to 5 cells
LUMINA = Sizes(halvings=4, words=SIZE_WORDS, positions=260)


def write_checkpoint(folder: Path, sizes: Sizes = Sizes(), seed: int = 0) -> Path:  # noqa: B008
    """Write target, drafter, tokenizer and VQGAN; returns the folder."""
    write_networks(folder, write_parts(folder, sizes), sizes, seed)
    return folder


def write_networks(folder: Path, config: dict, sizes: Sizes, seed: int = 0) -> None:
    """Write the weights of target and drafter, and the drafter's config.json."""
    (folder / "drafter").mkdir()
    spec = decoder_spec(config)
    target = randomised(Transformer(spec, spec.vocab), seed, sizes)
    save_file(public_weights(target, sizes), folder / "model.safetensors")
    head_config = config | {"num_hidden_layers": 1, "bias": True}
    head = randomised(EagleHead(decoder_spec(head_config)), seed + 1, sizes)
    make_kin(target, head)
    (folder / "drafter" / "config.json").write_text(json.dumps(head_config))
    save_file(public_weights(head, sizes), folder / "drafter" / "model.safetensors")


def write_shards(folder: Path, suffix: str) -> list[str]:
    """Replace the single weight file by two shards with an index."""
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    names = [f"{stem}-0000{i}-of-00002.{suffix}" for i in (1, 2)]
    placed = {key: names[i % 2] for i, key in enumerate(state)}
    for name in names:
        part = {key: value for key, value in state.items() if placed[key] == name}
        save_file(part, folder / name) if suffix == "safetensors" else torch.save(
            part, folder / name
        )
    index = {"metadata": {}, "weight_map": placed}
    (folder / f"{stem}.{suffix}.index.json").write_text(json.dumps(index))
    return names


def store_weights(folder: Path, kind: str) -> Path:
    """Store a network's weights as files of a kind; returns one of them.

    kind: safetensors, bin, either after "sharded", or "old bin", as torch wrote before 1.6.
    """
    single, binary = folder / "model.safetensors", folder / "pytorch_model.bin"
    if kind.startswith("sharded"):
        return folder / write_shards(folder, kind.split()[1])[0]
    if kind == "safetensors":
        return single
    torch.save(load_file(single), binary, _use_new_zipfile_serialization=kind == "bin")
    single.unlink()
    return binary


def make_kin(target: Transformer, head: EagleHead) -> None:
    """Make target and drafter alike, so that drafts are often right.

    In both, features depend most on the last token and less on the context.
    """
    for module, share in ((target, 0.6), (head, 0.4)):
        for name, weight in module.named_parameters():
            if name.endswith(("out.weight", "down.weight")):
                weight.data *= share
    head.embedding.weight.data.copy_(target.embedding.weight)
    head.fc.weight.data *= 0.2
    head.fc.weight.data[:, : target.spec.hidden] += torch.diag(target.norm.weight)


def write_parts(folder: Path, sizes: Sizes) -> dict:
    """Write config.json, the tokenizer and the VQGAN; returns the configuration."""
    tokenizer = byte_tokenizer(sizes.codes, sizes.words)
    (folder / "tokenizer").mkdir(parents=True)
    tokenizer.save(str(folder / "tokenizer" / "text_tokenizer.json"))
    vqgan = VqganConfig(
        ch=8, ch_mult=(1,) * sizes.halvings + (2,), num_res_blocks=1, z_channels=4, embed_dim=4,
        n_embed=sizes.codes, resolution=2**sizes.halvings * sizes.side, num_groups=4,
    )  # fmt: skip
    torch.manual_seed(7)
    save_vqgan(ImageTokenizer(build_vqmodel(vqgan), vqgan), folder / "tokenizer")
    config = public_config(sizes, tokenizer)
    (folder / "config.json").write_text(json.dumps(config))
    return config


def public_config(sizes: Sizes, tokenizer: Tokenizer) -> dict:
    """Return a config.json as Chameleon's, with a vq_config that transformers can build."""
    return {
        "architectures": ["ChameleonForConditionalGeneration"],
        "model_type": "chameleon",
        "vocab_size": tokenizer.get_vocab_size(),
        "bos_token_id": 0,
        "pad_token_id": 1,
        "hidden_size": sizes.hidden,
        "intermediate_size": 2 * sizes.hidden + 8,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads,
        "max_position_embeddings": sizes.positions,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "hidden_act": "silu",
        "swin_norm": sizes.swin_norm,
        "tie_word_embeddings": False,
        "vq_config": {"embed_dim": 4, "num_embeddings": sizes.codes, "latent_channels": 4,
                      "resolution": 2**sizes.halvings * sizes.side, "base_channels": 32,
                      "channel_multiplier": [1, 1], "num_res_blocks": 1},
        "vocabulary_map": tokenizer.get_vocab(),
    }  # fmt: skip


def byte_tokenizer(codes: int, words: tuple[str, ...] = ()) -> Tokenizer:
    """Return a tokenizer with the tiny model's layout of ids, few image codes and no merges."""
    names = [*LEADING_NAMES, *map(image_token_name, range(codes)), *CLOSING_NAMES]
    return _bytes([*names, *sorted(pre_tokenizers.ByteLevel.alphabet()), *words])


def special_tokenizer(names: Sequence[str]) -> Tokenizer:
    """Return a tokenizer of bytes without merges; special tokens of these names follow them."""
    tokenizer = _bytes(sorted(pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in names])
    return tokenizer


def _bytes(names: Sequence[str]) -> Tokenizer:
    """Return a tokenizer of bytes without merges; names: of all ids, the bytes' among them."""
    tokenizer = Tokenizer(models.BPE(vocab={name: i for i, name in enumerate(names)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def llama_drafter(entries: dict, target: Transformer) -> tuple[EagleHead, dict]:
    """Return a random drafter for a Llama target, much like it, and the drafter's config.json.

    entries: of the target's decoder.
    """
    config = entries | {"num_hidden_layers": 1, "bias": True}
    config = {name: value for name, value in config.items() if "token_id" not in name}
    positions = target.spec.max_positions
    spec = replace(llama_spec(config), max_positions=positions, first_norm=False)
    head = randomised(EagleHead(spec), 1)
    make_kin(target, head)
    return head, config


def write_drafter(folder: Path, head: EagleHead, config: dict) -> None:
    """Write a drafter's folder in the public layout."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(public_state(head, eagle_keys(head.spec, True)), folder / "model.safetensors")


def randomised(module: nn.Module, seed: int, sizes: Sizes = Sizes()) -> nn.Module:  # noqa: B008
    """Fill a module of ours or of transformers with random weights; activations keep their
    scale.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, weight in module.named_parameters():
        noise = torch.randn(weight.shape, generator=generator)
        if "norm" in name:
            noise = noise[:1].expand_as(noise) if sizes.shared_norm and weight.ndim == 2 else noise
            weight.data = (0.2 * noise + (name.endswith("weight"))).to(weight)
        elif name.endswith("bias"):
            weight.data = 0.1 * noise.to(weight)
        elif "embed" in name:
            weight.data = noise.to(weight)
        else:
            gain = sizes.spread if name.endswith("head.weight") else 1.0
            weight.data = (gain * noise / weight[0].numel() ** 0.5).to(weight)
    return module.requires_grad_(False).eval()


def public_weights(module: nn.Module, sizes: Sizes) -> dict[str, Tensor]:
    """Return a transformer or a drafter in the public layout."""
    keys = (
        eagle_keys(module.spec, True)
        if isinstance(module, EagleHead)
        else decoder_keys(module.spec)
    )
    state = public_state(module, keys)
    once = [key for key in state if sizes.shared_norm and is_head_norm(key)]
    return state | {key: state[key][:1].clone() for key in once}


def is_head_norm(key: str) -> bool:
    return ".q_norm." in key or ".k_norm." in key


GUIDANCE = {"glm_image": 1.0, "janus_pro": 5.0, "lumina_mgpt2": 4.0}  # elsewhere 3
FLAGS = {
    "emu3": {"target_size": "40x32", "negative_prompt": "lowres, blurry."},
    "emu3_5": {"target_size": "80x64"},
    "glm_image": {"target_size": "96x64"},
    "lumina_mgpt2": {"target_size": "32"},
}


def small_settings(
    folder: Path, dtype: str = "fp64", model: str = "tiny", **sampling: float
) -> RunSettings:
    """Return the settings of a run on a small checkpoint, with its drafter."""
    return RunSettings(
        prompt="a cat",
        model=model,
        model_path=str(folder),
        dtype=dtype,
        device="cpu",
        sampling=SamplingSettings(**{"cfg": GUIDANCE.get(model, 3.0), **sampling}),
        **FLAGS.get(model, {}),
    )


def open_lumina(folder: Path, size: str) -> Session:
    """Return settings for a checkpoint of the sizes LUMINA in fp64 and images of so many pixels."""
    return open_session(replace(small_settings(folder), model="lumina_mgpt", target_size=size))
