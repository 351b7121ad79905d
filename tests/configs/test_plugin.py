"""Methods and rules that a module outside the checkout registers."""

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from made_runs import write_run
from stand_ins import empty_checkpoint

import main
from configs import acceptance, method_table
from configs.command_line import listed_method, read_words
from configs.fields import SettingsError
from configs.help import asked_help, command_help
from runs import methods
from runs.commands import run_settings

MODULE = """
from adt_tree import Acceptance, Method, MethodTraits, register_method, register_verifier
from runs.methods import METHODS, VERIFIERS

register_method("mine", MethodTraits({"proposal": "coupled", "window": 8, "guess": "above"}),
                METHODS["jacobi"])
register_verifier("strict", Acceptance(True, True, ("coupled",), ("mine",)), VERIFIERS["exact"])
"""


@pytest.fixture
def plugin(tmp_path, monkeypatch):
    """A working folder with a module; what it registers is forgotten afterwards."""
    (tmp_path / "own_methods.py").write_text(MODULE)
    (tmp_path / "broken_methods.py").write_text("import no_such_package")
    monkeypatch.chdir(tmp_path)
    tables = method_table.METHODS, methods.METHODS, acceptance.VERIFIERS, methods.VERIFIERS
    with ExitStack() as stack:
        for table in tables:
            stack.enter_context(patch.dict(table))
        yield "own_methods"
    sys.modules.pop("own_methods", None)


def settings(*words: str):
    return run_settings(read_words("generate_images", ["--prompt=x", "--model_path=model", *words]))


def test_a_plugins_method_and_rule_are_flags_values(plugin, tmp_path):
    empty_checkpoint(tmp_path / "model")
    with pytest.raises(SettingsError, match="--method: .*got 'mine'"):
        settings("--method=mine")
    method = settings("--method=mine", "--verifier=strict", f"--plugin={plugin}").method
    assert (method.method, method.window, method.same_tokens(1.0)) == ("mine", 8, True)
    assert listed_method("mine:window=4", {}).window == 4
    assert "mine" in command_help("generate_images", "mine")
    with pytest.raises(SettingsError, match="strict needs --proposal coupled and --method min"):
        settings("--method=jacobi", "--verifier=strict")
    with pytest.raises(ValueError, match="'mine' is taken"):
        methods.register_method("mine", method_table.MethodTraits(), methods.METHODS["jacobi"])


@pytest.mark.parametrize("words", [["--plugin", "own_methods"], ["--plugin=own_methods"]])
def test_the_help_knows_its_methods(plugin, words):
    assert "--window N" in asked_help(["generate_images", "--method=mine", *words, "--help"])
    assert "mine" in asked_help(["generate_images", "--help", "all", *words])


@pytest.mark.parametrize("words", [["--plugin", "--help"], ["--help", "--plugin"]])
def test_the_help_needs_no_value_of_a_flag(words):
    assert asked_help(["generate_images", *words]) == command_help("generate_images")


def test_a_module_may_register_its_names_again(plugin):
    own = {"__name__": plugin}
    exec(MODULE, own)
    exec(MODULE.replace('"window": 8', '"window": 4'), own)
    assert method_table.METHODS["mine"].defaults["window"] == 4
    with pytest.raises(SettingsError, match="'mine' is taken"):
        exec(MODULE, {"__name__": "other"})
    with pytest.raises(SettingsError, match="'ar' is taken"):
        exec(MODULE.replace('"mine"', '"ar"'), own)


def test_a_rule_takes_the_numbers_of_a_rule_that_is_there(plugin):
    """Flags of its own would be unknown to every command."""

    class Numbers(acceptance.LanternSettings):
        pass

    rule = acceptance.Acceptance(False, False, ("topk",), numbers=Numbers)
    with pytest.raises(SettingsError, match="rule 'typical': numbers: expected LanternSettings, "):
        methods.register_verifier("typical", rule, methods.VERIFIERS["lantern"])
    rule = replace(rule, numbers=acceptance.LanternSettings)
    methods.register_verifier("typical", rule, methods.VERIFIERS["lantern"])
    assert listed_method("eagle2:proposal=topk:verifier=typical:lantern_k=7", {}).relaxed.k == 7


def test_its_images_are_those_of_plain_decoding(plugin, tmp_path):
    words = ["generate_images", "--prompt=a red circle", "--temperature=0", "--output_dir"]
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
