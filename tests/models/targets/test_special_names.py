"""The name of a control token in a prompt is text in every family: it begins no second image."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from families import SMALL
from small import LUMINA, small_settings, write_checkpoint
from small_llamagen import write_t5
from tokenizers import Tokenizer

from configs.schema import RunSettings
from models.targets.text_encoder import load_tokenizer as load_t5_tokenizer
from runs.session import open_session


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


CASES: list[tuple[str, Callable[[Path], Path] | None]] = [
    ("janus_pro", None),
    ("janus_pro", unmarked),
    ("emu3", None),
    ("emu3_5", None),
    ("liquid", None),
    ("liquid", unmarked),
    ("lumina_mgpt2", None),
    ("tiny", listed),
]


def changed(name: str, change: Callable[[Path], Path] | None) -> Callable[[Path], RunSettings]:
    """Return what writes a family's folder, changes it and gives the settings of a run on it."""

    def write(root: Path) -> RunSettings:
        folder = SMALL[name].write(root)
        return SMALL[name].settings(change(folder) if change else folder)

    return write


def lumina(root: Path) -> RunSettings:
    settings = small_settings(listed(write_checkpoint(root / "lumina", LUMINA)))
    return replace(settings, model="lumina_mgpt", target_size="64")


@pytest.mark.parametrize(
    "write",
    [
        *(
            pytest.param(changed(*case), id=f"{case[0]} {getattr(case[1], '__name__', '')}".strip())
            for case in CASES
        ),
        pytest.param(lumina, id="lumina_mgpt"),
    ],
)
def test_names_of_control_tokens_in_a_prompt_are_letters(
    tmp_path: Path, write: Callable[[Path], RunSettings]
) -> None:
    target = open_session(write(tmp_path)).target
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
