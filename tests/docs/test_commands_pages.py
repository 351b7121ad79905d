"""The command reference is the one that today's flags make."""

from configs.targets import ROOT
from scripts.tools.command_reference import pages

FOLDER = ROOT / "docs/commands"


def test_the_command_reference_is_up_to_date() -> None:
    stored = {path.name: path.read_text(encoding="utf-8") for path in FOLDER.iterdir()}
    made = pages()
    assert stored.keys() == made.keys()
    old = [name for name in made if made[name] != stored[name]]
    assert not old, f"{', '.join(old)}: run `python -m scripts.tools.command_reference`"
