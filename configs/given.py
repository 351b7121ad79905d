"""What a command line and its recipes say: values by flag, without the paper's other names."""

from collections.abc import Mapping

from configs.fields import SettingsError, Values, build, parse_text, refuse, settings_fields
from configs.flags import COMMANDS, PaperFlags, RecipeFlags, flags_of
from configs.method_table import METHODS
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
    return recipe, _without_aliases(given, recipe) if _aliases(command) else given


def read_recipe(path: str, command: str) -> Values:
    """Return the settings in a YAML file of `flag: value` lines; unknown flags are errors."""
    hidden = [*settings_fields(RecipeFlags), *_aliases(command)]
    flags = {name: f for name, f in flags_of(command).items() if name not in hidden}
    values: Values = {}
    for name, text in read_yaml(path, "config").items():
        check_known(name, command, flags, f"--config {path}")
        if not isinstance(text, str) or not text:
            refuse(name, text or None, f"one value, or no line at all (in {path})")
        values[name] = parse_text(flags[name], name, text)
    return values


def typed(command: str, texts: Mapping[str, str]) -> Values:
    """Return the values that the texts stand for."""
    flags = flags_of(command)
    return {name: parse_text(flags[name], name, text) for name, text in texts.items()}


def _aliases(command: str) -> list[str]:
    """Return the paper's flags that a command has."""
    own = PaperFlags in COMMANDS[command].settings  # --precision of train_drafter is another one
    return list(settings_fields(PaperFlags)) if own else []


def _without_aliases(given: Values, recipe: Values) -> Values:
    """Return the values of a command line with the paper's flags replaced by what they stand for."""
    names = settings_fields(PaperFlags)
    paper = build(PaperFlags, given)
    values = {name: value for name, value in given.items() if name not in names}
    if paper.set_seed is False:
        refuse("set_seed", False, "true: an image always follows from its seed")
    for alias, name, value in (
        ("precision", "dtype", paper.precision),
        ("random_seed", "seed", paper.random_seed),
        ("lantern", "verifier", "lantern" if paper.lantern else None),
    ):
        if value is not None and values.setdefault(name, value) != value:
            refuse(alias, given[alias], f"only with --{name} {value}, not {values[name]}")
    method = _paper_method(paper, values.get("method"), recipe.get("method"))
    values |= {} if method is None else {"method": method}
    if paper.lantern and (values.get("method") or recipe.get("method")) == "ar":
        refuse("lantern", True, "only with a method that drafts, not with --method ar")
    return values


def _paper_method(paper: PaperFlags, method: str | None, recipe: str | None) -> str | None:
    """Return the method that --method and the paper's flags agree on; None if none is given.

    recipe: that of the recipe, which `--model_type eagle` alone leaves as it is.
    """
    drafted = tuple(name for name, entry in METHODS.items() if entry.drafted)
    free = paper.model_type == "eagle" and not (paper.peanut or paper.static_tree)
    method = recipe if method is None and free and recipe != "ar" else method
    claims: dict[str, tuple[str, ...]] = {}  # flag -> the methods it goes with
    for claimed, flag, fits in (
        (method is not None, f"--method {method}", (method,)),
        (paper.peanut, "--peanut", ("adt",)),
        (paper.static_tree, "--static_tree", ("static",)),
        (paper.model_type == "base", "--model_type base", ("ar",)),
        (paper.model_type == "eagle", "--model_type eagle", ("eagle2", *drafted)),
    ):
        claims |= {flag: fits} if claimed else {}
    for flag, fits in claims.items():
        for other, others in claims.items():
            if not set(fits) & set(others):
                raise SettingsError(
                    f"{other}: found together with {flag}, which means {' or '.join(fits)}; "
                    "allowed: flags that mean the same --method"
                )
    return min(claims.values(), key=len)[0] if claims else None
