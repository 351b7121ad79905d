"""A list flag can name any path."""

from pathlib import Path

import pytest

from configs.evaluation import EvaluateSettings, run_parts
from configs.fields import SettingsError, join_list, split_list
from configs.methods import MethodSettings
from configs.recipes import listed_method
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


def test_a_recipe_in_a_list_of_methods_may_have_colons(tmp_path):
    path = tmp_path / "12:30.yaml"
    path.write_text("method: eagle2\nproposal: topk\n")
    assert listed_method(str(path), {}) == MethodSettings("eagle2", "topk")
    assert listed_method(f"{path}:depth=3", {}) == MethodSettings("eagle2", "topk", depth=3)


def test_slices_of_a_run_may_have_a_plus_in_their_names(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "a+1", "b+c+2", "d"):
        (tmp_path / name).mkdir()
    assert run_parts("a+1") == ["a+1"]
    assert run_parts("a+1+b+c+2+d") == ["a+1", "b+c+2", "d"]
    assert run_parts("a+~+x") == ["a", str(Path.home()), "x"]


def test_every_name_can_be_written():
    assert split_list(join_list(NAMES)) == NAMES
    folders = [name for name in NAMES if name.strip()]
    training = TrainSettings(tokens=join_list(folders), output_dir="x")
    assert training.token_folders == folders
    assert EvaluateSettings(output_dir=join_list(folders)).folders == tuple(folders)
