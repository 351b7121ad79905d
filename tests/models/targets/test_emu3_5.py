"""Emu3.5 against transformers' Qwen3, which is its decoder: prompts, logits, images; its files."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from damage import inspected, rows
from families import assert_logits_are_theirs, decoded, extracted
from PIL import Image
from safetensors.torch import load_file, save_file
from small import write_shards
from small_emu3_5 import FIRST, Emu35Sizes, emu3_5_settings, public_entries, write_emu3_5
from transformers import Qwen3Config, Qwen3ForCausalLM

import main
from configs.fields import SettingsError
from configs.schema import LanternSettings, MethodSettings, SamplingSettings
from configs.tools import InspectSettings
from decoding.row_ends import with_row_ends
from drafters.recall import RecallDrafter
from models.base import ImageGrid, TargetOptions
from models.codecs.vqgan_config import VqganConfig
from models.codecs.vqgan_layout import build_vqmodel
from models.fused import can_fuse
from models.registry import FAMILIES, load_codec
from runs.check.memory import ImageTokens, memory_of
from runs.session import Session, open_session

SIZES = Emu35Sizes()
ROWS, COLUMNS = 4, 5
PLAIN = MethodSettings("ar")
GREEDY = SamplingSettings(cfg=3.0, temperature=0.0, top_k=20)
TEXT, CODES = " A red cat", [3, 20, 7, 0, 11, 23, 5, 1]
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def original(tmp_path_factory) -> Path:
    return write_emu3_5(tmp_path_factory.mktemp("emu3_5") / "Emu3.5-Image")


@pytest.fixture
def folder(original, tmp_path) -> Path:
    """A copy, with the parts next to it, that a test may damage."""
    return Path(shutil.copytree(original.parent, tmp_path / "copy")) / original.name


@pytest.fixture(scope="module")
def session(original) -> Session:
    return open_session(emu3_5_settings(original))


@pytest.fixture(scope="module")
def theirs(original) -> Qwen3ForCausalLM:
    """The oracle, with the same weights."""
    entries = json.loads((original / "config.json").read_text())
    config = Qwen3Config(**{k: v for k, v in entries.items() if k != "model_type"})
    model = Qwen3ForCausalLM(config).double().eval()
    model.load_state_dict(load_file(original / "model.safetensors"))
    return model


def load(folder: Path, method: MethodSettings = PLAIN) -> Session:
    return open_session(emu3_5_settings(folder).with_method(method))


def test_prompt_rows(session) -> None:
    """The authors' two texts, spaces as they are, then the size in tokens."""
    target = session.target
    assert (target.vocab.first_id, target.vocab.size) == (FIRST, SIZES.codes)
    assert (target.grid.rows, target.grid.columns, target.grid.row_end) == (ROWS, COLUMNS, -8)
    rows, words = target.prompt(TEXT, 2), target.prompts.words
    asked, unasked = (
        f"<|extra_203|>You are a helpful assistant{task}. USER: {text} ASSISTANT: <|extra_100|>"
        "<|image start|>4*5<|image token|>"
        for task, text in ((" for t2i task", TEXT), ("", ""))
    )
    start = int(rows.starts[1])
    found = rows.ids[0].tolist(), rows.ids[1, start:].tolist()
    for ids, text in zip(found, (asked, unasked), strict=True):
        assert words.tokenizer.decode(ids, skip_special_tokens=False) == text
        assert [i for i in ids if i > 255] == [FIRST - 5, 256 + 3 + 100, FIRST - 2, FIRST - 3]
    assert rows.starts.tolist() == [0, len(" for t2i task" + TEXT)]
    assert target.length(TEXT) == rows.ids.shape[1]
    assert target.prompt(TEXT, 1).ids.tolist() == rows.ids[:1].tolist()
    with pytest.raises(ValueError, match=r"the prompt has \d+ tokens .* takes 236: 'aaaa"):
        target.prompt("a" * 240, 2)


@pytest.mark.parametrize(("dtype", "bound"), [("fp64", 1e-5), ("fp32", 1e-4)])
def test_logits_of_both_guidance_rows(dtype, bound, original, theirs) -> None:
    target = open_session(emu3_5_settings(original, dtype)).target
    sequence = with_row_ends(torch.tensor(CODES), target.grid).tolist()
    assert_logits_are_theirs(theirs, target, sequence, TEXT, bound)


