"""Emu3's files: three layouts of the transformer are one, and each fault is one clear line."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from families import decoded, extracted
from PIL import Image
from safetensors.torch import load_file, save_file
from small import write_shards
from small_emu3 import AUTHORS, Emu3Sizes, emu3_settings, old_names, write_emu3
from transformers import Emu3Config, Emu3ForConditionalGeneration

import main
from configs.fields import SettingsError
from configs.schema import LanternSettings, MethodSettings, RunSettings
from models.base import TargetOptions
from models.placement import dispatch
from models.registry import FAMILIES, load_codec
from models.targets.emu3_files import network
from runs.session import Session, open_session

CPU = torch.device("cpu")
PLAIN = MethodSettings("ar")


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    return write_emu3(tmp_path_factory.mktemp("emu3") / "Emu3-Gen-hf", layout="old")


@pytest.fixture
def folder(original, tmp_path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(original, tmp_path / "copy"))


def load(folder: Path, method: MethodSettings = PLAIN) -> Session:
    return open_session(emu3_settings(folder).with_method(method))


def change_json(path: Path, part: str | None, **entries: object) -> None:
    content = json.loads(path.read_text())
    (content if part is None else content[part]).update(entries)
    path.write_text(json.dumps(content))


def change_weights(path: Path, change: Callable[[dict], object]) -> None:
    state = load_file(path)
    change(state)
    save_file(state, path)


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards(suffix, folder, original) -> None:
    write_shards(folder, suffix)
    found, expected = (load(place).target.transformer.state_dict() for place in (folder, original))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.fixture(scope="module")
def authors(tmp_path_factory) -> Path:
    """A folder in the authors' layout, with the codec next to it."""
    folder = tmp_path_factory.mktemp("authors") / "Emu3-Gen"
    return write_emu3(folder, Emu3Sizes(words=AUTHORS), "authors")


def test_the_authors_layout(authors, tmp_path) -> None:
    """Decoder, tokenizer and codec are those of the same weights in transformers' layout."""
    twin = load(write_emu3(tmp_path / "twin", Emu3Sizes(words=AUTHORS))).target
    found = load(authors).target
    assert found.vocab == twin.vocab and found.grid == twin.grid and found.spec == twin.spec
    for ours, expected in (
        (found.transformer, twin.transformer),
        (found.images.model, twin.images.model),
    ):
        wanted = expected.state_dict()
        assert all(torch.equal(value, wanted[key]) for key, value in ours.state_dict().items())
    for text in ("A red cat's hat, 720*720\n\n", "Bär  läuft  中文", "<|image start|>x"):
        assert torch.equal(found.prompt(text, 2).ids, twin.prompt(text, 2).ids)
    plain, eagle = MethodSettings("ar"), MethodSettings("eagle2")
    images = decoded(load(authors), plain), decoded(load(authors, eagle), eagle)
    assert all(torch.equal(a, b) for a, b in zip(*images, strict=True))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda home: shutil.rmtree(home.parent / "Emu3-VisionTokenizer"),
            r"no image codec among the weights .*no folder .*Emu3-VisionTokenizer: `hf download",
        ),
        (
            lambda home: (home.parent / "Emu3-VisionTokenizer/config.json").unlink(),
            r"missing file: .*Emu3-VisionTokenizer/config\.json",
        ),
        (lambda home: (home / "emu3.tiktoken").unlink(), r"missing file: .*emu3\.tiktoken"),
        (
            lambda home: (home / "emu3.tiktoken").write_text("? 1"),
            r"emu3\.tiktoken is not a file of tokens and ranks",
        ),
        (
            lambda home: (home / "emu3_vision_tokens.txt").unlink(),
            r"missing file: .*emu3_vision_tokens\.txt",
        ),
    ],
    ids=["codec", "codec's config", "no ranks", "damaged ranks", "image tokens"],
)
def test_an_authors_folder_that_is_not_whole(damage, message, authors, tmp_path) -> None:
    shutil.copytree(authors.parent, tmp_path / "copy")
    damage(tmp_path / "copy" / "Emu3-Gen")
    with pytest.raises(ValueError, match=message):
        load(tmp_path / "copy" / "Emu3-Gen")


