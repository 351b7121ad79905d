"""Files of every family: layouts are one, `inspect` and the commands read them, sizes published."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from families import PLAIN, SMALL, decoded, extracted, same_weights
from PIL import Image
from safetensors.torch import load_file, save_file
from small import write_shards
from small_emu3 import AUTHORS, Emu3Sizes, emu3_settings, old_names, write_emu3
from small_janus import authors_config, authors_state
from small_liquid import FIRST, liquid_settings, write_liquid
from small_llamagen import LlamaGenSizes, write_llamagen
from transformers import (
    Emu3Config,
    Emu3ForConditionalGeneration,
    GemmaConfig,
    GemmaForCausalLM,
    JanusConfig,
    JanusForConditionalGeneration,
    LlamaConfig,
)

import main
from configs.fields import SettingsError
from configs.schema import ROOT, LanternSettings, MethodSettings, RunSettings
from models.base import TargetOptions
from models.files.network import Network
from models.fused import can_fuse
from models.placement import dispatch
from models.registry import FAMILIES, load_codec
from models.targets.text_encoder import TextEncoder
from runs.session import open_session

CPU = torch.device("cpu")
OPTIONS = TargetOptions(torch.float32, CPU)


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> dict[str, Path]:
    """Folders by layout, each in a folder of its own."""
    return {name: small.write(tmp_path_factory.mktemp("family")) for name, small in SMALL.items()}


@pytest.fixture
def folder(request, originals, tmp_path) -> Path:
    """A copy of the layout `name` that a test may change."""
    return Path(shutil.copytree(originals[request.getfixturevalue("name")], tmp_path / "copy"))


@pytest.mark.parametrize(
    ("name", "suffix"), [("emu3", "safetensors"), ("janus_pro", "bin"), ("liquid", "bin")]
)
def test_shards(name, suffix, folder, originals) -> None:
    write_shards(folder, suffix)
    one, other = (SMALL[name].load(place).target for place in (folder, originals[name]))
    assert same_weights(one.transformer, other.transformer)
    assert same_weights(one.images.model, other.images.model)


def test_shards_of_transformers(originals, tmp_path) -> None:
    folder = write_liquid(tmp_path / "shards", shard="40KB")
    assert len([*folder.glob("model-*.safetensors")]) > 1
    one, other = (SMALL["liquid"].load(place).target for place in (folder, originals["liquid"]))
    assert same_weights(one.transformer, other.transformer)


def test_both_layouts_of_janus_are_the_same_networks(originals) -> None:
    names = ("janus_pro", "janus_pro of the authors")
    one, other = (SMALL[name].load(originals[name]).target for name in names)
    assert one.vocab == other.vocab and same_weights(one.transformer, other.transformer)
    assert same_weights(one.images.model, other.images.model)


def test_the_authors_layout_of_emu3(tmp_path) -> None:
    """Decoder, tokenizer and codec are those of the same weights in transformers' layout."""
    sizes = Emu3Sizes(words=AUTHORS)
    twin = open_session(emu3_settings(write_emu3(tmp_path / "twin", sizes))).target
    authors = open_session(emu3_settings(write_emu3(tmp_path / "Emu3-Gen", sizes, "authors")))
    target = authors.target
    assert (target.vocab, target.grid, target.spec) == (twin.vocab, twin.grid, twin.spec)
    assert same_weights(target.transformer, twin.transformer)
    assert same_weights(target.images.model, twin.images.model)
    for text in ("A red cat's hat, 720*720\n\n", "Bär  läuft  中文", "<|image start|>x"):
        assert torch.equal(target.prompt(text, 2).ids, twin.prompt(text, 2).ids)
    images = decoded(authors), decoded(authors, MethodSettings("eagle2"))
    assert all(map(torch.equal, *images))


