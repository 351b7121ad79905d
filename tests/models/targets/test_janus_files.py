"""Janus-Pro's files: both layouts give the same networks, and each fault is one clear line."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from families import extracted
from PIL import Image
from safetensors.torch import load_file, save_file
from small import write_shards
from small_janus import JanusSizes, authors_config, authors_state, janus_settings, write_janus
from transformers import JanusConfig, JanusForConditionalGeneration, LlamaConfig

import main
from configs.schema import LanternSettings, MethodSettings
from decoding.images import Job
from models.base import TargetOptions
from models.placement import dispatch
from models.registry import FAMILIES, load_codec
from models.targets.janus_network import janus_network
from runs.measure import measure
from runs.session import Session, open_session

CPU = torch.device("cpu")
SIZES = JanusSizes()


@pytest.fixture(scope="module")
def originals(tmp_path_factory) -> dict[bool, Path]:
    """Folders by whether they have the authors' layout."""
    root = tmp_path_factory.mktemp("janus")
    return {authors: write_janus(root / str(authors), authors=authors) for authors in (False, True)}


@pytest.fixture
def folder(originals, tmp_path) -> Path:
    """A copy in transformers' layout that a test may damage."""
    return Path(shutil.copytree(originals[False], tmp_path / "copy"))


@pytest.fixture
def authors(originals, tmp_path) -> Path:
    """A copy in the authors' layout that a test may damage."""
    return Path(shutil.copytree(originals[True], tmp_path / "copy"))


def load(folder: Path, method: str = "ar") -> Session:
    return open_session(janus_settings(folder).with_method(MethodSettings(method)))


def change_json(path: Path, **entries: object) -> None:
    """Replace entries; a dotted name, written with __, leads into a part."""
    content = json.loads(path.read_text())
    for name, value in entries.items():
        *parts, last = name.split("__")
        place = content
        for part in parts:
            place = place[part]
        place[last] = value
    path.write_text(json.dumps(content))


def change_weights(path: Path, change: Callable[[dict], object]) -> None:
    state = load_file(path)
    change(state)
    save_file(state, path)


def test_both_layouts_are_the_same_networks(originals) -> None:
    ours, theirs = (load(originals[authors]).target for authors in (False, True))
    expected = ours.transformer.state_dict()
    found = theirs.transformer.state_dict()
    assert found.keys() == expected.keys() and ours.vocab == theirs.vocab
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    wanted = ours.images.model.state_dict()
    assert all(
        torch.equal(value, wanted[k]) for k, value in theirs.images.model.state_dict().items()
    )


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards(suffix, folder, originals) -> None:
    write_shards(folder, suffix)
    found, expected = (
        load(place).target.transformer.state_dict() for place in (folder, originals[False])
    )
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_codes_embedding_is_their_vectors_after_the_two_layers(originals) -> None:
    state = load_file(originals[False] / "model.safetensors")
    target = load(originals[False]).target
    x = state["model.generation_embeddings.weight"].double()
    for name in ("fc1", "hidden_layers.0"):
        x = torch.nn.functional.gelu(x) if name != "fc1" else x
        weight, bias = (state[f"model.generation_aligner.{name}.{p}"] for p in ("weight", "bias"))
        x = x @ weight.double().T + bias.double()
    torch.testing.assert_close(target.embedding()[target.vocab.first_id :], x, rtol=0, atol=1e-12)
    text = state["model.language_model.embed_tokens.weight"].double()
    assert torch.equal(target.embedding()[: target.vocab.first_id], text)


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("model_type", "chameleon", r"model_type is 'chameleon'; allowed for --model janus_pro: "),
        ("text_config__vocab_size", 999, "vocab_size is 999, the weights hold 264"),
        ("text_config__num_hidden_layers", 3, "num_hidden_layers is 3, the weights hold 2"),
        ("text_config__hidden_size", "32", "hidden_size is '32'"),
        ("text_config__head_dim", 8, "head_dim is 8; allowed: 16"),
        ("text_config__hidden_act", "gelu", "hidden_act is 'gelu'; allowed: 'silu'"),
        ("text_config__max_position_embeddings", 16, "max_position_embeddings is 16; an image "),
        ("text_config__rope_parameters", {"rope_type": "yarn"}, "rope_parameters is "),
        ("vq_config__num_embeddings", 0, r"vq_config\.num_embeddings is 0; allowed: whole"),
        ("vq_config__num_hidden_layers", 3, r"vq_config\.num_hidden_layers is 3; allowed: 2"),
        ("vq_config__num_embeddings", 25, "the codec has 24 codes, config.json 25"),
        ("vision_config__image_size", 65, "image_size is 65; allowed: multiples of 16"),
        ("vision_config__num_image_tokens", 9, "num_image_tokens is 9; allowed: 16"),
    ],
)
def test_a_config_that_does_not_fit(entry, value, message, folder) -> None:
    change_json(folder / "config.json", **{entry: value})
    with pytest.raises(ValueError, match=message):
        load(folder)


