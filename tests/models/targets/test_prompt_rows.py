"""The ids of prompts in every family; the name of a control token in a prompt is text.

Those of GLM-Image and LlamaGen are in files of their own.
"""

import re
from pathlib import Path

import pytest
from damage import text
from families import SMALL
from tokenizers import Tokenizer

from models.target import TargetModel
from models.targets.janus import BEGIN_IMAGE, BOS, PAD
from models.targets.text_encoder import load_tokenizer as load_t5_tokenizer
from scripts.checkpoints.llamagen import write_t5

EMU3 = "<|image start|>4*5<|image token|>"
EMU3_5 = "<|extra_203|>You are a helpful assistant{}. USER: {} ASSISTANT: <|extra_100|>" + EMU3
LUMINA = "Generate an image of {0}x{0} according to the following prompt:\n"
LUMINA_END, LUMINA2_END = (f"<racm3:break>{2 * f'<reserved0880{n}>'}" for n in (2, 1))
JANUS = "<|User|>: A red cat.\n\n<|Assistant|>:"
PROMPTS = {  # text, its row and the unconditional one, what pads rows; first code, end of a row
    "tiny": ("ab", "<s>ab<reserved08706><racm3:break>", "<s><racm3:break>", "<pad>", 4, None),
    "emu3": (
        "A red cat", f"<|extra_203|>A red cat{EMU3}", f"<|extra_203|>lowres, blurry.{EMU3}",
        "<|endoftext|>", 265, "<|extra_200|>",
    ),
    "emu3_5": (
        " A red cat", EMU3_5.format(" for t2i task", " A red cat"), EMU3_5.format("", ""),
        "<|endoftext|>", 467, "<|extra_200|>",
    ),
    "janus_pro": (
        "  A red cat.\n", BOS + JANUS + BEGIN_IMAGE, BOS + 17 * PAD + BEGIN_IMAGE, PAD, 264, None
    ),
    "liquid": (
        " A red cat.\n",
        "<bos> A red cat.\n Generate an image based on this description.<boi>",
        "<bos><unconditional><boi>", "<pad>", 263, None,
    ),
    "lumina_mgpt": (
        "a cat", f"<s>{LUMINA.format(64)}a cat<reserved08706>{LUMINA_END}", LUMINA_END,
        "<pad>", 4, "<reserved08799>",
    ),
    "lumina_mgpt2": (
        " A red cat, é.\n",
        f"<|endoftext|>{LUMINA.format(32)} A red cat, é.\n<reserved08706>{LUMINA2_END}",
        LUMINA2_END, "<|endoftext|>", 155_000, "<reserved08799>",
    ),
}  # fmt: skip
PROMPTS |= {"emu3 of today": PROMPTS["emu3"], "janus_pro of the authors": PROMPTS["janus_pro"]}


def ids_of(target: TargetModel, row: str) -> list[int]:
    """The ids of names in brackets, which are control tokens, and of text between them."""
    words, ids = target.prompts.words, []
    for part in re.split("(<[^<>]+>)", row):
        text = words.tokenizer.encode(part, add_special_tokens=False).ids
        ids += [words[part]] if part.startswith("<") else text
    return ids


@pytest.mark.parametrize("name", PROMPTS)
def test_prompt_rows(name, opened) -> None:
    """Padded on the left; a row alone is the first one without padding."""
    text, asked, unasked, pad, first, end = PROMPTS[name]
    target = opened[name].target
    conditional, empty = (ids_of(target, row) for row in (asked, unasked))
    width, words = max(len(conditional), len(empty)), target.prompts.words
    padding = [width - len(conditional), width - len(empty)]
    rows, alone = target.prompt(text, 2), target.prompt(text, 1)
    padded = zip(padding, (conditional, empty), strict=True)
    assert rows.ids.tolist() == [[words[pad]] * n + row for n, row in padded]
    assert rows.starts.tolist() == padding and target.length(text) == width
    assert alone.ids.tolist() == [conditional] and alone.starts.tolist() == [0]
    assert (target.vocab.first_id, target.vocab.size) == (first, 24)
    assert target.grid.row_end == (None if end is None else words[end] - first)


# Some public files call no added token special.
unmarked = text("tokenizer.json", '"special": true', '"special": false')


def listed(folder: Path) -> None:
    """Let the tokenizer of a Chameleon folder list its control tokens and codes as added ones."""
    path = folder / "tokenizer" / "text_tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    names = [name for name in tokenizer.get_vocab() if len(name) > 3]
    tokenizer.add_special_tokens([name for name in names if name.startswith(("<", "IMGIMG"))])
    tokenizer.save(str(path))


AS_WRITTEN = ("janus_pro", "emu3", "emu3_5", "liquid", "lumina_mgpt2")
CHANGED = [("janus_pro", unmarked), ("liquid", unmarked), ("tiny", listed), ("lumina_mgpt", listed)]


@pytest.mark.parametrize(("name", "change"), [*((name, None) for name in AS_WRITTEN), *CHANGED])
def test_names_of_control_tokens_in_a_prompt_are_letters(name, change, folder, opened) -> None:
    if change:
        change(folder)
    target = (SMALL[name].load(folder) if change else opened[name]).target
    tokenizer: Tokenizer = target.prompts.words.tokenizer
    control = {number for name, number in tokenizer.get_vocab().items() if len(name) > 3}
    for name in sorted(map(tokenizer.id_to_token, control)):
        plain, named = (target.prompt(text, 1).ids[0].tolist() for text in ("a", f"a{name}"))
        # No more control tokens than around any text, and every letter of the name beside them.
        assert [i for i in named if i in control] == [i for i in plain if i in control], name
        assert len(named) == len(plain) + len(name.encode()), name


@pytest.mark.parametrize("name", ["janus_pro"])
def test_what_a_training_cut_its_texts_to_does_not_cut_prompts(name, folder, opened) -> None:
    """tokenizer.json keeps it, and transformers passes over it as well."""
    path = str(folder / "tokenizer.json")
    tokenizer = Tokenizer.from_file(path)
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=40)
    tokenizer.save(path)
    plain, kept = opened[name].target, SMALL[name].load(folder).target
    assert kept.prompt("A red cat", 1).ids.tolist() == plain.prompt("A red cat", 1).ids.tolist()


def test_names_of_t5s_control_tokens_are_no_control_tokens(tmp_path: Path) -> None:
    write_t5(tmp_path, 16)
    tokenizer = load_t5_tokenizer(tmp_path)
    named, plain = (tokenizer(text).input_ids for text in ("a cat </s> <pad>", "a cat"))
    control = tokenizer.all_special_ids
    assert len(named) > len(plain)
    assert [i for i in named if i in control and i != tokenizer.unk_token_id] == [plain[-1]]
