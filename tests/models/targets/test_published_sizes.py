"""The published sizes of every family and its drafters against transformers' classes, key by key.

GLM-Image's are in test_glm_image.py, beside those of its vision encoder.
"""

import json
import struct
from functools import cache
from pathlib import Path

import pytest
import torch
import transformers
from browser import thinned
from small import shapes_of

import main
from configs.targets import META_FILES
from configs.tools import InspectSettings
from drafters.loading import drafter_network
from models.base import ImageRope
from models.codecs.vqgan import VqganConfig, write_config
from models.codecs.vqgan_network import Vqgan
from models.cpu.blocks import can_compile
from models.files.network import Network
from models.registry import family_of
from runs.check.files import Examination
from scripts.checkpoints.chameleon import byte_tokenizer
from scripts.checkpoints.emu3 import old_names
from scripts.checkpoints.janus import authors_config, authors_state
from scripts.checkpoints.parts import is_head_norm
from scripts.tools.random_checkpoint import MODELS, target_folder, writer_of

HIDDEN, VOCAB, CODES = 4096, 65536, 8192
CONFIG = writer_of("anole", "full").config
VQGAN = VqganConfig(128, (1, 1, 2, 2, 4), 2, 256, 256, CODES, 512)
XL, STAGE2 = (writer_of(model, "full").config for model in ("llamagen", "llamagen2"))
EMU3, EMU3_5 = (writer_of(model, "full").config for model in ("emu3", "emu3_5"))
Shapes = dict[str, tuple[int, ...]]


def state_of(network: type, config: object) -> dict[str, torch.Tensor]:
    """The state of one of transformers' networks, without memory."""
    with torch.device("meta"):
        return network(config).state_dict()


@cache
def chameleon(norm_rows: int = 32, vocab: int = VOCAB, **sizes: int) -> Shapes:
    """Chameleon 7B; norm_rows: 32 in Anole, 1 in Lumina-mGPT, which stores a norm for all heads."""
    entries = CONFIG | {"vocab_size": vocab, "vq_config": None, "vocabulary_map": {"<image>": 4}}
    entries |= sizes
    config = transformers.ChameleonConfig(**entries)
    state = shapes_of(state_of(transformers.ChameleonForConditionalGeneration, config))
    shapes = {key: shape for key, shape in state.items() if "vqmodel" not in key}
    return shapes | {key: (norm_rows, 128) for key in shapes if is_head_norm(key)}


@cache
def llamagen() -> Shapes:
    shapes = shapes_of(state_of(transformers.LlamaForCausalLM, transformers.LlamaConfig(**XL)))
    return shapes | {
        "model.cls_embedding.cap_proj.fc1.weight": (1280, 2048),
        "model.cls_embedding.cap_proj.fc2.weight": (1280, 1280),
        "model.cls_embedding.uncond_embedding": (120, 2048),
    }


def emu3() -> dict[str, torch.Tensor]:
    config = transformers.Emu3Config(text_config=EMU3["text_config"], vocabulary_map={})
    return state_of(transformers.Emu3ForConditionalGeneration, config)


def qwen3() -> Shapes:
    entries = {name: value for name, value in EMU3_5.items() if name != "model_type"}
    config = transformers.Qwen3Config(**entries)
    return shapes_of(state_of(transformers.Qwen3ForCausalLM, config))


def gemma() -> Shapes:
    """With the ids that `resize_token_embeddings` leaves."""
    config = transformers.GemmaConfig(vocab_size=256_000 + 8192)
    return shapes_of(state_of(transformers.GemmaForCausalLM, config))


def drafter_of(target: Shapes, first_norm: bool = True) -> Shapes:
    """The published drafter of a target: its embedding, a layer as its own, and fc."""
    parts = ("model.embed_tokens.", "model.layers.0.")
    shapes = {key.removeprefix("model."): s for key, s in target.items() if key.startswith(parts)}
    hidden = shapes["embed_tokens.weight"][1]
    if not first_norm:
        del shapes["layers.0.input_layernorm.weight"]
    return shapes | {"fc.weight": (hidden, 2 * hidden), "fc.bias": (hidden,)}


def parameters(network: Network) -> int:
    assert all(weight.is_meta for weight in network.module.parameters())
    return sum(weight.numel() for weight in network.module.parameters())


