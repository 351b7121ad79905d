"""Files of every family: older entries, `inspect`, commands, neighbours of codes."""

from dataclasses import replace

import pytest
import torch
from browser import thinned
from damage import entries, generated, inspected, read_state, rows, tensors
from fakes import finished
from families import (
    PLAIN,
    SMALL,
    assert_chosen,
    decoded,
    extracted,
    same_weights,
    size_flag,
)
from PIL import Image
from tokenizers import AddedToken, Tokenizer
from transformers import GemmaForCausalLM

import main
from configs.schema import LanternSettings, MethodSettings, RunSettings
from decoding.images import Job
from models.files.identity import checkpoint_id
from models.registry import family_of, load_codec
from models.targets.liquid import Liquid
from models.targets.llamagen import LlamaGen
from models.targets.text_encoder import TextEncoder
from runs.session import open_session
from scripts.checkpoints.llamagen import LlamaGenSizes, write_llamagen
from scripts.checkpoints.parts import OPTIONS

EAGLE = MethodSettings("eagle2")

# entries that Gemma's first config.json has in place of transformers' of today
FIRST = {"hidden_act": "gelu", "hidden_activation": None, "rope_theta": 10000.0}


@pytest.mark.parametrize("name", ["liquid"])
def test_a_file_that_repeats_the_embedding_as_head(name, folder, opened) -> None:
    head = read_state(folder / "model.safetensors")["model.embed_tokens.weight"]
    tensors(lm_head__weight=head)(folder)
    one, other = SMALL[name].load(folder).target, opened[name].target
    assert same_weights(one.transformer, other.transformer)


SCALING = {"rope_scaling": {"rope_type": "default"}}  # in Emu3's public files, and no theta


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("liquid", entries(rope_parameters=None, **FIRST)),
        ("emu3", entries("text_config", rope_parameters=None, **SCALING)),
    ],
)
def test_older_entries_mean_the_same(name, change, folder, opened) -> None:
    change(folder)
    one, other = SMALL[name].load(folder).target.spec, opened[name].target.spec
    assert one == other and one.rope_theta == {"liquid": 1e4, "emu3": 1e6}[name]