@pytest.mark.parametrize(
    ("part", "entry", "value", "message"),
    [
        (None, "model_type", "janus", "holds Janus-Pro, as its config.json says; use --model jan"),
        ("text_config", "vocab_size", 999, "vocab_size is 999, the weights hold 289"),
        ("text_config", "num_hidden_layers", 3, "num_hidden_layers is 3, the weights hold 2"),
        ("text_config", "num_key_value_heads", 3, "num_key_value_heads is 3; allowed: divisors"),
        ("text_config", "num_key_value_heads", 1, r"k_proj.weight has shape \(16, 32\), expected"),
        ("text_config", "rope_scaling", {"type": "linear"}, "rope_scaling is "),
        ("text_config", "max_position_embeddings", 24, "an image of 4 x 5 tokens takes 24"),
        ("vq_config", "codebook_size", 25, r"quantize.embedding.weight has shape \(24, 4\), exp"),
        ("vq_config", "double_latent", True, "vq_config.double_latent is True; allowed: False"),
        ("vq_config", "base_channels", 33, "vq_config: ch_mult: found"),
        ("vq_config", "channel_multiplier", "x", "vq_config: "),
    ],
)
def test_a_config_that_does_not_fit(part, entry, value, message, folder) -> None:
    change_json(folder / "config.json", part, **{entry: value})
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_a_rope_scaling_that_scales_nothing(folder, original) -> None:
    """The public config.json has such an entry, and no theta: it is the family's."""
    path = folder / "config.json"
    change_json(path, "text_config", rope_scaling={"rope_type": "default"}, rope_parameters=None)
    assert load(folder).target.spec == load(original).target.spec
    assert load(folder).target.spec.rope_theta == 1e6


NORM = "text_model.model.layers.1.input_layernorm.weight"
CODEC = "vqmodel.decoder.up_block.up.0.block.0.conv1.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop(NORM), "missing key model.text_model.layers.1.input_layernorm"),
        (lambda state: state.update(x=torch.ones(2)), "unexpected key x"),
        (
            lambda state: state.update({"text_model.lm_head.weight": torch.ones(9, 32)}),
            r"vocab_size is 289|lm_head.weight has shape \(9, 32\), expected 289 rows",
        ),
        (lambda state: state.pop(CODEC), r"weights vqmodel\.\* does not fit.*missing key decoder"),
        (
            lambda state: state.update({CODEC: torch.ones(2)}),
            r"conv1.weight has shape \(2,\), expected",
        ),
        (
            lambda state: [state.pop(key) for key in list(state) if key.startswith("vqmodel.")],
            "no image codec among the weights",
        ),
    ],
    ids=["norm", "unexpected", "head", "codec key", "codec shape", "no codec"],
)
def test_weights_that_do_not_fit(change, message, folder) -> None:
    change_weights(folder / "model.safetensors", change)
    with pytest.raises(ValueError, match=message) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda path: path.unlink(), r"found no tokenizer\.json, nor emu3\.tiktoken and emu3_vis"),
        (
            lambda path: path.write_text(path.read_text().replace("extra_200", "x")),
            r"tokenizer\.json has no token '<\|extra_200\|>'",
        ),
        (
            lambda path: path.write_text(path.read_text().replace("token 000020", "x")),
            r"tokenizer\.json names 20 image codes from id 265 on; the codec has 24 codes",
        ),
    ],
)
def test_a_tokenizer_that_cannot_be_used(damage, message, folder) -> None:
    damage(folder / "tokenizer.json")
    with pytest.raises(ValueError, match=message):
        load(folder)


@pytest.mark.parametrize(
    ("size", "message"),
    [("36", "in multiples of 8, at most 760 x 760"), ("768", "at most 760"), ("x", "found 'x'")],
)
def test_sizes_that_cannot_be_drawn(size, message, original) -> None:
    with pytest.raises(SettingsError, match=f"--target_size: .*{message}"):
        replace(emu3_settings(original), target_size=size)


def test_size_and_negative_prompt_have_defaults(original) -> None:
    settings = RunSettings(
        prompt="a cat", model="emu3", model_path="BAAI/Emu3-Gen-hf", method=PLAIN
    )
    assert settings.target_size == "720" and settings.negative_prompt.startswith("lowres, bad anat")
    assert settings.identity()["negative_prompt"] == settings.negative_prompt
    assert "negative_prompt" not in RunSettings(prompt="a cat", method=PLAIN).identity()
    with pytest.raises(
        SettingsError, match="--negative_prompt: found 'x'; allowed: only with .*emu3"
    ):
        RunSettings(prompt="a cat", negative_prompt="x")