# the head of image codes only, norms of every head
ANOLE = 7_013_666_816 - (VOCAB - CODES) * HIDDEN
ENCODER = {"model.vqmodel.encoder.conv_in.weight": (128, 3, 3, 3)}  # is not read
LARGE = {
    "hidden_size": 8192, "intermediate_size": 22016, "num_hidden_layers": 48,
    "num_attention_heads": 64, "num_key_value_heads": 8, "swin_norm": True,
}  # fmt: skip
CAPTION = 1280 * (2048 + 1280) + 120 * 2048
PUBLISHED = {  # model, published keys and shapes, config.json, our weights, sizes
    "Anole": ("anole", lambda: chameleon() | ENCODER, CONFIG, ANOLE, {}),
    "Lumina-mGPT": ("lumina_mgpt", lambda: chameleon(1), CONFIG, ANOLE, {}),
    "Lumina-mGPT 34B": (
        "lumina_mgpt", lambda: chameleon(4, **LARGE), CONFIG | LARGE, 33_824_546_816,
        {"heads": 64, "kv_heads": 8},
    ),
    "Lumina-mGPT 2.0": (
        "lumina_mgpt2", lambda: chameleon(1, 171_385),
        writer_of("lumina_mgpt2", "full").config,
        ANOLE + (171_385 - VOCAB + 16_384 - CODES) * HIDDEN, {"max_positions": 10240},
    ),
    "Emu3": (
        "emu3", lambda: shapes_of(emu3()), EMU3, 6_979_588_096 + (184622 + 32768) * 4096,
        {"heads": 32, "kv_heads": 8, "max_positions": 9216, "rope_theta": 1e6},
    ),
    "Emu3, old keys": (
        "emu3", lambda: shapes_of(old_names(emu3())), EMU3,
        6_979_588_096 + (184622 + 32768) * 4096, {},
    ),
    "Emu3.5": (
        "emu3_5", qwen3, EMU3_5,
        34_103_460_864 - 151_854 * 5120 + 64 * (64 + 8 - 2) * 128,
        {"max_positions": 6272},
    ),
    "Liquid": (  # Gemma's 8.5 billion with more ids, and the head's rows of codes once more
        "liquid", gemma, writer_of("liquid", "full").config,
        8_537_680_896 + 2 * 8192 * 3072,
        {"layers": 28, "heads": 16, "head_dim": 256, "hidden": 3072, "max_positions": 2048},
    ),
    "LlamaGen": (
        "llamagen", llamagen, XL, 773_418_240 + CAPTION,
        {"head_dim": 64, "max_positions": 376, "image_rope": ImageRope(120, 16)},
    ),
    "LlamaGen, stage 2": (
        "llamagen2", llamagen, STAGE2, 773_418_240 + CAPTION,
        {"max_positions": 1144, "image_rope": ImageRope(120, 32)},
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "published", "entries", "count", "sizes"), PUBLISHED.values(), ids=PUBLISHED
)
def test_published_sizes(model, published, entries, count, sizes) -> None:
    shapes, built = published(), family_of(model).network(entries)
    assert built.faults(shapes) == [] and parameters(built) == count
    spec = built.module.spec
    assert {name: getattr(spec, name) for name in sizes} == sizes
    assert can_compile(spec, torch.float32) == (model not in ("emu3_5", "liquid"))
    full = writer_of(model, "full")
    if entries == full.config:  # what is written is what is published
        written = shapes_of(full.shapes(built))
        assert written.items() <= {built.name(key): shape for key, shape in shapes.items()}.items()


JANUS = writer_of("janus_pro", "full")
SMALLER = {
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    ("size", "count"),
    [({}, 6_658_899_968), (SMALLER, 1_518_608_384)],
    ids=["7B", "1B"],
)
def test_published_sizes_of_janus(size, count) -> None:
    """A config.json with the entries that the authors' files have; the others are defaults."""
    text = JANUS.config["text_config"] | size
    width = text.get("hidden_size", 4096)
    config = transformers.JanusConfig(
        text_config=transformers.LlamaConfig(**text).to_dict(),
        vq_config={"projection_dim": width, "image_token_embed_dim": width},
        vision_config={"projection_dim": width},
    )
    state = state_of(transformers.JanusForConditionalGeneration, config)
    written = authors_config(config) | {"language_config": text}
    for content, keys in ((config.to_dict(), state), (written, authors_state(state))):
        built = family_of("janus_pro").network(content)
        assert built.faults(shapes_of(keys)) == [] and parameters(built) == count
        assert built.module.spec.vocab == 102400 + 16384
    if not size:
        built = JANUS.networks()[0]
        assert shapes_of(JANUS.shapes(built)).items() <= shapes_of(state).items()
        assert parameters(built) == count


