"""The name of a control token in a prompt is text in every family: it begins no second image."""

import json
from pathlib import Path

import pytest
from families import SMALL
from small_llamagen import write_t5
from tokenizers import Tokenizer

from models.targets.text_encoder import load_tokenizer as load_t5_tokenizer


def unmarked(folder: Path) -> Path:
    """Let a tokenizer's file call none of its added tokens special, as some public files do."""
    path = folder / "tokenizer.json"
    content = json.loads(path.read_text())
    content["added_tokens"] = [token | {"special": False} for token in content["added_tokens"]]
    path.write_text(json.dumps(content))
    return folder


def listed(folder: Path) -> Path:
    """Let the tokenizer of a Chameleon folder list its control tokens and codes as added ones."""
    path = folder / "tokenizer" / "text_tokenizer.json"
    tokenizer = Tokenizer.from_file(str(path))
    names = [name for name in tokenizer.get_vocab() if len(name) > 3]
    tokenizer.add_special_tokens([name for name in names if name.startswith(("<", "IMGIMG"))])
    tokenizer.save(str(path))
    return folder


AS_WRITTEN = ("janus_pro", "emu3", "emu3_5", "liquid", "lumina_mgpt2")
CHANGED = [("janus_pro", unmarked), ("liquid", unmarked), ("tiny", listed), ("lumina_mgpt", listed)]


@pytest.mark.parametrize(("name", "change"), [*((name, None) for name in AS_WRITTEN), *CHANGED])
def test_names_of_control_tokens_in_a_prompt_are_letters(tmp_path, name, change) -> None:
    folder = SMALL[name].write(tmp_path)
    target = SMALL[name].load(change(folder) if change else folder).target
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
