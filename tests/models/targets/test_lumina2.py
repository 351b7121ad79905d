"""Lumina-mGPT 2.0 against transformers' Chameleon, and its codec against the authors' pixels."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from damage import inspected, rows
from families import PROMPTS, cached_logits, decoded, extracted
from PIL import Image
from safetensors.torch import load_file, save_file
from small import write_shards
from small_lumina2 import (
    CODEC,
    LUMINA2,
    SPECIAL,
    lumina2_settings,
    write_codec,
    write_lumina2,
)

import main
from configs.fields import SettingsError
from configs.schema import LanternSettings, MethodSettings, RunSettings, SamplingSettings
from configs.targets import TARGETS, parse_size
from models.base import ImageGrid, TargetOptions
from models.codecs.vqgan_config import VqganConfig
from models.codecs.vqgan_files import movqgan_files
from models.codecs.vqgan_layout import build_vqmodel
from models.registry import FAMILIES, load_codec
from models.target import TargetModel
from models.targets.lumina_mgpt2 import FIRST_CODE
from models.targets.prompts import room_for_prompts
from runs.check.transformers import ORACLES
from runs.session import Session, open_session

PLAIN = MethodSettings("ar")
CPU = torch.device("cpu")
TEXT = " A red cat, é.\n"
BEGIN, START, ROW_END, END_OF_TURN = 256, 257, 259, 263
SIZE = 261  # <reserved08801>: 32 pixels
REQUEST = "Generate an image of 32x32 according to the following prompt:\n"


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    return write_lumina2(tmp_path_factory.mktemp("lumina2") / "Lumina-mGPT-2.0")


@pytest.fixture
def folder(original, tmp_path) -> Path:
    """A copy that a test may damage; the codec is next to it."""
    shutil.copy(original.parent / CODEC, tmp_path)
    return Path(shutil.copytree(original, tmp_path / "copy"))


@pytest.fixture(scope="module")
def session(original) -> Session:
    return open_session(lumina2_settings(original))


def load(folder: Path, method: MethodSettings = PLAIN, **changes: str) -> Session:
    return open_session(replace(lumina2_settings(folder).with_method(method), **changes))


def encoded(target: TargetModel, text: str) -> list[int]:
    return target.prompts.words.tokenizer.encode(REQUEST + text, add_special_tokens=False).ids


def test_prompt_rows(session) -> None:
    """The turn after the token that begins prompts; the unconditional row begins at the image."""
    target = session.target
    row = [BEGIN, *encoded(target, TEXT), END_OF_TURN, START, SIZE, SIZE]
    rows = target.prompt(TEXT, 2)
    padding = len(row) - 3
    assert rows.ids.tolist() == [row, [BEGIN] * padding + [START, SIZE, SIZE]]
    assert rows.starts.tolist() == [0, padding] and target.length(TEXT) == len(row)
    assert target.prompt(TEXT, 1).ids.tolist() == [row]
    grid = target.grid
    assert (grid.rows, grid.columns, grid.row_end) == (4, 4, ROW_END - FIRST_CODE)
    assert (target.vocab.first_id, target.vocab.size) == (155_000, LUMINA2.codes)


def test_bos_begins_a_prompt_where_there_is_one(tmp_path) -> None:
    target = load(write_lumina2(tmp_path / "model", bos="<eoss>")).target
    assert target.prompt(TEXT, 1).ids[0, 0] == 258


def test_the_end_of_the_turn_is_text_where_it_is_no_token(tmp_path) -> None:
    target = load(write_lumina2(tmp_path / "model", words=SPECIAL[:-1])).target
    row = [BEGIN, *encoded(target, TEXT + "<reserved08706>"), START, SIZE, SIZE]
    assert target.prompt(TEXT, 1).ids.tolist() == [row]
    assert target.prompts.shortest == target.length("")


def test_a_long_prompt_is_refused(session) -> None:
    with pytest.raises(ValueError, match=r"the prompt has 206 tokens .* takes 190: 'aaaa"):
        session.target.prompt("a" * 139, 2)


@pytest.mark.parametrize(("dtype", "bound"), [("fp64", 1e-5), ("fp32", 1e-4)])
def test_logits_of_both_guidance_rows_across_row_ends(dtype, bound, original) -> None:
    target = open_session(lumina2_settings(original, dtype)).target
    oracle, end = ORACLES["lumina_mgpt2"](original, target), target.grid.row_end
    codes = [3, 20, 7, 0, end, 11, 23, 5, 1, end, 9, 9]
    rows, image = target.prompt(TEXT, 2), torch.tensor(codes) + FIRST_CODE
    sequences = [torch.cat([rows.ids[row, start:], image]) for row, start in enumerate(rows.starts)]
    expected = [oracle.score(oracle.features(ids[None])[-13:]) for ids in sequences]
    found = cached_logits(target, TEXT, codes)
    assert found.std() > 0.3
    torch.testing.assert_close(found, torch.stack(expected), rtol=0, atol=bound)


@pytest.mark.parametrize("given", [4.0, 3.0])
def test_a_greedy_image_is_that_of_the_authors_loop(given, original, session) -> None:
    """Their loop raises --cfg 3 to 4: `--cfg 4` equals it, `--cfg 3` does not."""
    target = session.target
    oracle, guidance, image = ORACLES["lumina_mgpt2"](original, target), given, []
    size = [START, SIZE, SIZE]
    rows = [[BEGIN, *encoded(target, PROMPTS[2]), END_OF_TURN, *size], size]
    while len(image) < 20:
        if len(image) % 5 == 4:
            image.append(ROW_END)
            continue
        guidance = max(4.0, guidance * (1 - (2 + len(image)) / 4))
        text, empty = (
            oracle.score(oracle.features(torch.tensor([[*row, *image]]))[-1]) for row in rows
        )
        image.append(int((guidance * (text - empty) + empty).argmax()) + FIRST_CODE)
    expected = [token - FIRST_CODE for token in image if token != ROW_END]
    found = decoded(session, PLAIN, SamplingSettings(cfg=4.0, temperature=0.0))[2]
    assert found.tolist() == expected and len(found.unique()) > 2
    other = decoded(session, PLAIN, SamplingSettings(cfg=3.0, temperature=0.0))[2]
    assert other.tolist() != expected


def test_guidance_rows_one_after_the_other(session) -> None:
    found = decoded(
        open_session(replace(session.settings, cfg_mode="sequential")), MethodSettings("eagle2")
    )
    assert all(map(torch.equal, decoded(session, PLAIN), found))


def test_pixels_are_the_authors(original) -> None:
    """Codes 0 to 23 as 4 x 6 and every eighth pixel of row 5, by the authors' network."""
    images = movqgan_files(original.parent / CODEC).load()
    found = images.decode(torch.arange(24)[None], (4, 6))[0]
    assert found.shape == (32, 48, 3)
    expected = [255, 0, 0, 80, 0, 0, 255, 111, 190, 193, 110, 18, 0, 255, 206, 215, 255, 0]
    assert (found[5, ::8].flatten().int() - torch.tensor(expected)).abs().max() <= 1
    pixels = (torch.arange(32 * 48 * 3).view(1, 32, 48, 3) * 37 % 256).byte()
    codes = [21, 16, 21, 16, 21, 16, 21, 22, 6, 21, 3, 14, 4, 15, 21, 3, 21, 16, 15, 16, 19, 16]
    assert images.encode(pixels)[0].tolist() == [*codes, 15, 16]


