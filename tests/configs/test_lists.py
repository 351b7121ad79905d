"""A list flag can name any path."""

import pytest

from configs.evaluation import EvaluateSettings
from configs.fields import SettingsError, join_list, split_list
from configs.training import TrainSettings

NAMES = ["a", "b,c", " blank ", 'say "x"', '"', "new\nline", ",", "d"]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a, b ,c", ["a", "b", "c"]),
        ('"a,b" , c', ["a,b", "c"]),
        ('"a ""b"", c"', ['a "b", c']),
        ('a "b", c', ['a "b"', "c"]),
        ('"a" b,c', ['"a" b', "c"]),
        ("a,,b,", ["a", "", "b", ""]),
        ("", [""]),
    ],
)
def test_names_are_apart_by_commas_or_quotes(text, names):
    assert split_list(text) == names


@pytest.mark.parametrize("tokens", ["a,,b", "a,", "a,./a"])
def test_a_folder_of_tokens_counts_once(tokens):
    with pytest.raises(SettingsError, match="--tokens: expected folder names between the commas"):
        TrainSettings(tokens=tokens, output_dir="x")


def test_every_name_can_be_written():
    assert split_list(join_list(NAMES)) == NAMES
    folders = [name for name in NAMES if name.strip()]
    training = TrainSettings(tokens=join_list(folders), output_dir="x")
    assert training.token_folders == folders
    assert EvaluateSettings(output_dir=join_list(folders)).folders == tuple(folders)
