"""Liquid against transformers' Gemma: prompts, logits, whole images; files and their faults."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from families import cached_logits, decoded, extracted
from PIL import Image
from safetensors.torch import load_file, save_file
from small import write_shards
from small_liquid import FIRST, LiquidSizes, liquid_settings, write_liquid
from torch import Tensor
from transformers import GemmaConfig, GemmaForCausalLM

import main
from configs.fields import SettingsError
from configs.schema import LanternSettings, MethodSettings, RunSettings, SamplingSettings
from models.base import TargetOptions
from models.fused import can_fuse
from models.registry import FAMILIES, load_codec
from models.targets.liquid import Liquid
from models.targets.liquid_network import published_network
from runs.session import Session, open_session

SIZES = LiquidSizes()
PLAIN = MethodSettings("ar")
GREEDY = SamplingSettings(cfg=3.0, temperature=0.0)
TEXT, CODES = " A red cat.\n", [3, 20, 7, 0, 11, 23, 5]
REQUEST = " Generate an image based on this description."
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    return write_liquid(tmp_path_factory.mktemp("liquid") / "Liquid_V1_7B")


@pytest.fixture
def folder(original, tmp_path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(original, tmp_path / "copy"))


@pytest.fixture(scope="module")
def session(original) -> Session:
    return open_session(liquid_settings(original))


@pytest.fixture(scope="module")
def theirs(original) -> GemmaForCausalLM:
    """The oracle, from the same files."""
    return GemmaForCausalLM.from_pretrained(original, dtype=torch.float64).eval()


def load(folder: Path, method: MethodSettings = PLAIN) -> Session:
    return open_session(liquid_settings(folder).with_method(method))


def change_json(folder: Path, **entries: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def test_prompt_rows(session) -> None:
    """`<bos>text request<boi>` and `<bos><unconditional><boi>`, padded on the left."""
    target: Liquid = session.target
    text = target.prompts.tokenizer.encode(TEXT + REQUEST, add_special_tokens=False).ids
    assert len(text) == len(TEXT + REQUEST) and max(text) < 256
    rows = target.prompt(TEXT, 2)
    padding = len(text) - 1
    assert rows.ids.tolist() == [[258, *text, 260], [256] * padding + [258, 262, 260]]
    assert rows.starts.tolist() == [0, padding] and target.length(TEXT) == len(text) + 2
    alone = target.prompt(TEXT, 1)
    assert alone.ids.tolist() == rows.ids[:1].tolist() and alone.starts.tolist() == [0]
    assert (target.vocab.first_id, target.vocab.size) == (263, SIZES.codes)


def test_a_long_prompt_is_refused(session) -> None:
    with pytest.raises(ValueError, match=r"the prompt has 147 tokens .* takes 144: 'aaaa"):
        session.target.prompt("a" * 100, 2)


def their_logits(model: GemmaForCausalLM, target: Liquid, codes: list[int]) -> Tensor:
    """Logits (2, 1 + codes, codes of the model), one row after the other, without padding."""
    rows, first = target.prompt(TEXT, 2), target.vocab.first_id
    found = []
    for ids, start in zip(rows.ids, rows.starts.tolist(), strict=True):
        whole = torch.cat([ids[start:], torch.tensor(codes) + first])[None]
        with torch.no_grad():
            logits = model(input_ids=whole).logits[0, -len(codes) - 1 :]
        found.append(logits[:, first : first + target.vocab.size])
    return torch.stack(found)


@pytest.mark.parametrize(("dtype", "bound"), [("fp64", 1e-5), ("fp32", 1e-4)])
def test_logits_of_both_guidance_rows(dtype, bound, original, theirs) -> None:
    target = open_session(liquid_settings(original, dtype)).target
    expected = their_logits(theirs, target, CODES)
    assert expected.std() > 0.3
    ours = cached_logits(target, TEXT, CODES)
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=bound)


def test_a_greedy_image_is_that_of_the_authors_loop(session, theirs) -> None:
    """Both rows in one batch with a mask; guidance on logits; argmax among the image's ids."""
    target: Liquid = session.target
    rows, first = target.prompt("A red cat", 2), target.vocab.first_id
    ids, mask = rows.ids, torch.arange(rows.ids.shape[1]) >= rows.starts[:, None]
    for _ in range(SIZES.side**2):
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)
        with torch.no_grad():
            out = theirs(input_ids=ids, attention_mask=mask.long(), position_ids=positions).logits
        text, empty = out[:, -1]
        code = (empty + 3.0 * (text - empty))[first:].argmax()
        ids = torch.cat([ids, (code + first).expand(2, 1)], 1)
        mask = torch.cat([mask, torch.ones(2, 1, dtype=torch.bool)], 1)
    found = decoded(session, PLAIN, GREEDY)[2]
    expected = ids[0, rows.ids.shape[1] :] - first
    assert found.tolist() == expected.tolist() and len(found.unique()) > 2
    assert target.to_image(found[None]).shape == (1, 8, 8, 3)