@pytest.mark.parametrize(
    ("entry", "value", "message"),
    [
        ("gen_aligner_config", None, r"lacks the entry 'gen_aligner_config\.params'"),
        ("gen_aligner_config__params__depth", 1, r"depth is 1; allowed: 2"),
        ("gen_vision_config__cls", "VQ-8", "gen_vision_config.cls is 'VQ-8'; allowed: 'VQ-16'"),
        ("gen_head_config__params__image_token_embed", None, "image_token_embed is None"),
        ("language_config__hidden_size", 64, "hidden_size is 64, the weights hold 32"),
        ("language_config__num_hidden_layers", 1, "num_hidden_layers is 1, the weights hold 2"),
    ],
)
def test_an_authors_config_that_does_not_fit(entry, value, message, authors) -> None:
    change_json(authors / "config.json", **{entry: value})
    with pytest.raises(ValueError, match=message):
        load(authors)


LAYER = "model.language_model.layers.1.self_attn.q_proj.weight"
HEAD = "model.generation_head.vision_head.bias"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop(LAYER), f"missing key {LAYER}"),
        (lambda state: state.pop(HEAD), f"missing key {HEAD}"),
        (
            lambda state: state.update({HEAD: torch.ones(23)}),
            r"vision_head\.bias has shape \(23,\)",
        ),
        (
            lambda state: state.update({"model.language_model.x": torch.ones(2)}),
            r"unexpected key model\.language_model\.x",
        ),
        (
            lambda state: [state.pop(key) for key in list(state) if ".vqmodel." in key],
            r"no image codec among the weights \(keys model\.vqmodel\.\*\)",
        ),
        (
            lambda state: state.pop("model.vqmodel.decoder.up.1.block.0.conv1.weight"),
            r"weights model\.vqmodel\.\*: .*missing decoder\.conv_blocks\.1\.res\.0\.conv1\.weight",
        ),
    ],
    ids=["layer", "head", "shape", "unexpected", "no codec", "codec key"],
)
def test_weights_that_do_not_fit(change, message, folder) -> None:
    change_weights(folder / "model.safetensors", change)
    with pytest.raises(ValueError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


def test_a_bin_with_code_in_it_is_not_run(authors) -> None:
    with (authors / "pytorch_model.bin").open("wb") as file:
        pickle.dump({"gen_embed.weight": print}, file, 2)
    with pytest.raises(ValueError, match=r"cannot read .*pytorch_model\.bin: damaged, or more"):
        load(authors)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), r"missing file: .*tokenizer\.json"),
        (lambda path: path.write_text("{}"), r"tokenizer\.json is not a tokenizer file"),
        (
            lambda path: path.write_text(path.read_text().replace("begin_of_image", "x")),
            r"tokenizer\.json has no token '<begin_of_image>'",
        ),
    ],
)
def test_a_tokenizer_that_cannot_be_used(damage, message, folder) -> None:
    damage(folder / "tokenizer.json")
    with pytest.raises(ValueError, match=message):
        load(folder)


