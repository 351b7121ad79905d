"""Janus-Pro against transformers' class: whole images, pixels; the prompt of a forerunner."""

import torch
from browser import thinned
from families import PROMPTS, SMALL, greedy

from models.targets.janus import BEGIN_IMAGE, BOS, PAD
from scripts.checkpoints.janus import SPECIAL, write_janus
from scripts.checkpoints.parts import SIDE

TEXT = "  A red cat.\n"
LAYOUTS = thinned(("janus_pro", "janus_pro of the authors"))


def test_a_forerunner_without_tokens_for_its_roles(tmp_path) -> None:
    """Janus-1.3B's script writes "User: ...", a blank line, "Assistant:" in plain words."""
    words = [name for name in SPECIAL if name not in ("<|User|>", "<|Assistant|>")]
    folder = write_janus(tmp_path / "forerunner", authors=True, special=words)
    session = SMALL["janus_pro"].load(folder)
    text = session.target.prompts.words.tokenizer.encode("User: A red cat.\n\nAssistant:").ids
    assert session.target.prompt(TEXT, 1).ids.tolist() == [[256, *text, 260]]


@torch.no_grad()
def test_a_greedy_image_is_that_of_transformers(session, theirs) -> None:
    """By its modules in the loop of its `generate`, which raises itself before 5.5."""
    ids = session.target.prompt(PROMPTS[2], 1).ids
    words = session.target.prompts.words
    first, last, pad = (words[name] for name in (BOS, BEGIN_IMAGE, PAD))
    unconditional = ids.where((ids == first) | (ids == last), pad)
    embeddings = theirs.get_input_embeddings()(torch.cat([ids, unconditional]))
    codes = []
    for _ in range(SIDE**2):
        hidden = theirs.model.language_model(inputs_embeds=embeddings).last_hidden_state[:, -1]
        text, empty = theirs.model.generation_head(hidden)
        codes.append((empty + 5.0 * (text - empty)).argmax())
        following = theirs.prepare_embeddings_for_image_generation(codes[-1].expand(2, 1))
        embeddings = torch.cat([embeddings, following], 1)
    assert greedy(session).tolist() == codes


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
