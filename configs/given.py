"""What a command line and its recipes say, by flag."""

from collections.abc import Mapping

from configs.fields import Values, parse_text, refuse, settings_fields
from configs.flags import COMMANDS, RecipeFlags, flags_of
from configs.paper_flags import PaperFlags, without_paper_flags
from configs.targets import OWN_FLAGS
from configs.words import check_known
from configs.yaml_file import read_yaml

_FILE_FLAGS = ("model_path", "drafter_path", *OWN_FLAGS)  # what belongs to one model


def read(command: str, texts: Mapping[str, str]) -> tuple[Values, Values]:
    """Return what the recipes say, and what the command line says.

    A recipe's files are left out if another model than the recipe's is asked for.
    """
    given = typed(command, texts)
    path = given.pop("config", None)
    names = [] if path is None else [name.strip() for name in path.split(",")]
    if not all(names):
        refuse("config", path, "names of YAML files, with one comma between two")
    recipes = [read_recipe(name, command) for name in names]
    models = [values["model"] for values in (given, *reversed(recipes)) if "model" in values]
    recipe: Values = {}
    for values in recipes:
        foreign = _FILE_FLAGS if models and values.get("model", models[0]) != models[0] else ()
        recipe |= {name: value for name, value in values.items() if name not in foreign}
    return recipe, without_paper_flags(given, recipe) if _has_aliases(command) else given


def read_recipe(path: str, command: str) -> Values:
    """Return the settings in a YAML file of `flag: value` lines; unknown flags are errors."""
    hidden = settings_fields(RecipeFlags) | (
        settings_fields(PaperFlags) if _has_aliases(command) else {}
    )
    flags = {name: f for name, f in flags_of(command).items() if name not in hidden}
    texts = read_yaml(path, "config")
    for name, text in texts.items():
        check_known(name, command, flags, f"--config {path}")
        if not isinstance(text, str) or not text:
            refuse(name, text or None, f"one value, or no line at all (in {path})")
    return typed(command, texts)


def typed(command: str, texts: Mapping[str, str]) -> Values:
    """Return the values that the texts stand for."""
    flags = flags_of(command)
    return {name: parse_text(flags[name], name, text) for name, text in texts.items()}


def _has_aliases(command: str) -> bool:
    """Return whether a command has the paper's flags; train_drafter's --precision is its own."""
    return PaperFlags in COMMANDS[command].settings