def test_a_greedy_image_is_that_of_the_authors_loop(session, theirs) -> None:
    """Row ends are forced, guidance is on log-probabilities of all ids, then the codes' top k."""
    target = session.target
    rows, codes = target.prompt("A red cat", 2), []
    padded = [
        ids[start:].tolist() for ids, start in zip(rows.ids, rows.starts.tolist(), strict=True)
    ]
    for slot in range(1, ROWS * (COLUMNS + 1)):
        if slot % (COLUMNS + 1) == 0:
            token = FIRST - 8
        else:
            with torch.no_grad():
                logits = [theirs(input_ids=torch.tensor([ids])).logits[0, -1] for ids in padded]
            text, empty = (row.log_softmax(-1) for row in logits)
            scores = (empty + 3.0 * (text - empty))[FIRST:]
            token = int(scores.topk(20).indices[0]) + FIRST
            codes.append(token - FIRST)
        padded = [[*ids, token] for ids in padded]
    found = decoded(session, PLAIN, GREEDY)[2]
    assert found.tolist() == codes and len(found.unique()) > 2
    assert target.to_image(found[None]).shape == (1, 64, 80, 3)


def test_guidance_rows_one_after_the_other(session) -> None:
    sequential = open_session(replace(session.settings, cfg_mode="sequential"))
    plain, found = decoded(session, PLAIN), decoded(sequential, MethodSettings("eagle2"))
    assert all(torch.equal(a, b) for a, b in zip(plain, found, strict=True))


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_shards(suffix, folder, original) -> None:
    write_shards(folder, suffix)
    found, expected = (load(place).target.transformer.state_dict() for place in (folder, original))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def change_json(folder: Path, **entries: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"model_type": "qwen3"}, "model_type: expected 'Emu3' for --model emu3_5, got 'qwen3'"),
        ({"vocab_size": 999}, "vocab_size is 999, the weights hold 491"),
        ({"head_dim": 8}, r"q_proj.weight has shape \(64, 32\), expected \(32, 32\)"),
        ({"head_dim": 15}, "head_dim: expected even whole numbers from 2, got 15"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling: expected None, got"),
        ({"max_position_embeddings": 24}, "an image of 4 x 5 tokens takes 24"),
    ],
)
def test_a_config_that_does_not_fit(entries, message, folder) -> None:
    change_json(folder, **entries)
    with pytest.raises(ValueError, match=message):
        load(folder)


NORM = "model.layers.1.self_attn.k_norm.weight"


def test_weights_without_a_norm_of_keys(folder) -> None:
    state = load_file(folder / "model.safetensors")
    del state[NORM]
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=f"missing key {NORM}"):
        load(folder)


@pytest.mark.parametrize(
    ("part", "file", "message"),
    [
        (
            "Emu3.5-VisionTokenizer",
            "model.ckpt",
            "found no config.yaml and model.ckpt in .*hf down",
        ),
        ("tokenizer_emu3_ibq", "emu3.tiktoken", "found no emu3.tiktoken in .*baaivision/Emu3.5"),
        ("tokenizer_emu3_ibq", "emu3_vision_tokens.txt", "missing file: .*vision_tokens.txt"),
    ],
)
def test_a_missing_file_is_named(part, file, message, folder, capsys) -> None:
    (folder.parent / part / file).unlink()
    with pytest.raises(ValueError, match=message):
        load(folder)
    assert main.main(f"inspect --model emu3_5 --model_path {folder}".split()) == 1
    assert file in capsys.readouterr().out


def test_a_codec_with_other_attention(folder) -> None:
    path = folder.parent / "Emu3.5-VisionTokenizer" / "config.yaml"
    path.write_text(path.read_text().replace("- 4\n", "- 8\n"))
    with pytest.raises(ValueError, match=r"attn_resolutions: expected \[\] or \[4\], got \[8\]"):
        load(folder)


def test_inspect(original, capsys) -> None:
    words = "--model=emu3_5", f"--target_size={SIZES.size}"
    code, report = inspected(capsys, original, *words)
    told = rows(report)
    assert code == 0
    assert "491 ids, image codes 467 to 490" in told["text tokenizer", "files"]["text"]
    assert "Emu3.5-VisionTokenizer/model.ckpt: 24 codes" in told["image codec", "files"]["text"]
    assert "4 x 5 tokens and 4 row ends" in told["parts", "together"]["text"]
    assert {"noise", "stale predictions", "image codec"} <= report["memory"].keys()


