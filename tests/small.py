"""A complete small random checkpoint; its distributions are neither flat nor certain."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor, nn

from configs.model import EngineSettings
from configs.schema import SamplingSettings
from drafters.eagle import EagleHead
from drafters.kinds import eagle_keys
from models.base import TargetOptions
from models.codecs.vqgan import ImageTokenizer, VqganConfig
from models.codecs.vqgan_files import save_vqgan
from models.codecs.vqgan_network import Vqgan
from models.files.network import public_state
from models.registry import load_target
from models.target import TargetModel
from models.targets.llama import decoder_keys, decoder_spec, llama_spec
from models.transformer import Transformer
from runs.session import Session, open_session
from scenes.training.make_tokenizer import CLOSING_NAMES, LEADING_NAMES, image_token_name


@dataclass(frozen=True)
class Sizes:
    """Sizes of a checkpoint: `side` x `side` image tokens out of `codes` codes."""

    side: int = 4
    codes: int = 24
    hidden: int = 32
    layers: int = 2
    heads: int = 2
    kv_heads: int = 2
    positions: int = 160
    swin_norm: bool = False
    shared_norm: bool = False  # query/key norms of the shape (1, head_dim), as in Lumina's drafter
    halvings: int = 1  # how often the VQGAN halves an image's side
    words: tuple[str, ...] = ()  # more names of the tokenizer


OPTIONS = TargetOptions(torch.float32, torch.device("cpu"))
# the row's end, and sizes up to 5 cells
SIZE_WORDS = tuple(f"<reserved{8799 + i:05d}>" for i in range(6))
LUMINA = Sizes(halvings=4, words=SIZE_WORDS, positions=260)


def write_checkpoint(folder: Path, sizes: Sizes = Sizes(), seed: int = 0) -> Path:
    """Write target, drafter, tokenizer and VQGAN; returns the folder."""
    write_networks(folder, write_parts(folder, sizes), sizes, seed)
    return folder


def write_networks(folder: Path, config: dict, sizes: Sizes, seed: int = 0) -> None:
    """Write the weights of target and drafter, and the drafter's config.json."""
    spec = decoder_spec(config)
    target = randomised(Transformer(spec, spec.vocab), seed, sizes)
    save_file(public_weights(target, sizes), folder / "model.safetensors")
    head_config = config | {"num_hidden_layers": 1, "bias": True}
    head = randomised(EagleHead(decoder_spec(head_config)), seed + 1, sizes)
    make_kin(target, head)
    write_drafter(folder / "drafter", head_config, public_weights(head, sizes))


def write_shards(folder: Path, suffix: str) -> list[str]:
    """Replace the single weight file by two shards with an index."""
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    stem = "model" if suffix == "safetensors" else "pytorch_model"
    names = [f"{stem}-0000{i}-of-00002.{suffix}" for i in (1, 2)]
    placed = {key: names[i % 2] for i, key in enumerate(state)}
    for name in names:
        part = {key: value for key, value in state.items() if placed[key] == name}
        save = save_file if suffix == "safetensors" else torch.save
        save(part, folder / name)
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
    """Make features of both depend most on the last token, so that drafts are often right."""
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
    write_vqgan(folder / "tokenizer", sizes)
    config = public_config(sizes, tokenizer)
    (folder / "config.json").write_text(json.dumps(config))
    return config


def write_vqgan(folder: Path, sizes: Sizes) -> None:
    vqgan = VqganConfig(
        ch=8, ch_mult=(1,) * sizes.halvings + (2,), num_res_blocks=1, z_channels=4, embed_dim=4,
        n_embed=sizes.codes, resolution=2**sizes.halvings * sizes.side, num_groups=4,
    )  # fmt: skip
    torch.manual_seed(7)
    save_vqgan(ImageTokenizer(Vqgan(vqgan), vqgan), folder)


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


def write_llama_drafter(folder: Path, entries: dict, target: Transformer) -> None:
    """Write a random drafter for a Llama target of these entries, and make the two alike."""
    config = entries | {"num_hidden_layers": 1, "bias": True}
    config = {name: value for name, value in config.items() if "token_id" not in name}
    positions = target.spec.max_positions
    spec = replace(llama_spec(config), max_positions=positions, first_norm=False)
    head = randomised(EagleHead(spec), 1)
    make_kin(target, head)
    write_drafter(folder / "drafter", config, public_state(head, eagle_keys(head.spec, True)))


def write_drafter(folder: Path, config: dict, state: dict[str, Tensor]) -> None:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(state, folder / "model.safetensors")


def scaled(codec: nn.Module) -> nn.Module:
    """Give a codec random weights; activations keep their scale."""
    for name, weight in codec.named_parameters():
        if weight.ndim > 1:
            weight.data = torch.randn_like(weight) / weight[0].numel() ** 0.5
        elif "norm" in name:
            weight.data += 0.2 * torch.randn_like(weight)
    return codec.requires_grad_(False).eval()


def spread(table: nn.Parameter, latents: Tensor) -> None:
    """Spread a codebook's vectors as the encoder's outputs (channels, positions) are."""
    table.data = latents.mean(1) + latents.std(1) * torch.randn_like(table)


def shapes_of(state: Mapping[str, Tensor]) -> dict[str, tuple[int, ...]]:
    return {key: tuple(value.shape) for key, value in state.items()}


def randomised(module: nn.Module, seed: int, sizes: Sizes = Sizes()) -> nn.Module:
    """Fill a network with random weights; activations keep their scale."""
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
            # 0.8 is about the standard deviation of logits
            gain = 0.8 if name.endswith("head.weight") else 1.0
            weight.data = (gain * noise / weight[0].numel() ** 0.5).to(weight)
    return module.requires_grad_(False).eval()


def public_weights(module: nn.Module, sizes: Sizes) -> dict[str, Tensor]:
    """Return a transformer or a drafter in the public layout."""
    drafter, spec = isinstance(module, EagleHead), module.spec
    state = public_state(module, eagle_keys(spec, True) if drafter else decoder_keys(spec))
    once = [key for key in state if sizes.shared_norm and is_head_norm(key)]
    return state | {key: state[key][:1].clone() for key in once}


def is_head_norm(key: str) -> bool:
    return ".q_norm." in key or ".k_norm." in key


GUIDANCE = {
    "glm_image": 1.0,
    "image_gpt": 1.0,
    "janus_pro": 5.0,
    "lumina_mgpt2": 4.0,
}  # elsewhere 3
FLAGS = {
    "emu3": {"target_size": "40x32", "negative_prompt": "lowres, blurry."},
    "emu3_5": {"target_size": "80x64"},
    "glm_image": {"target_size": "96x64"},
    "lumina_mgpt": {"target_size": "64"},
    "lumina_mgpt2": {"target_size": "32"},
}


def small_settings(
    folder: Path, dtype: str = "fp64", model: str = "tiny", **sampling: float
) -> EngineSettings:
    """Return the settings of a small checkpoint, with its drafter."""
    return EngineSettings(
        model=model,
        model_path=str(folder),
        dtype=dtype,
        device="cpu",
        sampling=SamplingSettings(**{"cfg": GUIDANCE.get(model, 3.0), **sampling}),
        **FLAGS.get(model, {}),
    )


def loaded(folder: Path, model: str = "tiny", **options: object) -> TargetModel:
    """Load a target in fp32."""
    return load_target(model, str(folder), replace(OPTIONS, **options))


def open_lumina(folder: Path, size: str) -> Session:
    """Return settings for a checkpoint of the sizes LUMINA in fp64 and images of so many pixels."""
    return open_session(replace(small_settings(folder), model="lumina_mgpt", target_size=size))
