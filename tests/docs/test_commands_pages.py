"""The command reference is the one that today's flags make."""

import shlex

from configs.command_line import read_words
from configs.commands import COMMANDS, flags_of
from configs.targets import ROOT
from scripts.tools.command_reference import GUIDES, page


def test_the_command_reference_is_up_to_date() -> None:
    stored = (ROOT / "docs/commands.md").read_text(encoding="utf-8")
    assert stored == page(), "run `python -m scripts.tools.command_reference`"


def test_every_flag_of_every_command_is_on_the_page() -> None:
    text = page()
    for flag in {flag for command in COMMANDS for flag in flags_of(command)}:
        assert f"`--{flag}" in text, flag


def test_its_examples_can_be_typed() -> None:
    for command, (example, _) in GUIDES.items():
        read_words(command, shlex.split(example))