def test_the_published_codec_has_270_million_parameters() -> None:
    sizes = VqganConfig(256, (1, 2, 2, 4), 2, 4, 4, 16_384, 768, 32, True, True)
    with torch.device("meta"):
        model = build_vqmodel(sizes)
    assert sum(weight.numel() for weight in model.parameters()) == 270_669_103
    assert sizes.grid == (96, 96)


def test_the_published_sizes() -> None:
    """7B with 171,385 ids: 96 x 96 tokens and 96 row ends leave 928 positions for prompts."""
    entries = {
        "vocab_size": 171_385, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "max_position_embeddings": 10240,
    }  # fmt: skip
    built = FAMILIES["lumina_mgpt2"].network(entries)
    assert built.module.head.weight.shape == (16_384, 4096)
    shapes = {key: tuple(built.module.get_parameter(s.parameter)[s.rows].shape)
              for key, s in built.keys.items()}  # fmt: skip
    shapes["lm_head.weight"] = (171_385, 4096)
    shared = {key: (1, 128) for key in shapes if ".q_norm." in key or ".k_norm." in key}
    assert len(shared) == 128 and built.faults(shapes | shared) == []
    grid = ImageGrid(96, 96, row_end=151_670 - FIRST_CODE)
    assert grid.slots(grid.tokens) == 9_312
    assert room_for_prompts(built.module.spec, grid) == 928


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards(suffix, folder, session) -> None:
    write_shards(folder, suffix)
    found, expected = (s.target.transformer.state_dict() for s in (load(folder), session))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def change_json(path: Path, **entries: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


def change_codec(folder: Path, change: Callable[[dict], object]) -> None:
    state = torch.load(folder.parent / CODEC)
    change(state)
    torch.save(state, folder.parent / CODEC)


def change_weights(folder: Path, change: Callable[[dict], object]) -> None:
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors", {"format": "pt"})


NORM = "model.layers.1.self_attn.q_norm.weight"
CONV_Y = "decoder.norm_out.conv_y.weight"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda f: change_json(f / "config.json", vocab_size=65_536),
            "vocab_size: expected more than 155000, the id of --model lumina_mgpt2.*got 65536",
        ),
        (
            lambda f: change_json(f / "config.json", max_position_embeddings=20),
            "an image of 4 x 4 tokens takes 20",
        ),
        (lambda f: change_weights(f, lambda s: s.pop(NORM)), f"missing key {NORM}"),
        (
            lambda f: change_weights(f, lambda s: s.update({NORM: torch.ones(3, 8)})),
            r"q_norm.weight has shape \(3, 8\), expected \(2, 8\)",
        ),
        (lambda f: (f / "tokenizer.json").unlink(), r"missing file: .*copy/tokenizer\.json"),
        (lambda f: (f / "tokenizer_config.json").unlink(), "missing file: .*tokenizer_config"),
        (
            lambda f: change_json(f / "tokenizer_config.json", eos_token=None),
            "tokenizer_config.json has no bos_token and no eos_token",
        ),
        (
            lambda f: change_json(f / "tokenizer_config.json", bos_token="<s>"),
            r"tokenizer\.json has no token '<s>'",
        ),
        (
            lambda f: write_codec(f.parent / CODEC, 25),
            "has 25 codes, .*155000; config.json has 155024 ids, too few",
        ),
        (
            lambda f: change_codec(f, lambda s: s.pop(CONV_Y)),
            f"--vq_path: .*movqgan_270M.ckpt does not fit .*missing key {CONV_Y}",
        ),
        (
            lambda f: change_codec(f, lambda s: s.update(y=torch.ones(2))),
            r"movqgan_270M.ckpt does not fit .*unexpected key y",
        ),
        (
            lambda f: (f.parent / CODEC).write_bytes(b"junk"),
            "cannot read .*movqgan_270M.ckpt: damaged",
        ),
    ],
)
def test_files_that_do_not_fit(damage, message, folder) -> None:
    damage(folder)
    with pytest.raises(ValueError, match=message):
        load(folder)