def test_guidance_rows_one_after_the_other(session) -> None:
    settings = replace(session.settings, cfg_mode="sequential")
    plain = decoded(session, PLAIN)
    found = decoded(open_session(settings), MethodSettings("eagle2"))
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))


def test_bf16_keeps_gemmas_embedding(original) -> None:
    """The product with the scale is rounded as Gemma's."""
    target = open_session(liquid_settings(original, "bf16")).target
    model = GemmaForCausalLM.from_pretrained(original, dtype=torch.bfloat16)
    ids = torch.arange(target.spec.vocab)
    with torch.no_grad():
        assert torch.equal(target.embedding(), model.model.embed_tokens(ids))
    first, size = target.vocab.first_id, target.vocab.size
    expected = model.lm_head.weight[first : first + size]
    assert torch.equal(target.transformer.head.weight, expected)


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards(suffix, folder, original) -> None:
    write_shards(folder, suffix)
    found, expected = (load(place).target.transformer.state_dict() for place in (folder, original))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_shards_of_transformers(original, tmp_path) -> None:
    folder = write_liquid(tmp_path / "shards", shard="40KB")
    assert len([*folder.glob("model-*.safetensors")]) > 1
    found, expected = (load(place).target.transformer.state_dict() for place in (folder, original))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_a_file_that_repeats_the_embedding_as_head(folder, original) -> None:
    change_weights(
        folder, lambda s: s.update({"lm_head.weight": s["model.embed_tokens.weight"].clone()})
    )
    found, expected = (load(place).target.transformer.state_dict() for place in (folder, original))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_the_first_config_of_gemma(folder, original) -> None:
    change_json(folder, rope_parameters=None, **FIRST)
    assert load(folder).target.spec == load(original).target.spec


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'; allowed for --model liquid: 'gemma'"),
        ({"vocab_size": 999}, "vocab_size is 999, the weights hold 287"),
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3, the weights hold 2"),
        ({"head_dim": 8}, r"q_proj.weight has shape \(64, 32\), expected \(32, 32\)"),
        ({"head_dim": 15}, "head_dim is 15; allowed: even"),
        ({"hidden_act": "silu"}, "hidden_act is 'silu'; allowed: 'gelu' or 'gelu_pytorch_tanh'"),
        ({"hidden_activation": "relu"}, "hidden_activation is 'relu'; allowed: 'gelu_pytorch_tan"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False; allowed: True"),
        ({"max_position_embeddings": 16}, "an image of 4 x 4 tokens takes 16"),
    ],
)
def test_a_config_that_does_not_fit(entries, message, folder) -> None:
    change_json(folder, **entries)
    with pytest.raises(ValueError, match=message):
        load(folder)


def change_weights(folder: Path, change: Callable[[dict], object]) -> None:
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors", {"format": "pt"})


NORM = "model.layers.1.input_layernorm.weight"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state.pop(NORM), f"missing key {NORM}"),
        (lambda state: state.update(x=torch.ones(2)), "unexpected key x"),
        (lambda state: state.update({NORM: torch.ones(2)}), r"has shape \(2,\), expected \(32,\)"),
    ],
)
def test_weights_that_do_not_fit(change, message, folder) -> None:
    change_weights(folder, change)
    with pytest.raises(ValueError, match=message):
        load(folder)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "tokenizer.json").unlink(), r"missing file: .*tokenizer\.json"),
        (
            lambda folder: rename(folder / "tokenizer.json", "<boi>", "<unused0>"),
            r"tokenizer\.json has no token '<boi>'",
        ),
        (
            lambda folder: shutil.rmtree(folder / "tokenizer"),
            "found no vqgan.yaml and no vqgan.safetensors .*--tokenizer_path names another folder",
        ),
        (
            lambda folder: rename(folder / "tokenizer/vqgan.yaml", "n_embed: 24", "n_embed: 25"),
            "n_embed is 25, the weights hold 24",
        ),
    ],
)
def test_parts_that_cannot_be_used(damage, message, folder) -> None:
    damage(folder)
    with pytest.raises(ValueError, match=message):
        load(folder)


def rename(path: Path, old: str, new: str) -> None:
    content = path.read_text()
    assert old in content
    path.write_text(content.replace(old, new))