def test_the_recipe_is_the_authors_sampling(original, tmp_path) -> None:
    recipe = Path(__file__).parents[3] / "configs" / "emu3_5.yaml"
    words = f"generate_images --config {recipe} --model_path {original} --device cpu --dtype fp32"
    words += f" --target_size 64x80 --method jacobi --output_dir {tmp_path}/out --prompt"
    assert main.main([*words.split(), "a red cat"]) == 0
    (path,) = (tmp_path / "out" / "img").iterdir()
    assert Image.open(path).size == (64, 80)


def test_sizes(original) -> None:
    settings = emu3_5_settings(original)
    assert replace(settings, target_size=None).target_size == "1168x880"
    for size in ("1552x656", "752x1360", "1024"):
        replace(settings, target_size=size)
    with pytest.raises(SettingsError, match="target_size.*multiples of 16, at most 1024 x 1024"):
        replace(settings, target_size="1040")


def test_extracted_tokens_are_the_codecs(original, tmp_path) -> None:
    size = f"--target_size={SIZES.size}"
    pixels, codes = extracted("emu3_5", original, (64, 80), tmp_path, size)
    options = TargetOptions(torch.float32, CPU, target_size=SIZES.size)
    images = load_codec("emu3_5", str(original), options).images
    assert torch.equal(codes, images.encode(pixels[None]))
    scores = images._latents(pixels[None], torch.float32) @ images.codebook.T
    assert torch.equal(codes, scores.argmax(-1))  # inner products, not distances


def test_relaxed_acceptance_with_the_codecs_neighbours(folder) -> None:
    found = FAMILIES["emu3_5"].codebook(folder, TargetOptions(torch.float32, CPU))
    assert found.shape == (SIZES.codes, 8)
    assert main.main(f"vq_distances --model emu3_5 --model_path {folder}".split()) == 0
    relaxed = MethodSettings("eagle2", verifier="lantern", relaxed=LanternSettings(k=5, delta=0.5))
    assert [len(codes) for codes in decoded(load(folder, relaxed), relaxed)] == [20] * 3


def test_the_published_sizes_on_the_meta_device() -> None:
    """34.1 billion weights, 2.9 of them in embedding and head, and 455 million of the codec."""
    config = Qwen3Config(
        vocab_size=151_854 + 131_072, hidden_size=5120, intermediate_size=25600, head_dim=128,
        num_hidden_layers=64, num_attention_heads=64, num_key_value_heads=8,
        max_position_embeddings=32768, rms_norm_eps=1e-5, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.device("meta"):
        shapes = {k: tuple(v.shape) for k, v in Qwen3ForCausalLM(config).state_dict().items()}
        codec = VqganConfig(256, (1, 1, 2, 2, 4), 4, 256, 256, 131_072, 256, coarse_attention=True)
        images = build_vqmodel(codec)
    built = FAMILIES["emu3_5"].network(public_entries(config) | {"eoi_token_id": 151_853})
    assert built.faults(shapes) == [] and built.module.head.weight.shape[0] == 131_072
    count = sum(torch.Size(shape).numel() for shape in shapes.values())
    assert count == 34_103_460_864 and not can_fuse(built.module.spec, torch.float32)
    assert built.module.spec.max_positions == 6272
    assert sum(weight.numel() for weight in images.parameters()) == 455_336_963


def test_similarity_needs_no_table_of_codes(session) -> None:
    """Directions are made of the target's own embeddings, for the tokens that are compared."""
    engine = session.open_engine(MethodSettings("recall"), images=1)
    drafter = engine.speculation.drafter
    drafter = getattr(drafter, "near", drafter)
    assert isinstance(drafter, RecallDrafter)
    table = session.target.embedding()
    assert drafter.directions.codes.data_ptr() == table[FIRST:].data_ptr()


def test_tables_of_131072_codes_do_not_grow_with_the_image() -> None:
    """Noise is a window, stale predictions are a row of the image and a tree's."""
    settings = InspectSettings(model="emu3_5", dtype="bf16")
    grids = ImageGrid(64, 64, -8), ImageGrid(640, 64, -8)
    usual, longer = (memory_of(settings, None, None, ImageTokens(g, 131_072)) for g in grids)
    assert usual == longer and usual.keys() == {
        "noise",
        "stale predictions",
        "recalled predictions",
    }
    assert 100 < sum(usual.values()) / 2**20 < 160  # MiB; all positions would take 2 GiB