@pytest.mark.parametrize("name", ["liquid"])
def test_a_file_that_repeats_the_embedding_as_head(name, folder, originals) -> None:
    path = folder / "model.safetensors"
    state = {key: value.clone() for key, value in load_file(path).items()}
    head = state["model.embed_tokens.weight"].clone()
    save_file(state | {"lm_head.weight": head}, path, {"format": "pt"})
    one, other = (SMALL[name].load(place).target for place in (folder, originals[name]))
    assert same_weights(one.transformer, other.transformer)


@pytest.mark.parametrize("name", ["llamagen"])
def test_weights_in_a_bin_file(name, originals, tmp_path) -> None:
    shutil.copytree(originals[name].parent, tmp_path / "copy")
    folder = tmp_path / "copy" / originals[name].name
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    one, other = (SMALL[name].load(place).target for place in (folder, originals[name]))
    assert same_weights(one.transformer, other.transformer)


@pytest.mark.parametrize(
    ("name", "part", "entries"),
    [
        ("liquid", None, {"rope_parameters": None, **FIRST}),
        # the public config.json has such an entry, and no theta: it is the family's
        (
            "emu3",
            "text_config",
            {"rope_scaling": {"rope_type": "default"}, "rope_parameters": None},
        ),
    ],
)
def test_older_entries_mean_the_same(name, part, entries, folder, originals) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    (config if part is None else config[part]).update(entries)
    path.write_text(json.dumps(config))
    one, other = (SMALL[name].load(place).target.spec for place in (folder, originals[name]))
    assert one == other and one.rope_theta == {"liquid": 1e4, "emu3": 1e6}[name]


def test_the_codes_embedding_of_janus_is_their_vectors_after_two_layers(originals) -> None:
    state = load_file(originals["janus_pro"] / "model.safetensors")
    target = SMALL["janus_pro"].load(originals["janus_pro"]).target
    x = state["model.generation_embeddings.weight"].double()
    for name in ("fc1", "hidden_layers.0"):
        x = torch.nn.functional.gelu(x) if name != "fc1" else x
        weight, bias = (state[f"model.generation_aligner.{name}.{p}"] for p in ("weight", "bias"))
        x = x @ weight.double().T + bias.double()
    torch.testing.assert_close(target.embedding()[target.vocab.first_id :], x, rtol=0, atol=1e-12)
    text = state["model.language_model.embed_tokens.weight"].double()
    assert torch.equal(target.embedding()[: target.vocab.first_id], text)


def test_the_vqgan_of_liquid_next_to_the_checkpoint(originals, tmp_path) -> None:
    """Meta's place, chameleon/tokenizer next to the folder, or --tokenizer_path."""
    folder = Path(shutil.copytree(originals["liquid"], tmp_path / "copy"))
    (folder / "tokenizer").rename(tmp_path / "vqgan")
    settings = liquid_settings(folder).with_method(PLAIN)
    given = open_session(replace(settings, tokenizer_path=str(tmp_path / "vqgan"))).target
    (tmp_path / "chameleon").mkdir()
    (tmp_path / "vqgan").rename(tmp_path / "chameleon/tokenizer")
    beside = open_session(settings).target
    codes = torch.arange(16)[None]
    expected = SMALL["liquid"].load(originals["liquid"]).target.to_image(codes)
    assert torch.equal(given.to_image(codes), expected)
    assert torch.equal(beside.to_image(codes), expected)


REPORTS = {
    "emu3": {
        ("target", "config.json"): "2 layers, hidden 32, 4 heads, 289 ids",
        ("text tokenizer", "files"): "image codes 265 to 288",
        ("parts", "together"): "4 x 5 tokens and 4 row ends",
        ("image codec", "files"): "weights vqmodel.*: 24 codes",
    },
    "janus_pro": {
        ("target", "config.json"): "2 layers, hidden 32, 2 heads, 288 ids",
        ("parts", "together"): "an image is 4 x 4 tokens",
        ("image codec", "files"): "24 codes, 64 x 64 pixels",
    },
    "liquid": {
        ("target", "config.json"): "2 layers, hidden 32, 4 heads, 287 ids",
        ("text tokenizer", "files"): "tokenizer.json: 263 ids",
        ("parts", "together"): "4 x 4 tokens",
        ("image tokenizer", "files"): "vqgan.safetensors: 24 codes, 8 x 8 pixels",
    },
}
REPORTS["janus_pro of the authors"] = REPORTS["janus_pro"]