def test_a_missing_codec_is_named_with_its_source(folder, capsys) -> None:
    (folder.parent / CODEC).unlink()
    words = f"--model lumina_mgpt2 --model_path {folder}".split()
    assert main.main(["inspect", "--json", *words]) == 1
    found = capsys.readouterr().out
    assert "hf download ai-forever/MoVQGAN movqgan_270M.ckpt" in found
    assert main.main(["generate_images", *words, "--method=ar", "--prompt=a"]) != 0
    assert "hf download ai-forever/MoVQGAN movqgan_270M.ckpt" in capsys.readouterr().err


def test_inspect(original, capsys) -> None:
    code, report = inspected(capsys, original, "--model=lumina_mgpt2", "--target_size=32")
    told = rows(report)
    assert code == 0
    assert "2 layers, hidden 16, 2 heads, 155024 ids" in told["target", "config.json"]["text"]
    assert "264 ids" in told["text tokenizer", "files"]["text"]
    assert "24 codes" in told["image codec", "files"]["text"]
    assert "4 x 4 tokens and 4 row ends" in told["parts", "together"]["text"]
    assert {"target weights", "target keys and values", "noise"} <= report["memory"].keys()


@pytest.mark.parametrize("text", ["", "0", "770", "800x768", "1024x224"])
def test_sizes_that_are_refused(text) -> None:
    with pytest.raises(SettingsError, match="multiples of 32, at most 768 x 768 pixels"):
        parse_size(text, TARGETS["lumina_mgpt2"].sizes)


def test_the_tokenizer_needs_a_token_for_the_size(original) -> None:
    with pytest.raises(ValueError, match="no token for a side of 96 pixels, '<reserved08803>'"):
        load(original, target_size="96x64")


def test_flags_of_other_models() -> None:
    with pytest.raises(SettingsError, match="--tokenizer_path.*only with --model"):
        RunSettings(prompt="a", model="lumina_mgpt2", tokenizer_path="x", method=PLAIN)
    settings = RunSettings(prompt="a", model="lumina_mgpt2", model_path="a/b", method=PLAIN)
    assert settings.target_size == "768" and settings.vq_path.endswith(f"lumina_mgpt2/{CODEC}")


def test_the_recipe_is_the_authors_sampling(original, tmp_path) -> None:
    recipe = Path(__file__).parents[3] / "configs" / "lumina_mgpt2.yaml"
    words = f"generate_images --config {recipe} --model_path {original} --device cpu --dtype fp32"
    words += f" --target_size 64x32 --method jacobi --output_dir {tmp_path}/out --prompt"
    assert main.main([*words.split(), "a red cat"]) == 0
    (path,) = (tmp_path / "out" / "img").iterdir()
    assert Image.open(path).size == (64, 32)


def test_extracted_tokens_are_the_codecs(original, tmp_path) -> None:
    pixels, codes = extracted("lumina_mgpt2", original, (32, 32), tmp_path, "--target_size=32")
    options = TargetOptions(
        torch.float32, CPU, target_size="32", vq_path=str(original.parent / CODEC)
    )
    codec = load_codec("lumina_mgpt2", str(original), options)
    assert torch.equal(codes, codec.images.encode(pixels[None])) and len(codes.unique()) > 2


def test_relaxed_acceptance_with_the_codecs_neighbours(folder) -> None:
    assert main.main(f"vq_distances --model lumina_mgpt2 --model_path {folder}".split()) == 0
    relaxed = MethodSettings("eagle2", verifier="lantern", relaxed=LanternSettings(k=5, delta=0.5))
    assert [len(codes) for codes in decoded(load(folder, relaxed), relaxed)] == [16] * 3