ONE = {"num_hidden_layers": 1}
XL_HEAD = {name: XL[name] for name in XL if name not in ("cls_token_num", "rope_base")} | ONE
DRAFTERS = {  # model, published keys and shapes, config.json of target and drafter, weights
    "Anole": ("anole", lambda: drafter_of(chameleon()), CONFIG, CONFIG | ONE, 504_393_728),
    "Lumina-mGPT": ("anole", lambda: drafter_of(chameleon(1)), CONFIG, CONFIG | ONE, 504_393_728),
    "LlamaGen": (
        "llamagen", lambda: drafter_of(llamagen(), first_norm=False), XL,
        XL_HEAD | {"rms_norm_eps": 1e-6}, 44_567_040,
    ),
}  # fmt: skip


@pytest.mark.parametrize(
    ("model", "published", "entries", "head", "count"), DRAFTERS.values(), ids=DRAFTERS
)
def test_drafters(model, published, entries, head, count) -> None:
    shapes, family = published(), family_of(model)
    target = family.network(entries).module.spec
    built = drafter_network(head, family.drafter(head, target), target, "config.json")
    assert built.keys.keys() == shapes.keys() and built.faults(shapes) == []
    assert parameters(built) == count
    if model == "llamagen":
        spec = built.module.spec
        assert spec.image_rope == ImageRope(119, 16) and spec.norm_eps == 1e-6
    del shapes["embed_tokens.weight"]
    assert built.faults(shapes) == []


def write_hollow(path: Path, shapes: Shapes) -> None:
    """A bf16 safetensors file with a true header and holes for numbers: no room on the disk."""
    entries, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * torch.Size(shape).numel()
        entries[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    header = json.dumps(entries).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        file.truncate(8 + len(header) + end)


def test_inspect_at_full_size(tmp_path, capsys) -> None:
    """Reads headers only: the files have no contents, and 14 GB of them."""
    folder, drafter = tmp_path / "Anole-7b-v0.1-hf", tmp_path / "anole_drafter"
    tokenizer = tmp_path / "chameleon" / "tokenizer"
    for path in (folder, drafter, tokenizer):
        path.mkdir(parents=True)
    placed = {key: f"model-{i % 3}.safetensors" for i, key in enumerate(chameleon())}
    for file in set(placed.values()):
        held = {key: shape for key, shape in chameleon().items() if placed[key] == file}
        write_hollow(folder / file, held)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_hollow(drafter / "model.safetensors", drafter_of(chameleon()))
    (drafter / "config.json").write_text(json.dumps(CONFIG | ONE))
    byte_tokenizer(CODES).save(str(tokenizer / "text_tokenizer.json"))
    write_config(VQGAN, tokenizer / "vqgan.yaml")
    with torch.device("meta"):
        codec = shapes_of(Vqgan(VQGAN).state_dict())
    write_hollow(tokenizer / "vqgan.safetensors", codec)

    given = {"model_path": str(folder), "drafter_path": str(drafter)}
    settings = InspectSettings.of(model="anole", dtype="bf16", device="cpu", **given)
    report = Examination(settings.engine)
    assert not report.faults
    memory = {name: longest for name, (_, longest) in report.memory.items()}
    assert memory["target weights"] == 2 * 6_778_785_792
    assert memory["drafter weights"] == 2 * 504_393_728
    # of 32 layers and the drafter's one; CPUs keep them in fp32
    cache = 2 * 2 * 33 * 4 * (4096 + 59) * HIDDEN
    assert memory["keys and values"] == pytest.approx(cache, rel=0.01)
    weights = 27.19e6 + 39.3e6 + CODES * 256
    assert memory["image tokenizer"] == pytest.approx(4 * weights, rel=0.03)
    # five tensors of the finest level's size are alive at once, in fp32
    at_work = 5 * 4 * VQGAN.ch * VQGAN.resolution**2
    assert memory["image tokenizer at work"] == pytest.approx(at_work, rel=0.01)
    (tokenizer / "vqgan.safetensors").unlink()
    words = [f"--{flag}={value}" for flag, value in given.items()]
    assert main.main(["inspect", "--model=anole", *words]) == 1
    said = capsys.readouterr().out
    assert "found no vqgan.safetensors or vqgan.ckpt" in said
    assert f"{META_FILES}, to {tokenizer}, or name it" in said, "where it was found above"


@pytest.mark.parametrize("model", thinned(thinned(MODELS)))
def test_what_is_written_at_full_size_is_whole(model, tmp_path, monkeypatch) -> None:
    """Tokenizers and codecs have as many ids and codes as the weights, which are hollow here."""

    def hollow(folder: Path, config: dict, state: dict[str, torch.Tensor]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(config))
        write_hollow(folder / "model.safetensors", shapes_of(state))

    monkeypatch.setattr("scripts.checkpoints.published.write_weights", hollow)
    writer_of(model, "full")(target_folder(model, tmp_path))
    assert main.main(["inspect", f"--model={model}", f"--model_path={tmp_path}"]) == 0