REPORTS = {
    "tiny": {
        ("target", "weights"): "40,864 parameters: F32 (29 tensors)",
        ("target", "config.json"): "2 layers, hidden 32, 2 heads",
        ("text tokenizer", "files"): "image codes 4 to 27",
        ("image tokenizer", "files"): "24 codes, 8 x 8 pixels",
    },
    "emu3": {
        ("target", "config.json"): "2 layers, hidden 32, 4 heads, 289 ids",
        ("text tokenizer", "files"): "image codes 265 to 288",
        ("parts", "together"): "4 x 5 tokens and 4 row ends",
        ("image codec", "files"): "weights vqmodel.*: 24 codes",
    },
    "emu3_5": {
        ("text tokenizer", "files"): "491 ids, image codes 467 to 490",
        ("parts", "together"): "4 x 5 tokens and 4 row ends",
        ("image codec", "files"): "Emu3.5-VisionTokenizer/model.ckpt: 24 codes",
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
    "lumina_mgpt2": {
        ("target", "config.json"): "2 layers, hidden 16, 2 heads, 155024 ids",
        ("text tokenizer", "files"): "264 ids",
        ("parts", "together"): "4 x 4 tokens and 4 row ends",
        ("image codec", "files"): "24 codes",
    },
}
REPORTS["janus_pro of the authors"] = REPORTS["janus_pro"]


@pytest.mark.parametrize("name", thinned(thinned(REPORTS)))
def test_inspect(name, originals, capsys) -> None:
    model = name.split()[0]
    code, report = inspected(capsys, originals[name], f"--model={model}", *size_flag(model))
    assert code == 0
    for row, text in REPORTS[name].items():
        assert text in rows(report)[row]["text"]
    image = "image tokenizer" if model in ("liquid", "tiny") else "image codec"
    assert {"target weights", "keys and values", image} <= report["memory"].keys()


def test_llamagen_finds_its_parts_and_generates_an_image(tmp_path, capsys) -> None:
    folder = write_llamagen(tmp_path / "LlamaGen-T2I", LlamaGenSizes(side=16))
    code, said = generated(capsys, folder, "--model=llamagen", "--device=cpu", "--cfg=7.5")
    assert code == 0, said
    (path,) = (tmp_path / "out" / "img").iterdir()
    assert Image.open(path).size == (32, 32)


CODECS = ("janus_pro", "emu3", "emu3_5", "liquid", "lumina_mgpt2")


@pytest.mark.parametrize("name", thinned(CODECS))
def test_extracted_tokens_are_the_codecs(name, originals, opened, tmp_path) -> None:
    target = opened[name].target
    size = target.to_image(torch.zeros(1, target.grid.tokens, dtype=torch.long)).shape[1:3]
    pixels, codes = extracted(name, originals[name], size, tmp_path, *size_flag(name))
    settings = SMALL[name].settings(originals[name])
    options = replace(OPTIONS, target_size=settings.target_size, vq_path=settings.vq_path)
    codec = load_codec(name, str(originals[name]), options)
    assert torch.equal(codes, codec.images.encode(pixels[None]))
    assert codec.length("a cat") == target.prompt("a cat", 1).ids.shape[1]
    assert name not in ("emu3_5", "lumina_mgpt2") or len(codes.unique()) > 2


@pytest.mark.parametrize("name", thinned(thinned(CODECS)))
def test_relaxed_acceptance_with_the_codecs_neighbours(name, folder) -> None:
    options = replace(OPTIONS, vq_path=SMALL[name].settings(folder).vq_path)
    codebook = family_of(name).codebook(folder, options)
    assert codebook.shape == (24, 8 if name == "emu3_5" else 4)
    if name == "janus_pro":  # the vectors that are decoded
        torch.testing.assert_close(codebook.norm(dim=-1), torch.ones(24))
    assert main.main(f"vq_distances --model {name} --model_path {folder}".split()) == 0
    relaxed = MethodSettings("eagle2", verifier="lantern", numbers=LanternSettings(k=5, delta=0.5))
    session = SMALL[name].load(folder, relaxed)
    assert session.open_engine().verifier.name == "lantern"
    tokens = session.target.grid.tokens
    assert [len(codes) for codes in decoded(session, relaxed)] == [tokens] * 3


def test_the_table_of_neighbours_of_llamagen_is_of_the_stored_vectors(originals) -> None:
    """As published: not of the vectors of length 1 that are decoded."""
    path = originals["llamagen"].parent / "vq_ds16_t2i.pt"
    options = replace(OPTIONS, vq_path=str(path))
    codebook = LlamaGen().codebook(originals["llamagen"], options)
    assert torch.equal(codebook, torch.load(path)["model"]["quantize.embedding.weight"])
    assert (codebook.norm(dim=-1) - 1).abs().max() > 0.1


@pytest.mark.parametrize(
    "name", thinned(thinned(["liquid", "emu3_5", "janus_pro", "lumina_mgpt2"]))
)
def test_guidance_rows_one_after_the_other(name, originals) -> None:
    session = SMALL[name].load(originals[name], EAGLE)
    apart = open_session(replace(session.settings, cfg_mode="sequential"))
    assert all(map(torch.equal, decoded(apart, EAGLE), decoded(session)))


@pytest.mark.parametrize("name", ["emu3", "glm_image", "llamagen"])
def test_near_ties_are_judged_by_what_the_family_reads(name, opened) -> None:
    """Prompts, ends of rows and grids."""
    engine = opened[name].open_engine(PLAIN)
    image = finished(engine, [Job("a", "a cat", 11)])["a"]
    assert_chosen(engine, image)


def test_llamagen_knows_lengths_of_prompts_without_its_text_encoder(opened, monkeypatch) -> None:
    target = opened["llamagen"].target
    monkeypatch.setattr(TextEncoder, "__call__", None)
    assert target.length("a cat") == LlamaGenSizes().slots


def test_an_image_of_one_token_is_refused(originals) -> None:
    settings = replace(SMALL["emu3"].settings(originals["emu3"]), target_size="8")
    with pytest.raises(
        ValueError, match="--target_size: expected two tokens or more, got .*8, one"
    ):
        open_session(settings)


def test_size_and_negative_prompt_of_emu3(opened) -> None:
    run = RunSettings.of(prompt="a", model="emu3", model_path="BAAI/Emu3-Gen-hf", method=PLAIN)
    settings = run.engine
    assert settings.target_size == "720" and settings.negative_prompt.startswith("lowres, bad anat")
    assert run.identity()["negative_prompt"] == settings.negative_prompt
    assert "negative_prompt" not in RunSettings.of(prompt="a cat", method=PLAIN).identity()
    small = opened["emu3"]
    other = open_session(replace(small.settings, negative_prompt="grey"))
    assert not torch.equal(decoded(other)[0], decoded(small)[0])


def test_codes_of_emu3_5_have_the_largest_inner_products(opened) -> None:
    """Not the smallest distances."""
    target = opened["emu3_5"].target
    images = target.images
    pixels = torch.randint(256, (1, 64, 80, 3), generator=torch.Generator().manual_seed(1)).byte()
    scores = images._latents(pixels, torch.float32) @ images.codebook.T
    codes = images.encode(pixels)
    assert torch.equal(codes, scores.argmax(-1))
    assert target.to_image(codes).shape == pixels.shape


def test_words_of_html_are_tokens_of_gemma(originals, tmp_path) -> None:
    """So they are for Liquid's authors; names of control tokens are cut into letters."""
    tokenizer = Tokenizer.from_file(str(originals["liquid"] / "tokenizer.json"))
    tokenizer.add_tokens([AddedToken(name, normalized=False) for name in ("<b>", "<unused1>")])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    words = Liquid().words(tmp_path, OPTIONS)
    row = words.tokenizer.encode("a <b> cat <unused1>", add_special_tokens=False).ids
    assert words["<b>"] in row and words["<unused1>"] not in row and words["<bos>"] not in row


def test_bf16_keeps_gemmas_embedding(originals) -> None:
    """The product with the scale is rounded as Gemma's."""
    original = originals["liquid"]
    target = SMALL["liquid"].load(original, dtype="bf16").target
    model = GemmaForCausalLM.from_pretrained(original, dtype=torch.bfloat16)
    ids = torch.arange(target.spec.vocab)
    with torch.no_grad():
        assert torch.equal(target.embedding(), model.model.embed_tokens(ids))
    first, size = target.vocab.first_id, target.vocab.size
    expected = model.lm_head.weight[first : first + size]
    assert torch.equal(target.transformer.head.weight, expected)


@pytest.mark.parametrize("name", thinned(thinned(SMALL)))
def test_every_file_tells_a_checkpoint_from_others(name, folder) -> None:
    files = [path for path in folder.iterdir() if path.is_file()]
    before = checkpoint_id(folder)
    for path in files:
        content = path.read_bytes()
        path.write_bytes(content + b" ")
        # nothing reads the first; of an index the shards count that it lists
        told = path.name not in ("generation_config.json", "model.safetensors.index.json")
        assert (checkpoint_id(folder) != before) == told, path.name
        path.write_bytes(content)
    assert files and checkpoint_id(folder) == before
