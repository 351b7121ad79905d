"""The rows of the paper's table. `run.sh` names them as `benchmark --methods` does."""

from configs.command_line import listed_method
from configs.methods import MethodSettings
from configs.targets import ROOT


def entry_of(name: str) -> str:
    """Return the entry of --methods for a row: a recipe of configs/paper, or the name itself."""
    recipe = ROOT / "configs" / "paper" / f"{name}.yaml"
    return str(recipe) if recipe.is_file() else name


def methods_of(names: str) -> dict[str, MethodSettings]:
    """Return the method of each row, by name.

    Args:
        names: with blanks between, such as `ar eagle2 adt`.

    Raises:
        SettingsError: a name is neither a recipe nor a method.
    """
    return {name: listed_method(entry_of(name), {}, "METHODS") for name in names.split()}
