"""The commands of the command line: one module each, named as the command.

A module has a `COMMAND`: its flags, how their values become settings, and what it runs. fire sees
none of the flags: it runs a command first and complains about flags afterwards, takes `--prompt`
without a value for True, fills parameters with stray words and lets the last of two values win.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import Field, dataclass
from importlib import import_module
from itertools import pairwise
from typing import Any, NoReturn

from configs.fields import (
    Flag,
    Settings,
    SettingsError,
    Values,
    allowed,
    flags_in,
    kind,
    mismatch,
    parse,
)
from configs.gone import refuse_theirs
from configs.methods import AUTO, METHODS
from configs.recipes import (
    Known,
    RecipeFlags,
    import_plugin,
    joined,
    overridden,
    paper_row,
    read_recipe,
    unknown_flag,
)
from configs.rules import Code, loaded
from configs.targets import TARGETS
from models.files.folders import LOCAL
from runs.opening import tell_family
from support.scope import during

NAMES = (
    "generate_images",
    "benchmark",
    "tune",
    "evaluate",
    "extract_tokens",
    "inspect",
    "vq_distances",
    "demo",
    "train_drafter",
)


@dataclass(frozen=True)
class Command:
    """A command: its flags, how their values become settings, and what it runs."""

    name: str
    summary: str  # its line of help
    owners: tuple[type[Settings], ...]  # the classes that its flags are declared in
    # of what the recipes say, and of what the command line says, which wins
    settings: Callable[[Values, Values], Any]
    work: Code  # of settings; imported once they have been checked
    plan: Code | None = None  # of settings, what --dry_run would do; None: it has no such flag
    without: tuple[str, ...] = ()  # flags of the classes that it does not have
    resumes: bool = False  # whether the same command continues what one has begun

    @property
    def known(self) -> Known:
        """Its flags, those of a plugin's methods and rules among them."""
        without = self.without if self.plan else (*self.without, "dry_run")
        flags = flags_in(*self.owners)
        return Known(self.name, {name: flags[name] for name in flags if name not in without})

    def carry_out(self, words: Sequence[str]) -> Callable[[], None]:
        """Return what does the words' work, or with --dry_run says what it would do."""
        self.import_plugin(words)  # first: it may bring flags, methods and rules
        known = self.known
        texts = read_words(words, known)
        recipe, given = values_of(texts, known)
        dry = given.pop("dry_run", False)
        with during(LOCAL, dry):
            settings = self.settings(recipe, given)
        if "model" in given and "config" not in texts:  # then the recipe is the model's own
            tell_family(given["model"], recipe, given)
        if dry and (plan := self.plan) is not None:
            return lambda: _show(plan, settings)
        return lambda: loaded(self.work)(settings)

    def import_plugin(self, words: Sequence[str]) -> None:
        """Import the module that --plugin names, if the command has this flag."""
        has_one = RecipeFlags in self.owners and "plugin" not in self.without
        if has_one and (name := text_after("--plugin", words)) is not None:
            import_plugin(name)


def text_after(flag: str, words: Sequence[str]) -> str | None:
    """Return the text of a flag in words that nobody has read yet; None without one."""
    for word, following in pairwise([*words, "-"]):
        name, equals, text = word.partition("=")
        if name == flag and (equals or not following.startswith("-")):
            return text if equals else following
    return None


@during(LOCAL, True)
def _show(plan: Code, settings: Any) -> None:
    """Say what a command would do."""
    loaded("runs.plan:show")(loaded(plan)(settings))


def read_words(words: Sequence[str], known: Known) -> dict[str, str]:
    """Return the texts of the flags, by name, in the words that follow a command."""
    texts: dict[str, str] = {}
    rest, flags = list(words), known.flags
    try:
        while rest:
            word = rest.pop(0)
            if not word.startswith("--") or word == "--":
                _refuse_word(word, flags)
            name, equals, text = word[2:].partition("=")
            name = name.replace("-", "_")
            if name not in flags:
                if equals or not _turns_off(name, flags):
                    raise unknown_flag(name, known)
                name, text = name.removeprefix("no").removeprefix("_"), "false"
            elif not equals:
                text = _value(name, flags[name], rest)
            if name in texts:
                if "many" not in flags[name].metadata:
                    raise mismatch(Flag(name), f"{texts[name]!r} and {text!r}", "one value")
                text = f"{texts[name]},{text}"
            texts[name] = text
    except SettingsError:
        if "method" in flags:
            refuse_theirs(known.command, words)
        raise
    return texts


def values_of(texts: Mapping[str, str], known: Known) -> tuple[Values, Values]:
    """Return what recipes say, if some are named, and what the command line says, by flag."""
    method = texts.get("method", AUTO)
    row = None if method in (AUTO, *METHODS) else paper_row(method)
    flags = [name for name in texts if name != "method" or row is None]
    given = {name: parse(known.flags[name], name, texts[name]) for name in flags}
    given.pop("plugin", None)  # imported before
    config = given.pop("config", None)
    recipe = {} if config is None and "model" not in given else joined(config, given, known)
    return (recipe if row is None else overridden(recipe, read_recipe(row, known))), given


def _turns_off(name: str, flags: Mapping[str, Field]) -> bool:
    """Return whether a name that is no flag is a switch's: `noNAME` or `no_NAME`."""
    switch = flags.get(name.removeprefix("no").removeprefix("_"))
    return name.startswith("no") and switch is not None and kind(switch) is bool


def _value(name: str, f: Field, rest: list[str]) -> str:
    """Return the text of a flag without '=': the next word, taken off `rest`; of a switch true."""
    if kind(f) is bool:
        return rest.pop(0) if rest and rest[0].lower() in ("true", "false") else "true"
    # The next word is a flag itself, unless it is a text such as "-1" or "-5 °C".
    if not rest or re.match(r"--|-[a-zA-Z]", rest[0]):
        got = f"the flag {rest[0]!r}" if rest else "nothing"
        advice = f"Write a value that starts with a dash as --{name}=VALUE." if rest else ""
        raise mismatch(Flag(name), got, allowed(f), advice)
    return rest.pop(0)


def _refuse_word(word: str, flags: Mapping[str, Field]) -> NoReturn:
    if word.startswith("-") and word not in ("-", "--"):
        advice = "Write flags with two dashes: --flag value."
        raise SettingsError("unknown flag", word, advice=advice)
    advice = "Write values after their flag: --flag value or --flag=value."
    if word in TARGETS and "model" in flags:
        advice = f"Did you mean --model {word}?"
    elif "prompt" in flags:
        advice = 'Put a prompt with spaces in quotes: --prompt "a red circle".'
    raise SettingsError("a word without a flag", repr(word), advice=advice)


def command(name: str) -> Command:
    """Return a command by its name."""
    return import_module(f"commands.{name}").COMMAND
