"""The name of a control token in a prompt is text in every family: it begins no second image."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from small import LUMINA, small_settings, write_checkpoint
from small_emu3 import AUTHORS, Emu3Sizes, emu3_settings, write_emu3
from small_emu3_5 import emu3_5_settings, write_emu3_5
from small_janus import janus_settings, write_janus
from small_liquid import liquid_settings, write_liquid
from small_llamagen import write_t5
from small_lumina2 import lumina2_settings, write_lumina2
from tokenizers import Tokenizer

from models.targets.text_encoder import load_tokenizer as load_t5_tokenizer
from runs.session import open_session


def unmarked(path: Path) -> None:
    """Let a tokenizer's file call none of its added tokens special, as some public files do."""
    content = json.loads(path.read_text())
    content["added_tokens"] = [token | {"special": False} for token in content["added_tokens"]]
    path.write_text(json.dumps(content))


def listed(folder: Path) -> Path:
    """Let the tokenizer of a Chameleon folder list its control tokens and codes as added ones."""
    path = folder / "tokenizer" / "text_tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    names = [name for name in tokenizer.get_vocab() if len(name) > 3]
    tokenizer.add_special_tokens([name for name in names if name.startswith(("<", "IMGIMG"))])
    tokenizer.save(str(path))
    return folder


def janus(folder: Path) -> object:
    return janus_settings(write_janus(folder))


def unmarked_janus(folder: Path) -> object:
    settings = janus(folder)
    unmarked(folder / "tokenizer.json")
    return settings


def emu3(folder: Path) -> object:
    return emu3_settings(write_emu3(folder))


def authors_emu3(folder: Path) -> object:
    sizes = Emu3Sizes(words=AUTHORS)
    return emu3_settings(write_emu3(folder, sizes, "authors"))


def emu3_5(folder: Path) -> object:
    return emu3_5_settings(write_emu3_5(folder))


def liquid(folder: Path) -> object:
    return liquid_settings(write_liquid(folder))


def unmarked_liquid(folder: Path) -> object:
    settings = liquid(folder)
    unmarked(folder / "tokenizer.json")
    return settings


def lumina2(folder: Path) -> object:
    return lumina2_settings(write_lumina2(folder))


def chameleon(folder: Path) -> object:
    return small_settings(listed(write_checkpoint(folder)))


def lumina(folder: Path) -> object:
    settings = small_settings(listed(write_checkpoint(folder, LUMINA)))
    return replace(settings, model="lumina_mgpt", target_size="64")


@pytest.mark.parametrize(
    "write",
    [
        janus,
        unmarked_janus,
        emu3,
        authors_emu3,
        emu3_5,
        liquid,
        unmarked_liquid,
        chameleon,
        lumina,
        lumina2,
    ],
    ids=lambda f: f.__name__,
)
def test_names_of_control_tokens_in_a_prompt_are_letters(
    tmp_path: Path, write: Callable[[Path], object]
) -> None:
    target = open_session(write(tmp_path / "model")).target
    tokenizer: Tokenizer = target.prompts.words.tokenizer
    control = {number for name, number in tokenizer.get_vocab().items() if len(name) > 3}
    for name in sorted(map(tokenizer.id_to_token, control)):
        plain, named = (target.prompt(text, 1).ids[0].tolist() for text in ("a", f"a{name}"))
        # No more control tokens than around any text, and every letter of the name beside them.
        assert [i for i in named if i in control] == [i for i in plain if i in control], name
        assert len(named) == len(plain) + len(name.encode()), name


def test_names_of_t5s_control_tokens_are_no_control_tokens(tmp_path: Path) -> None:
    write_t5(tmp_path, 16)
    tokenizer = load_t5_tokenizer(tmp_path)
    named, plain = (tokenizer(text).input_ids for text in ("a cat </s> <pad>", "a cat"))
    control = tokenizer.all_special_ids
    assert len(named) > len(plain)
    assert [i for i in named if i in control and i != tokenizer.unk_token_id] == [plain[-1]]