@pytest.mark.parametrize("layout", [False, True])
def test_inspect(layout, originals, capsys) -> None:
    words = f"inspect --json --model janus_pro --model_path {originals[layout]} --cfg 5"
    assert main.main(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    texts = {(line["part"], line["item"]): line["text"] for line in found["findings"]}
    assert "2 layers, hidden 32, 2 heads, 288 ids" in texts["target", "config.json"]
    assert "an image is 4 x 4 tokens" in texts["parts", "together"]
    assert "24 codes, 64 x 64 pixels" in texts["image codec", "files"]
    assert {"target weights", "target keys and values", "image codec"} <= found["memory"].keys()


def test_inspect_names_every_fault(folder, capsys) -> None:
    change_weights(folder / "model.safetensors", lambda state: state.pop(HEAD))
    (folder / "tokenizer.json").unlink()
    words = f"inspect --json --model janus_pro --model_path {folder}"
    assert main.main(words.split()) == 1
    found = json.loads(capsys.readouterr().out)
    faults = {line["part"]: line for line in found["findings"] if not line["fits"]}
    assert faults.keys() == {"target", "text tokenizer"}
    assert faults["target"]["details"] == [f"missing key {HEAD}"]


def test_the_command_line_draws_an_image(originals, tmp_path) -> None:
    recipe = Path(__file__).parents[3] / "configs" / "janus_pro.yaml"
    words = f"generate_images --config {recipe} --model_path {originals[True]} --device cpu"
    words += f" --dtype fp32 --method jacobi --output_dir {tmp_path}/out --prompt"
    assert main.main([*words.split(), "a red cat"]) == 0
    (path,) = (tmp_path / "out" / "img").iterdir()
    assert Image.open(path).size == (64, 64)
    run = json.loads((tmp_path / "out" / "run.json").read_text())
    assert run["settings"]["cfg"] == 5.0 and run["settings"]["top_k"] == 0


def test_extracted_tokens_are_the_codecs(originals, tmp_path) -> None:
    folder = originals[False]
    pixels, codes = extracted("janus_pro", folder, (64, 64), tmp_path)
    codec = load_codec("janus_pro", str(folder), TargetOptions(torch.float32, CPU))
    assert torch.equal(codes, codec.images.encode(pixels[None]))
    assert codec.length("a cat") == load(folder).target.length("a cat")


def test_nearest_codes_are_of_the_vectors_that_are_decoded(folder) -> None:
    found = FAMILIES["janus_pro"].codebook(folder, TargetOptions(torch.float32, CPU))
    assert found.shape == (24, 4)
    torch.testing.assert_close(found.norm(dim=-1), torch.ones(24))
    assert main.main(f"vq_distances --model janus_pro --model_path {folder}".split()) == 0
    relaxed = MethodSettings("eagle2", verifier="lantern", relaxed=LanternSettings(k=5, delta=0.5))
    session = open_session(janus_settings(folder).with_method(relaxed))
    assert session.open_engine().verifier.name == "lantern"
    found = measure(session.open_engine(), [Job("0", "a cat", 3)]).images[0]
    assert len(found.codes) == SIZES.side**2


@pytest.mark.parametrize("places", [["cpu", "cpu"], ["cpu", "disk"]])
def test_layers_that_accelerate_holds(places, originals, tmp_path) -> None:
    pytest.importorskip("accelerate")
    job = [Job("0", "a cat", 3)]
    session, opened = (load(originals[False], "eagle2") for _ in range(2))
    dispatch(opened.target, places, CPU, str(tmp_path / "offload"))
    found, plain = (
        measure(each.open_engine(MethodSettings(method)), job).images[0].codes
        for each, method in ((opened, "eagle2"), (session, "ar"))
    )
    assert torch.equal(found, plain)


SMALL = {
    "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
    "num_attention_heads": 16, "num_key_value_heads": 16,
}  # fmt: skip


@pytest.mark.parametrize(
    ("size", "parameters"),
    [({"num_hidden_layers": 30}, 6_658_899_968), (SMALL, 1_518_608_384)],
    ids=["7B", "1B"],
)
def test_the_published_sizes_on_the_meta_device(size, parameters) -> None:
    """A config.json with the entries that the authors' files have; the others are defaults."""
    text = {"vocab_size": 102400, "max_position_embeddings": 16384} | size
    width = text.get("hidden_size", 4096)
    config = JanusConfig(
        text_config=LlamaConfig(**text).to_dict(),
        vq_config={"projection_dim": width, "image_token_embed_dim": width},
        vision_config={"projection_dim": width},
    )
    with torch.device("meta"):
        shapes = JanusForConditionalGeneration(config).state_dict()
    written = authors_config(config) | {"language_config": text}
    for content, state in ((config.to_dict(), shapes), (written, authors_state(shapes))):
        network = janus_network(content)
        assert network.faults({key: tuple(value.shape) for key, value in state.items()}) == []
        assert sum(weight.numel() for weight in network.module.parameters()) == parameters
        assert network.module.spec.vocab == 102400 + 16384