@pytest.mark.parametrize("name", REPORTS)
def test_inspect(name, originals, capsys) -> None:
    model = name.split()[0]
    words = f"inspect --json --model {model} --model_path {originals[name]}"
    assert main.main([*words.split(), *(["--target_size=40x32"] if model == "emu3" else [])]) == 0
    report = json.loads(capsys.readouterr().out)
    texts = {(row["part"], row["item"]): row["text"] for row in report["findings"]}
    for row, text in REPORTS[name].items():
        assert text in texts[row]
    image = "image tokenizer" if model == "liquid" else "image codec"
    assert {"target weights", "target keys and values", image} <= report["memory"].keys()


@pytest.mark.parametrize("name", ["janus_pro", "liquid"])
def test_inspect_names_every_fault(name, folder, capsys) -> None:
    (folder / "tokenizer.json").unlink()
    (folder / "model.safetensors").unlink()
    assert main.main(f"inspect --json --model {name} --model_path {folder}".split()) == 1
    rows = json.loads(capsys.readouterr().out)["findings"]
    faults = {row["part"]: row["text"] for row in rows if not row["fits"]}
    assert "missing file" in faults["text tokenizer"] and "hf download" in faults["target"]


RECIPES = {  # flags, and the size of the image
    "emu3": ("--target_size 48x16", (48, 16)),
    "janus_pro of the authors": ("", (64, 64)),
    "liquid": ("", (8, 8)),
}


@pytest.mark.parametrize("name", RECIPES)
def test_the_recipe_generates_an_image(name, originals, tmp_path) -> None:
    flags, size = RECIPES[name]
    recipe = ROOT / "configs" / f"{name.split()[0]}.yaml"
    words = f"generate_images --config {recipe} --model_path {originals[name]} --device cpu {flags}"
    words += f" --dtype fp32 --method jacobi --output_dir {tmp_path}/out --prompt"
    assert main.main([*words.split(), "a red cat"]) == 0
    (path,) = (tmp_path / "out" / "img").iterdir()
    assert Image.open(path).size == size
    settings = json.loads((tmp_path / "out" / "run.json").read_text())["settings"]
    assert "janus" not in name or (settings["cfg"], settings["top_k"]) == (5.0, 0)


def test_llamagen_finds_its_parts_and_generates_an_image(tmp_path) -> None:
    folder = write_llamagen(tmp_path, LlamaGenSizes(side=16))
    words = f"generate_images --model llamagen --model_path {folder} --device cpu --cfg 7.5"
    words += f" --output_dir {tmp_path}/out --prompt"
    assert main.main([*words.split(), "a red cat on the mat"]) == 0
    (path,) = (tmp_path / "out" / "img").iterdir()
    assert Image.open(path).size == (32, 32)


@pytest.mark.parametrize(
    ("name", "size"), [("emu3", (32, 40)), ("janus_pro", (64, 64)), ("liquid", (8, 8))]
)
def test_extracted_tokens_are_the_codecs(name, size, originals, tmp_path) -> None:
    sizes = {"target_size": "40x32"} if name == "emu3" else {}
    words = [f"--{flag}={value}" for flag, value in sizes.items()]
    pixels, codes = extracted(name, originals[name], size, tmp_path, *words)
    codec = load_codec(name, str(originals[name]), replace(OPTIONS, **sizes))
    assert torch.equal(codes, codec.images.encode(pixels[None]))
    assert (
        codec.length("a cat")
        == SMALL[name].load(originals[name]).target.prompt("a cat", 1).ids.shape[1]
    )


