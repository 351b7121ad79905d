"""Methods and rules that a module outside the checkout registers."""

import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from made_runs import write_run
from program import read_words, run_settings
from stand_ins import empty_checkpoint

import main
from commands import command
from commands.help import asked_help, command_help
from configs.fields import SettingsError
from configs.methods import METHODS, register_method
from configs.recipes import PLUGINS, listed_method
from configs.rules import RULES

GENERATE = command("generate_images")
MODULE = """
from dataclasses import dataclass, replace

from adt_tree import Rule, register_method, register_rule
from configs.fields import Settings, setting
from configs.methods import METHODS
from configs.rules import loaded
from decoding.verifiers.exact import Exact


@dataclass(frozen=True)
class Numbers(Settings, prefix="strict_", group="Strict"):
    share: float = setting("a number of the rule's own", 0.5, low=0, high=1)


class Strict(Exact):
    name = "strict"

    def __init__(self, settings):
        self.settings = settings


def drafter(parts):
    return loaded(METHODS["jacobi"].drafter)(parts)


defaults = {"proposal": "coupled", "window": 8, "guess": "above"}
register_method("mine", replace(METHODS["jacobi"], drafter=drafter, defaults=defaults))
rule = Rule("mine", Strict, ("coupled",), ("mine",), lossless=True, same_tokens=True,
            settings=Numbers)
register_rule("strict", rule)
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A working folder with a module; what it registers is forgotten afterwards."""
    (tmp_path / "own_methods.py").write_text(MODULE)
    (tmp_path / "broken_methods.py").write_text("import no_such_package")
    monkeypatch.chdir(tmp_path)
    with patch.dict(METHODS), patch.dict(RULES), patch.dict(PLUGINS):
        yield "own_methods"
    sys.modules.pop("own_methods", None)


def settings(*words: str):
    return run_settings(read_words("generate_images", ["--prompt=x", "--model_path=model", *words]))


def test_a_plugins_method_and_rule_are_flags_values(plugin, tmp_path):
    empty_checkpoint(tmp_path / "model")
    with pytest.raises(SettingsError, match="--method: .*got 'mine'"):
        settings("--method=mine")
    method = settings("--method=mine", "--verifier=strict", f"--plugin={plugin}").engine.method
    assert (method.method, method.window, method.same_tokens(1.0)) == ("mine", 8, True)
    assert listed_method("mine:window=4", {}).window == 4
    assert "mine" in command_help(GENERATE, "mine")
    with pytest.raises(SettingsError, match="strict needs --proposal coupled and --method min"):
        settings("--method=jacobi", "--verifier=strict")
    with pytest.raises(ValueError, match="'mine' is taken"):
        register_method("mine", METHODS["jacobi"])


def test_a_rule_brings_flags_of_its_own(plugin, tmp_path):
    empty_checkpoint(tmp_path / "model")
    words = "--method=mine", "--verifier=strict", "--strict_share=0.25"
    assert settings(f"--plugin={plugin}", *words).engine.method.numbers.share == 0.25
    assert "--strict_share X" in command_help(GENERATE)
    with pytest.raises(SettingsError, match="--strict_share: 0.25 works only with --verifier str"):
        settings("--method=ar", "--strict_share=0.25")


@pytest.mark.parametrize("words", [["--plugin", "own_methods"], ["--plugin=own_methods"]])
def test_the_help_knows_its_methods(plugin, words):
    assert "--window N" in asked_help(GENERATE, ["--method=mine", *words, "--help"])
    assert "mine" in asked_help(GENERATE, ["--help", *words])


@pytest.mark.parametrize("words", [["--plugin", "--help"], ["--help", "--plugin"]])
def test_the_help_needs_no_value_of_a_flag(words):
    assert asked_help(GENERATE, words) == command_help(GENERATE)


def test_a_module_may_register_its_names_again(plugin):
    own = {"__name__": plugin}
    exec(MODULE, own)
    exec(MODULE.replace('"window": 8', '"window": 4'), own)
    assert METHODS["mine"].defaults["window"] == 4
    for name, source in (("mine", MODULE), ("ar", MODULE.replace('"mine"', '"ar"'))):
        with pytest.raises(SettingsError, match=f"'{name}' is taken"):
            exec(source, {"__name__": "other"})
    with pytest.raises(SettingsError, match="'exact' is taken"):
        exec(MODULE.replace('"strict"', '"exact"'), own)


def test_its_images_are_those_of_plain_decoding(plugin, checkpoint, tmp_path):
    words = ["generate_images", "--prompt=a red circle", "--temperature=0"]
    words += [f"--model_path={checkpoint}", "--dtype=fp64", "--output_dir"]
    own = ["mine", "--method=mine", "--verifier=strict", f"--plugin={plugin}"]
    assert main.main([*words, *own]) == main.main([*words, "plain", "--method=ar"]) == 0
    mine, plain = ((tmp_path / name / "img/00000_0.png") for name in ("mine", "plain"))
    assert mine.read_bytes() == plain.read_bytes()


def test_runs_by_its_rule_are_evaluated(plugin, capsys):
    flags = {"method": "mine", "proposal": "coupled", "verifier": "strict"}
    write_run(Path("own"), [np.zeros((8, 8, 3), np.uint8)], ["a red circle"], flags)
    words = ["evaluate", "--output_dir=own", "--metrics=none", "--cache_dir=features"]
    assert main.main(words) != 0
    assert "got --verifier 'strict'. If it is one of your own" in capsys.readouterr().err
    assert main.main([*words, f"--plugin={plugin}"]) == 0
    assert "| own | mine, coupled |" in capsys.readouterr().out


def test_a_broken_module_keeps_its_traceback(plugin):
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        settings("--plugin=broken_methods")
