"""What a command line and its recipes say: values by flag, the paper's flags replaced by what they stand for."""

from collections.abc import Mapping
from typing import Any

from configs.fields import SettingsError, kind, parse_text, refuse, settings_fields
from configs.flags import OWNERS, PaperFlags, RecipeFlags, check_known, flags_of
from configs.methods import METHODS, MethodSettings
from configs.targets import OWN_FLAGS
from configs.yaml_file import read_yaml

Values = dict[str, Any]  # by flag name, converted
_FILE_FLAGS = ("model_path", "drafter_path", *OWN_FLAGS)  # what belongs to one model


def read(command: str, texts: Mapping[str, str]) -> tuple[Values, Values]:
    """What the recipe says and what the command line says; a recipe's files are those of the model it names."""
    given = typed(command, texts)
    path = given.pop("config", None)
    recipes = [read_recipe(name, command) for name in ([] if path is None else path.split(","))]
    model = next(
        (values["model"] for values in (given, *reversed(recipes)) if "model" in values), None
    )
    recipe: Values = {}
    for values in recipes:
        foreign = _FILE_FLAGS if values.get("model", model) != model else ()
        recipe |= {name: value for name, value in values.items() if name not in foreign}
    return recipe, _without_aliases(given, recipe.get("method")) if _aliases(command) else given


def read_recipe(path: str, command: str) -> Values:
    """The settings in a YAML file of `flag: value` lines; unknown flags are errors."""
    content = read_yaml(path, "config")
    hidden = [*settings_fields(RecipeFlags), *_aliases(command)]
    flags = {name: f for name, f in flags_of(command).items() if name not in hidden}
    for name, value in content.items():
        check_known(str(name), flags, f"--config {path}")
        if value is None:
            refuse(name, None, f"a value, or no line at all (in {path})")
        if (
            isinstance(value, str) or type(value) is int and kind(flags[name]) is str
        ):  # YAML takes 768 for a number
            content[name] = parse_text(flags[name], name, str(value))
    return content


def typed(command: str, texts: Mapping[str, str]) -> Values:
    """The values that the texts stand for."""
    flags = flags_of(command)
    return {name: parse_text(flags[name], name, text) for name, text in texts.items()}


def _aliases(command: str) -> list[str]:
    """The paper's flags that a command has; `--precision` of train_drafter is a setting of its own."""
    return list(settings_fields(PaperFlags)) if PaperFlags in OWNERS[command] else []


def _without_aliases(given: Values, recipe_method: str | None) -> Values:
    """The values with the paper's flags replaced by the settings they stand for; `--model_type eagle` alone leaves the
    choice among the drafting methods to the recipe."""
    names = settings_fields(PaperFlags)
    paper = PaperFlags(**{name: value for name, value in given.items() if name in names})
    values = {name: value for name, value in given.items() if name not in names}
    if paper.set_seed is False:
        refuse("set_seed", False, "true: an image always follows from its seed")
    for alias, name, value in (
        ("precision", "dtype", paper.precision),
        ("random_seed", "seed", paper.random_seed),
        ("lantern", "verifier", "lantern" if paper.lantern else None),
    ):
        if value is not None and values.setdefault(name, value) != value:
            refuse(alias, value, f"{values[name]!r}, as --{name} says")
    free = paper.model_type == "eagle" and not (paper.peanut or paper.static_tree)
    method = _paper_method(
        paper, values.get("method", recipe_method if free and recipe_method != "ar" else None)
    )
    return values if method is None else values | {"method": method}


def _paper_method(paper: PaperFlags, method: str | None) -> str | None:
    """The method that --method and the paper's three flags agree on; None if none of them is given."""
    drafted = tuple(name for name in METHODS if MethodSettings(name).drafted)
    claims = (
        {f"--method {method}": (method,)} if method is not None else {}
    )  # flag -> the methods it goes with
    claims |= {"--peanut": ("adt",)} if paper.peanut else {}
    claims |= {"--static_tree": ("static",)} if paper.static_tree else {}
    claims |= {"--model_type base": ("ar",)} if paper.model_type == "base" else {}
    claims |= {"--model_type eagle": ("eagle2", *drafted)} if paper.model_type == "eagle" else {}
    for flag, fits in claims.items():
        for other, others in claims.items():
            if not set(fits) & set(others):
                raise SettingsError(
                    f"{other}: found together with {flag}, which means {' or '.join(fits)}; "
                    "allowed: flags that mean the same --method"
                )
    return min(claims.values(), key=len)[0] if claims else None
