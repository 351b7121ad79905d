"""The commands of the command line: one module each, named as the command.

A module has a `COMMAND`: its flags, how their texts become settings, and what it runs. fire sees
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
from configs.gone import translated
from configs.recipes import (
    Known,
    RecipeFlags,
    check_flag,
    family_recipe,
    import_plugin,
    overridden,
    read,
)
from configs.rules import Code, loaded
from configs.targets import TARGETS
from runs.opening import tell_family

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
    """A command: its flags, how their texts become settings, and what it runs."""

    name: str
    summary: str  # its line of help
    owners: tuple[type[Settings], ...]  # the classes that its flags are declared in
    settings: Callable[[Mapping[str, str]], Any]  # of texts by flag
    work: Code  # of settings; imported once they have been checked
    plan: Code | None = None  # of settings, what --dry_run would do; None: it has no such flag
    without: tuple[str, ...] = ()  # flags of the classes that it does not have
    resumes: bool = False  # whether the same command continues what one has begun

    @property
    def flags(self) -> dict[str, Field]:
        flags = flags_in(*self.owners)
        without = self.without if self.plan else (*self.without, "dry_run")
        return {name: f for name, f in flags.items() if name not in without}

    @property
    def known(self) -> Known:
        return Known(self.name, self.flags)

    def read(self, texts: Mapping[str, str]) -> tuple[Values, Values]:
        """Return what the recipes say, and what the command line says, by flag."""
        return read(self.known, texts)

    def values(self, texts: Mapping[str, str]) -> Values:
        """Return what the recipes and the command line say; the command line wins."""
        return overridden(*self.read(texts))

    def texts(self, words: Sequence[str]) -> dict[str, str]:
        """Return the texts of the flags, by name, in the words that follow the command."""
        self.import_plugin(words)  # first: it may bring flags, methods and rules
        known, rest = self.known, list(words)
        if "method" in known.flags and (line := translated(words)) is not None:
            text = "flags of the paper's repository are others here. Type this"
            raise SettingsError(f"{text}: `python main.py {self.name} {line}`")
        texts: dict[str, str] = {}
        while rest:
            word = rest.pop(0)
            if not word.startswith("--") or word == "--":
                _refuse_word(word, known.flags)
            name, equals, text = word[2:].partition("=")
            name = name.replace("-", "_")
            negated = None if equals else _negated(name, known.flags)
            check_flag(negated or name, known)
            if negated:
                name, text = negated, "false"
            elif not equals:
                text = _value(name, known.flags[name], rest)
            if name in texts:
                if "many" not in known.flags[name].metadata:
                    raise mismatch(Flag(name), f"{texts[name]!r} and {text!r}", "one value")
                text = f"{texts[name]},{text}"
            texts[name] = text
        return texts

    def carry_out(self, words: Sequence[str]) -> Callable[[], None]:
        """Return what does the words' work, or with --dry_run says what it would do."""
        texts = self.texts(words)
        dry = "dry_run" in texts and parse(self.flags["dry_run"], "dry_run", texts["dry_run"])
        settings = self.settings(texts)
        if "config" not in texts:  # then the recipe is the model's own
            model = texts.get("model", "tiny")
            tell_family(model, family_recipe(model, self.known.flags), texts)
        if dry and (plan := self.plan) is not None:
            return lambda: loaded("runs.plan:show")(loaded(plan)(settings))
        return lambda: loaded(self.work)(settings)

    def import_plugin(self, words: Sequence[str]) -> None:
        """Import the module that `--plugin NAME` or `--plugin=NAME` names, if there is one."""
        has_one = RecipeFlags in self.owners and "plugin" not in self.without
        for word, following in pairwise([*words, "-"] if has_one else ()):
            flag, equals, text = word.partition("=")
            if flag == "--plugin" and (equals or not following.startswith("-")):
                import_plugin(text if equals else following)


def _negated(name: str, flags: Mapping[str, Field]) -> str | None:
    """Return the switch that `noNAME` or `no_NAME` turns off."""
    target = name.removeprefix("no").removeprefix("_")
    negates = name not in flags and name.startswith("no") and target in flags
    return target if negates and kind(flags[target]) is bool else None


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