def test_gemma_without_image_codes(folder) -> None:
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    added = [{**tokenizer["added_tokens"][-1], "id": 263 + i, "content": f"<x{i}>"} for i in (0, 1)]
    tokenizer["added_tokens"] += added
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(ValueError, match="has 265 ids, the VQGAN 24 codes; config.json has 287"):
        load(folder)


def test_the_vqgan_next_to_the_checkpoint(folder, original) -> None:
    """Meta's place, chameleon/tokenizer next to the folder, or --tokenizer_path."""
    (folder / "tokenizer").rename(folder.parent / "vqgan")
    settings = liquid_settings(folder).with_method(PLAIN)
    given = open_session(replace(settings, tokenizer_path=str(folder.parent / "vqgan"))).target
    (folder.parent / "chameleon").mkdir()
    (folder.parent / "vqgan").rename(folder.parent / "chameleon/tokenizer")
    beside = load(folder).target
    codes = torch.arange(16)[None]
    expected = load(original).target.to_image(codes)
    assert torch.equal(given.to_image(codes), expected)
    assert torch.equal(beside.to_image(codes), expected)


def test_inspect(original, capsys) -> None:
    assert main.main(f"inspect --json --model liquid --model_path {original}".split()) == 0
    found = json.loads(capsys.readouterr().out)
    texts = {(line["part"], line["item"]): line["text"] for line in found["findings"]}
    assert "2 layers, hidden 32, 4 heads, 287 ids" in texts["target", "config.json"]
    assert "263 ids; image codes follow, from 263 on" in texts["text tokenizer", "files"]
    assert "4 x 4 tokens" in texts["parts", "together"]
    assert {"target weights", "target keys and values"} <= found["memory"].keys()


def test_inspect_names_what_is_missing(folder, capsys) -> None:
    shutil.rmtree(folder / "tokenizer")
    (folder / "model.safetensors").unlink()
    assert main.main(f"inspect --json --model liquid --model_path {folder}".split()) == 1
    found = capsys.readouterr().out
    assert "hf download Junfeng5/Liquid_V1_7B" in found and "found no vqgan.yaml" in found


def test_the_recipe_is_the_authors_sampling(original, tmp_path) -> None:
    recipe = Path(__file__).parents[3] / "configs" / "liquid.yaml"
    words = f"generate_images --config {recipe} --model_path {original} --device cpu --dtype fp32"
    words += f" --method jacobi --output_dir {tmp_path}/out --prompt"
    assert main.main([*words.split(), "a red cat"]) == 0
    (path,) = (tmp_path / "out" / "img").iterdir()
    assert Image.open(path).size == (8, 8)


def test_flags_of_other_models() -> None:
    with pytest.raises(SettingsError, match="liquid makes images of 512 x 512 pixels"):
        RunSettings(prompt="a", model="liquid", model_path="a/b", target_size="768", method=PLAIN)


def test_extracted_tokens_are_the_codecs(original, tmp_path) -> None:
    pixels, codes = extracted("liquid", original, (8, 8), tmp_path)
    codec = load_codec("liquid", str(original), TargetOptions(torch.float32, CPU))
    assert torch.equal(codes, codec.images.encode(pixels[None]))


def test_relaxed_acceptance_with_the_codecs_neighbours(folder) -> None:
    found = FAMILIES["liquid"].codebook(folder, TargetOptions(torch.float32, CPU))
    assert found.shape == (SIZES.codes, 4)
    assert main.main(f"vq_distances --model liquid --model_path {folder}".split()) == 0
    relaxed = MethodSettings("eagle2", verifier="lantern", relaxed=LanternSettings(k=5, delta=0.5))
    assert [len(codes) for codes in decoded(load(folder, relaxed), relaxed)] == [16] * 3


def test_the_published_sizes_on_the_meta_device() -> None:
    """7B: config.json with Gemma's sizes and the ids that `resize_token_embeddings` leaves."""
    config = GemmaConfig(vocab_size=256_000 + 8192)
    with torch.device("meta"):
        shapes = GemmaForCausalLM(config).state_dict()
    built = published_network({"model_type": "gemma", "vocab_size": 264_192})
    assert built.faults({key: tuple(value.shape) for key, value in shapes.items()}) == []
    spec = built.module.spec
    assert (spec.layers, spec.heads, spec.head_dim, spec.hidden) == (28, 16, 256, 3072)
    assert spec.max_positions == 2048 and not can_fuse(spec, torch.float32)
    held = sum(weight.numel() for weight in built.module.parameters())
    # Gemma's 8.5 billion with more ids, and the head's rows of codes once more
    assert held == 8_537_680_896 + 2 * 8192 * 3072
