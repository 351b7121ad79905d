"""Janus-Pro against transformers' class: prompts, logits, whole images, pixels; exact decoding."""

import shutil
from pathlib import Path

import pytest
import torch
from families import PROMPTS, cached_logits, decoded
from safetensors.torch import save_file
from small import small_settings, write_shards
from small_janus import BEGIN_IMAGE, BOS, PAD, SIDE, SPECIAL, write_janus
from torch import Tensor
from transformers import JanusForConditionalGeneration

from configs.schema import MethodSettings, SamplingSettings
from runs.session import Session, open_session

PLAIN = MethodSettings("ar")
GREEDY = SamplingSettings(cfg=5.0, temperature=0.0)
TEXT, CODES = "  A red cat.\n", [3, 20, 7, 0, 11, 23, 5]
LAYOUTS = ["transformers", "authors"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("janus")
    return {name: write_janus(root / name, authors=name == "authors") for name in LAYOUTS}


@pytest.fixture(scope="module", params=LAYOUTS)
def session(request, folders) -> Session:
    return open_session(small_settings(folders[request.param], model="janus_pro"))


@pytest.fixture(scope="module")
def theirs(folders) -> JanusForConditionalGeneration:
    """The oracle, from the same files."""
    model = JanusForConditionalGeneration.from_pretrained(
        folders["transformers"], dtype=torch.float64
    )
    return model.eval()


def test_prompt_rows(session) -> None:
    """The ids that the authors' prompt builder and script give with the small tokenizer."""
    target = session.target
    rows = target.prompt(TEXT, 2)
    text = [259, 25, 220, 32, 220, 81, 68, 67, 220, 66, 64, 83, 13, 198, 198, 260, 25]
    assert rows.ids.tolist() == [[256, *text, 262], [256, *[258] * len(text), 262]]
    assert target.length(TEXT) == len(text) + 2 and rows.starts.tolist() == [0, 0]
    assert target.prompt(TEXT, 1).ids.tolist() == rows.ids[:1].tolist()


def test_a_forerunner_without_tokens_for_its_roles(tmp_path) -> None:
    """Janus-1.3B's script writes "User: ...", a blank line, "Assistant:" in plain words."""
    words = [name for name in SPECIAL if name not in ("<|User|>", "<|Assistant|>")]
    folder = write_janus(tmp_path / "forerunner", authors=True, special=words)
    session = open_session(small_settings(folder, model="janus_pro"))
    text = session.target.prompts.words.tokenizer.encode("User: A red cat.\n\nAssistant:").ids
    assert session.target.prompt(TEXT, 1).ids.tolist() == [[256, *text, 260]]
    for image, baseline in zip(
        decoded(session, MethodSettings("adt")), decoded(session), strict=True
    ):
        assert torch.equal(image, baseline)


def test_a_descendant_in_shards(folders, tmp_path) -> None:
    """T2I-R1, Janus-4o: the authors' keys, written as .safetensors in several files."""
    folder = shutil.copytree(folders["authors"], tmp_path / "descendant")
    weights = folder / "pytorch_model.bin"
    save_file(torch.load(weights), folder / "model.safetensors")
    weights.unlink()
    write_shards(folder, "safetensors")
    one, other = (
        decoded(open_session(small_settings(place, model="janus_pro")))
        for place in (folder, folders["authors"])
    )
    assert all(map(torch.equal, one, other))


def their_logits(model: JanusForConditionalGeneration, ids: Tensor, codes: list[int]) -> Tensor:
    """Logits (2, 1 + codes, codes of the model) after the prompt and after every code."""
    image = model.prepare_embeddings_for_image_generation(torch.tensor([codes, codes]))
    embeddings = torch.cat([model.get_input_embeddings()(ids), image], 1)
    with torch.no_grad():
        features = model.model.language_model(inputs_embeds=embeddings).last_hidden_state
        return model.model.generation_head(features[:, ids.shape[1] - 1 :])


@pytest.mark.parametrize(("dtype", "bound"), [("fp64", 1e-5), ("fp32", 1e-4)])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_logits_of_both_guidance_rows(layout, dtype, bound, folders, theirs) -> None:
    target = open_session(small_settings(folders[layout], dtype, model="janus_pro")).target
    ours = cached_logits(target, TEXT, CODES)
    expected = their_logits(theirs, target.prompt(TEXT, 2).ids, CODES)
    assert expected.std() > 0.3
    torch.testing.assert_close(ours.double(), expected, rtol=0, atol=bound)


def test_a_greedy_image_is_that_of_generate(session, theirs) -> None:
    ids = session.target.prompt(PROMPTS[2], 1).ids
    words = session.target.prompts.words
    first, last, pad = (words[name] for name in (BOS, BEGIN_IMAGE, PAD))
    settings = theirs.generation_config
    settings.bos_token_id, settings.pad_token_id = first, pad
    settings.generation_kwargs = {"boi_token_id": last}
    expected = theirs.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        generation_mode="image",
        guidance_scale=5.0,
        do_sample=False,
    )
    found = decoded(session, PLAIN, GREEDY)[2]
    assert len(set(expected[0].tolist())) > 2
    assert found.tolist() == expected[0].tolist()


def test_pixels_and_codes(session, theirs) -> None:
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(24, (2, SIDE**2), generator=generator)
    pixels = session.target.to_image(codes)
    with torch.no_grad():
        expected = theirs.decode_image_tokens(codes)
    expected = ((expected + 1) / 2 * 255).clamp(0, 255).to(torch.uint8)
    assert pixels.shape == (2, 64, 64, 3) and pixels.float().std() > 10
    assert (pixels.int() - expected.int()).abs().max() <= 1
    with torch.no_grad():
        image = pixels.permute(0, 3, 1, 2).double() / 127.5 - 1
        encoded = theirs.model.vqmodel.encode(image).image_tokens.view(2, -1)
    assert torch.equal(session.target.images.encode(pixels), encoded)
    assert len(encoded.unique()) > 3
