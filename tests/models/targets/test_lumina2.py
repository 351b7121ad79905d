"""Lumina-mGPT 2.0: prompts, and its codec against the authors' pixels."""

from dataclasses import replace

import torch
from families import SMALL

from models.codecs.vqgan_files import movqgan_files
from scripts.checkpoints.lumina2 import CODEC, LUMINA2, write_lumina2

TEXT, LAYOUTS = " A red cat, é.\n", ["lumina_mgpt2"]


def test_bos_begins_a_prompt_where_there_is_one(tmp_path) -> None:
    target = SMALL["lumina_mgpt2"].load(write_lumina2(tmp_path / "model", bos="<eoss>")).target
    assert target.prompt(TEXT, 1).ids[0, 0] == 258


def test_the_end_of_the_turn_is_text_where_it_is_no_token(tmp_path) -> None:
    sizes = replace(LUMINA2, words=LUMINA2.words[:-1])
    folder = write_lumina2(tmp_path / "model", sizes)
    target = SMALL["lumina_mgpt2"].load(folder).target
    words, names = target.prompts.words, ("<|endoftext|>", "<racm3:break>", "<reserved08801>")
    text = f"Generate an image of 32x32 according to the following prompt:\n{TEXT}<reserved08706>"
    ids = words.tokenizer.encode(text, add_special_tokens=False).ids
    begin, start, size = (words[name] for name in names)
    assert target.prompt(TEXT, 1).ids.tolist() == [[begin, *ids, start, size, size]]
    assert target.prompts.shortest == target.length("")


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