def test_the_negative_prompt_changes_the_image(original) -> None:
    settings = emu3_settings(original).with_method(PLAIN)
    other = open_session(replace(settings, negative_prompt="grey"))
    assert not torch.equal(decoded(other, PLAIN)[0], decoded(open_session(settings), PLAIN)[0])


def test_inspect(original, capsys) -> None:
    words = f"inspect --json --model emu3 --model_path {original} --target_size 40x32"
    assert main.main(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    texts = {(line["part"], line["item"]): line["text"] for line in found["findings"]}
    assert "2 layers, hidden 32, 4 heads, 289 ids" in texts["target", "config.json"]
    assert "image codes 265 to 288" in texts["text tokenizer", "files"]
    assert "4 x 5 tokens and 4 row ends" in texts["parts", "together"]
    assert {"target weights", "target keys and values", "image codec"} <= found["memory"].keys()


def test_the_command_line_draws_an_image(original, tmp_path) -> None:
    recipe = Path(__file__).parents[3] / "configs" / "emu3.yaml"
    words = f"generate_images --config {recipe} --model_path {original} --device cpu --dtype fp32"
    words += f" --target_size 48x16 --method jacobi --output_dir {tmp_path}/out --prompt"
    assert main.main([*words.split(), "a red cat"]) == 0
    (path,) = (tmp_path / "out" / "img").iterdir()
    assert Image.open(path).size == (48, 16)


def test_extracted_tokens_are_the_codecs(original, tmp_path) -> None:
    pixels, codes = extracted("emu3", original, (32, 40), tmp_path, "--target_size=40x32")
    codec = load_codec(
        "emu3", str(original), TargetOptions(torch.float32, CPU, target_size="40x32")
    )
    assert torch.equal(codes, codec.images.encode(pixels[None]))


def test_relaxed_acceptance_with_the_codecs_neighbours(folder) -> None:
    found = FAMILIES["emu3"].codebook(folder, TargetOptions(torch.float32, CPU))
    stored = load_file(folder / "model.safetensors")["vqmodel.quantize.embedding.weight"]
    assert torch.equal(found, stored)
    assert main.main(f"vq_distances --model emu3 --model_path {folder}".split()) == 0
    relaxed = MethodSettings("eagle2", verifier="lantern", relaxed=LanternSettings(k=5, delta=0.5))
    assert [len(codes) for codes in decoded(load(folder, relaxed), relaxed)] == [20] * 3


@pytest.mark.parametrize("places", [["cpu", "cpu"], ["cpu", "disk"]])
@pytest.mark.parametrize("mode", ["parallel", "sequential"])
def test_layers_that_accelerate_holds(mode, places, original, tmp_path) -> None:
    pytest.importorskip("accelerate")
    eagle = MethodSettings("eagle2")
    settings = replace(emu3_settings(original), cfg_mode=mode, method=eagle)
    opened = open_session(settings)
    target = getattr(opened.target, "target", opened.target)
    dispatch(target, places, CPU, str(tmp_path / "offload"))
    found, plain = decoded(opened, eagle), decoded(load(original), PLAIN)
    assert all(torch.equal(a, b) for a, b in zip(found, plain, strict=True))


def test_the_published_sizes_on_the_meta_device() -> None:
    """8B: config.json as the public files have it; the sizes are transformers' defaults."""
    scaling = {"rope_scaling": {"rope_type": "default"}}
    config = Emu3Config(text_config=scaling, vocabulary_map={})
    with torch.device("meta"):
        shapes = Emu3ForConditionalGeneration(config).state_dict()
    assert len(shapes["lm_head.weight"]) == 184622
    content = {"model_type": "emu3", "text_config": scaling}
    for state in (shapes, old_names(shapes)):
        built = network(content)
        assert built.faults({key: tuple(value.shape) for key, value in state.items()}) == []
    spec = built.module.spec
    assert (spec.heads, spec.kv_heads, spec.max_positions, spec.rope_theta) == (32, 8, 9216, 1e6)
    held = sum(weight.numel() for weight in built.module.parameters())
    assert held == 6_979_588_096 + (184622 + 32768) * 4096
