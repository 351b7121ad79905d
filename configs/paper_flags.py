"""The flag names of the paper's repository, and others that stand for settings of another name."""

from dataclasses import dataclass
from typing import ClassVar

from configs.fields import Settings, SettingsError, Values, build, refuse, setting, settings_fields
from configs.method_table import METHODS


@dataclass(frozen=True)
class PaperFlags(Settings):
    """What a command line says in these names."""

    group: ClassVar[str] = "Other names (those of the paper's repository)"
    model_type: str | None = setting(
        None, "base: --method ar; eagle: --method eagle2", choices=("base", "eagle"), shown="off"
    )
    peanut: bool | None = setting(None, "--method adt", shown="off")
    static_tree: bool | None = setting(None, "--method static", shown="off")
    lantern: bool | None = setting(None, "--verifier lantern", shown="off")
    precision: str | None = setting(None, "--dtype", shown="off")
    random_seed: int | None = setting(None, "--seed", shown="off")
    set_seed: bool | None = setting(
        None, "accepted; every image has a seed of its own anyway", shown="on"
    )

    def settle(self) -> None:
        if self.set_seed is False:
            refuse("set_seed", False, "true: an image always follows from its seed")

    def methods(self) -> dict[str, tuple[str, ...]]:
        """Return, by flag, the methods that each given flag goes with, its own first."""
        drafted = (name for name, entry in METHODS.items() if entry.drafted)
        meant = {
            "--peanut": (self.peanut, ("adt",)),
            "--static_tree": (self.static_tree, ("static",)),
            "--model_type base": (self.model_type == "base", ("ar",)),
            "--model_type eagle": (self.model_type == "eagle", ("eagle2", *drafted)),
        }
        return {flag: methods for flag, (given, methods) in meant.items() if given}


def without_paper_flags(given: Values, recipe: Values) -> Values:
    """Return a command line's values with the paper's flags replaced by what they stand for.

    recipe: `--model_type eagle` alone leaves its method, and `--lantern` needs one that drafts.
    """
    names = settings_fields(PaperFlags)
    paper = build(PaperFlags, given)
    values = {name: value for name, value in given.items() if name not in names}
    for alias, name, value in (
        ("precision", "dtype", paper.precision),
        ("random_seed", "seed", paper.random_seed),
        ("lantern", "verifier", "lantern" if paper.lantern else None),
    ):
        if value is not None and values.setdefault(name, value) != value:
            refuse(alias, given[alias], f"only with --{name} {value}, not {values[name]}")
    method = _method(paper.methods(), values.get("method"), recipe.get("method"))
    values |= {} if method is None else {"method": method}
    if paper.lantern and (method or recipe.get("method")) == "ar":
        refuse("lantern", True, "only with a method that drafts, not with --method ar")
    return values


def _method(meant: dict[str, tuple[str, ...]], own: str | None, recipe: str | None) -> str | None:
    """Return the method that --method, `own`, and the paper's flags agree on; None: none is given.

    meant: flag -> the methods that it goes with.
    """
    if own is None and [*meant] == ["--model_type eagle"] and recipe != "ar":
        own = recipe
    claims = meant if own is None else {f"--method {own}": (own,), **meant}
    for flag, fits in claims.items():
        for other, others in claims.items():
            if not set(fits) & set(others):
                raise SettingsError(
                    f"{other}: found together with {flag}, which means {' or '.join(fits)}; "
                    "allowed: flags that mean the same --method"
                )
    return min(claims.values(), key=len)[0] if claims else None