@pytest.mark.parametrize("name", ["emu3", "janus_pro", "liquid"])
def test_relaxed_acceptance_with_the_codecs_neighbours(name, folder) -> None:
    codebook = FAMILIES[name].codebook(folder, OPTIONS)
    assert codebook.shape == (24, 4)
    if name == "janus_pro":  # the vectors that are decoded
        torch.testing.assert_close(codebook.norm(dim=-1), torch.ones(24))
    assert main.main(f"vq_distances --model {name} --model_path {folder}".split()) == 0
    relaxed = MethodSettings("eagle2", verifier="lantern", relaxed=LanternSettings(k=5, delta=0.5))
    session = SMALL[name].load(folder, relaxed)
    assert session.open_engine().verifier.name == "lantern"
    tokens = session.target.grid.tokens
    assert [len(codes) for codes in decoded(session, relaxed)] == [tokens] * 3


def test_the_table_of_neighbours_of_llamagen_is_of_the_stored_vectors(originals) -> None:
    """As published: not of the vectors of length 1 that are decoded."""
    path = originals["llamagen"].parent / "vq_ds16_t2i.pt"
    options = replace(OPTIONS, vq_path=str(path))
    codebook = FAMILIES["llamagen"].codebook(originals["llamagen"], options)
    assert torch.equal(codebook, torch.load(path)["model"]["quantize.embedding.weight"])
    assert (codebook.norm(dim=-1) - 1).abs().max() > 0.1


@pytest.mark.parametrize(
    ("name", "mode", "places"),
    [("emu3", "sequential", ["cpu", "disk"]), ("janus_pro", "parallel", ["disk", "cpu"])],
)
def test_layers_that_accelerate_holds(name, mode, places, originals, tmp_path) -> None:
    pytest.importorskip("accelerate")
    eagle = MethodSettings("eagle2")
    settings = SMALL[name].settings(originals[name])
    opened = open_session(replace(settings, cfg_mode=mode, method=eagle))
    dispatch(getattr(opened.target, "target", opened.target), places, CPU, str(tmp_path / "off"))
    plain = decoded(SMALL[name].load(originals[name]))
    assert all(map(torch.equal, decoded(opened, eagle), plain))


@pytest.mark.parametrize("name", ["janus_pro", "liquid"])
def test_guidance_rows_one_after_the_other(name, originals) -> None:
    session = SMALL[name].load(originals[name], MethodSettings("eagle2"))
    apart = open_session(replace(session.settings, cfg_mode="sequential"))
    images = decoded(apart, MethodSettings("eagle2")), decoded(session)
    assert all(map(torch.equal, *images))


def test_llamagen_knows_lengths_of_prompts_without_its_text_encoder(originals, monkeypatch) -> None:
    target = SMALL["llamagen"].load(originals["llamagen"]).target
    monkeypatch.setattr(TextEncoder, "__call__", None)
    assert target.length("a cat") == LlamaGenSizes().slots


def test_a_drafter_of_llamagen_without_an_embedding_takes_the_targets(originals, tmp_path) -> None:
    shutil.copytree(originals["llamagen"].parent, tmp_path / "copy")
    path = tmp_path / "copy" / originals["llamagen"].name / "drafter" / "pytorch_model.bin"
    state = torch.load(path)
    del state["embed_tokens.weight"]
    torch.save(state, path)
    session = SMALL["llamagen"].load(path.parent.parent, MethodSettings("adt"))
    assert torch.equal(session.drafter.network.embedding.weight, session.target.embedding())


def test_size_and_negative_prompt_of_emu3(originals) -> None:
    settings = RunSettings(prompt="a", model="emu3", model_path="BAAI/Emu3-Gen-hf", method=PLAIN)
    assert settings.target_size == "720" and settings.negative_prompt.startswith("lowres, bad anat")
    assert settings.identity()["negative_prompt"] == settings.negative_prompt
    assert "negative_prompt" not in RunSettings(prompt="a cat", method=PLAIN).identity()
    small = emu3_settings(originals["emu3"]).with_method(PLAIN)
    other = open_session(replace(small, negative_prompt="grey"))
    assert not torch.equal(decoded(other)[0], decoded(open_session(small))[0])


