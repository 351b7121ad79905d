"""Flags and methods of earlier versions are refused in one line that says what to use instead."""

import pytest

from configs.command_line import listed_method, read_words
from configs.commands import COMMANDS, flags_of
from configs.fields import SettingsError
from configs.gone import GONE_FLAGS, GONE_METHODS
from configs.method_table import METHODS
from configs.methods import MethodSettings


@pytest.mark.parametrize("name", GONE_FLAGS)
def test_a_gone_flag_says_what_to_use(name: str) -> None:
    for command in COMMANDS:
        if name not in flags_of(command):
            with pytest.raises(SettingsError) as error:
                read_words(command, [f"--{name}", "1"])
            assert str(error.value) == f"--{name}: no such flag here; {GONE_FLAGS[name]}"


@pytest.mark.parametrize("name", GONE_METHODS)
def test_a_gone_method_says_what_to_use(name: str) -> None:
    assert name not in METHODS
    hint = f"{name} is gone; {GONE_METHODS[name]}"
    with pytest.raises(SettingsError) as error:
        MethodSettings(name)
    assert str(error.value) == f"--method: {hint}"
    with pytest.raises(SettingsError) as error:
        listed_method(f"{name}:nodes=4", {})
    assert str(error.value) == f"--methods: {hint}"