@pytest.mark.parametrize(
    ("model", "flags", "message"),
    [
        ("emu3", {"target_size": "36"}, "in multiples of 8, at most 760 x 760"),
        ("emu3", {"target_size": "768"}, "at most 760"),
        ("emu3", {"target_size": "x"}, "got 'x'"),
        ("liquid", {"target_size": "768"}, "liquid makes images of 512 x 512 pixels"),
        ("tiny", {"negative_prompt": "x"}, "'x' works only with .*emu3"),
    ],
)
def test_flags_that_a_model_does_not_take(model, flags, message) -> None:
    with pytest.raises(SettingsError, match=f"--{next(iter(flags))}: .*{message}"):
        RunSettings(prompt="a", model=model, model_path="a/b", method=PLAIN, **flags)


def fits(network: Network, module: torch.nn.Module | dict) -> bool:
    """Return whether a network takes the weights of one of transformers' as they are."""
    state = module if isinstance(module, dict) else module.state_dict()
    return not network.faults({key: tuple(value.shape) for key, value in state.items()})


def parameters(network: Network) -> int:
    return sum(weight.numel() for weight in network.module.parameters())


def test_published_sizes_of_emu3() -> None:
    """8B: config.json as the public files have it; the sizes are transformers' defaults."""
    scaling = {"rope_scaling": {"rope_type": "default"}}
    with torch.device("meta"):
        theirs = Emu3ForConditionalGeneration(Emu3Config(text_config=scaling, vocabulary_map={}))
    state = theirs.state_dict()
    assert len(state["lm_head.weight"]) == 184622
    built = FAMILIES["emu3"].network({"model_type": "emu3", "text_config": scaling})
    assert fits(built, state) and fits(built, old_names(state))
    spec = built.module.spec
    assert (spec.heads, spec.kv_heads, spec.max_positions, spec.rope_theta) == (32, 8, 9216, 1e6)
    assert parameters(built) == 6_979_588_096 + (184622 + 32768) * 4096


def test_published_sizes_of_liquid() -> None:
    """7B: config.json with Gemma's sizes and the ids that `resize_token_embeddings` leaves."""
    with torch.device("meta"):
        theirs = GemmaForCausalLM(GemmaConfig(vocab_size=256_000 + 8192))
    built = FAMILIES["liquid"].network({"model_type": "gemma", "vocab_size": 264_192})
    spec = built.module.spec
    assert fits(built, theirs)
    assert (spec.layers, spec.heads, spec.head_dim, spec.hidden) == (28, 16, 256, 3072)
    assert spec.max_positions == 2048 and not can_fuse(spec, torch.float32)
    # Gemma's 8.5 billion with more ids, and the head's rows of codes once more
    assert parameters(built) == 8_537_680_896 + 2 * 8192 * 3072


SMALLER = {
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    ("size", "count"),
    [({"num_hidden_layers": 30}, 6_658_899_968), (SMALLER, 1_518_608_384)],
    ids=["7B", "1B"],
)
def test_published_sizes_of_janus(size, count) -> None:
    """A config.json with the entries that the authors' files have; the others are defaults."""
    text = {"vocab_size": 102400, "max_position_embeddings": 16384} | size
    width = text.get("hidden_size", 4096)
    config = JanusConfig(
        text_config=LlamaConfig(**text).to_dict(),
        vq_config={"projection_dim": width, "image_token_embed_dim": width},
        vision_config={"projection_dim": width},
    )
    with torch.device("meta"):
        state = JanusForConditionalGeneration(config).state_dict()
    written = authors_config(config) | {"language_config": text}
    for content, keys in ((config.to_dict(), state), (written, authors_state(state))):
        built = FAMILIES["janus_pro"].network(content)
        assert fits(built, keys) and parameters(built) == count
        assert built.module.spec.vocab == 102400 + 16384
