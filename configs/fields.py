"""What every settings class is made of, and the one way from a text or a value to a setting.

A command line and a recipe give texts, Python gives values. `parse` reads both, and settings call
it when they are made, so that no source is checked less than another.
"""

import difflib
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, NoReturn, Self, TypeVar, get_args

import yaml

from configs.downloads import damage, failed_download

ROOT = Path(__file__).resolve().parent.parent  # the checkout
# Narrower than Python's int and float, which also take 1_000, nan and digits of other scripts.
_WHOLE = re.compile(r"[+-]?[0-9]{1,24}")
NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_SWITCH = dict.fromkeys(("true", "yes", "on", "1"), True)
_SWITCH |= dict.fromkeys(("false", "no", "off", "0"), False)
_KIND_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text that is not blank",
    bool: "true or false",
}
Values = dict[str, Any]  # values by the names of their flags
S = TypeVar("S", bound="Settings")


class SettingsError(ValueError):
    """A flag, recipe or file that cannot be used: what was expected, and what it is."""


def mismatch(source: str, got: str, expected: str, advice: str = "") -> SettingsError:
    """Return an error in the form that all errors of settings have.

    source: the flag, argument, file or entry; got: its value. expected: what it may be; "only with
    ..." if the value is good but does not work here. advice: a sentence that says what to do.
    """
    text = f"{got} works {expected}" if expected.startswith("only ") else ""
    text = text or f"expected {expected}, got {got}"
    return SettingsError(f"{source}: {text}" + (f". {advice}" if advice else ""))


def refuse(flag: str, value: object, expected: str, advice: str = "") -> NoReturn:
    """Raise the error of `--flag`; the value is shown as Python writes it, shortened."""
    shown = repr(value)
    shown = shown if len(shown) <= 100 else shown[:97] + "..."
    raise mismatch(f"--{flag}", shown, expected, advice)


def missing(source: str, expected: str) -> SettingsError:
    """Return the error of a value that is required and was not given."""
    return mismatch(source, "nothing", expected)


@contextmanager
def refusing(source: str = "") -> Iterator[None]:
    """Let a ValueError of the block be a SettingsError; source: put before its text."""
    try:
        yield
    except ValueError as error:
        raise SettingsError(f"{source}{error}") from error


def one_of(names: Iterable[str]) -> str:
    """Return names as a sentence lists them: a, b or c."""
    *names, last = names
    return f"{', '.join(names)} or {last}" if names else last


def renamed_flags(text: str, names: Mapping[str, str]) -> str:
    """Return an error's text with the names that callers know instead of `--flag`.

    names: by flag. Text between backticks stays, since it is a command to type.
    """
    return re.sub(r"`[^`]*`|--(\w+)", lambda match: names.get(match[1], match[0]), text)


def found_at(path: str | Path) -> str:
    """Return, in words, what is at a path where something else is wanted."""
    if Path(path).is_dir():
        return "a folder"
    return "a file" if Path(path).is_file() else "a path that does not exist"


def in_checkout(path: str) -> str:
    """Return a path; one that is not here but in the checkout is the checkout's."""
    included = os.path.join(ROOT, path)
    return included if not os.path.exists(path) and os.path.exists(included) else path


def near_names(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Return a question after names that are like a mistyped one; "" without any."""
    near = difflib.get_close_matches(name, names, 3, 0.6)
    return f"Did you mean {one_of(prefix + other for other in near)}?" if near else ""


def setting(text: str | Callable[[], str], default: Any = None, **limits: Any) -> Any:
    """Declare one setting: a dataclass field with a flag.

    text: its line of help.
    default: None where other settings decide, MISSING where the user has to.
    limits: choices (names); low, high (inclusive); above (exclusive); path (True: `~` is replaced);
        wanted (what errors say is allowed); advice (what they say to do); shown (the default in the
        help, where it depends). text and shown may be functions, called when they are read.
    """
    metadata = {"help": text, **limits}
    return field(default=default, kw_only=default is MISSING, metadata=metadata)


def part(owner: type) -> Any:
    """Declare settings inside settings; without a value they have their defaults."""
    return field(default_factory=owner, metadata={"parts": lambda: [owner]})


def optional_part(owners: Callable[[], Iterable[type]]) -> Any:
    """Declare settings inside settings that are of one of several classes, or None."""
    return field(default=None, metadata={"parts": owners})


@dataclass(frozen=True)
class Settings:
    """Settings that are checked when they are made.

    A class declares `setting` fields and may inherit those of others. The `settle` of each class
    refuses what does not go together and decides what was left None; base classes come first.
    """

    group: ClassVar[str] = ""  # heading in the help
    prefix: ClassVar[str] = ""  # of the flags

    def __init_subclass__(cls, group: str = "", prefix: str = "") -> None:
        cls.group, cls.prefix = group or cls.group, prefix or cls.prefix

    def __post_init__(self) -> None:
        for flag, f in settings_fields(self).items():
            self.put(**{f.name: parse(f, flag, getattr(self, f.name))})
        # vars() finds only what a class defines itself; getattr would run an inherited one twice.
        for owner in reversed(type(self).__mro__):
            if "settle" in vars(owner):
                vars(owner)["settle"](self)

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Self:
        """Make the settings, parts included, from values by flag."""
        return build(cls, values)

    def put(self, **values: object) -> None:
        """Set fields. Only for `settle`: afterwards settings do not change."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def fill(self, **values: object) -> None:
        """Set those of the fields that are None."""
        self.put(**{name: value for name, value in values.items() if getattr(self, name) is None})


def settings_fields(owner: type | object) -> dict[str, Field]:
    """Return the settings of a class, without its parts, by flag."""
    prefix = getattr(owner, "prefix", "")
    return {prefix + f.name: f for f in fields(owner) if "help" in f.metadata}


def parts_of(owner: type[Settings]) -> Iterator[type[Settings]]:
    """Yield the classes that a class consists of: those it inherits, itself, those inside it."""
    yield from (base for base in reversed(owner.__mro__) if issubclass(base, Settings))
    for f in fields(owner):
        for inner in f.metadata["parts"]() if "parts" in f.metadata else ():
            yield from parts_of(inner)


def flags_in(owner: type[Settings]) -> dict[str, Field]:
    """Return all settings of a class and its parts, by flag; of two of one name the outer."""
    flags: dict[str, Field] = {}
    for inner in parts_of(owner):
        flags = settings_fields(inner) | flags
    return flags


def build(owner: type[S], values: Mapping[str, Any], **ready: Any) -> S:
    """Make settings from values by flag; values of other flags are left alone.

    ready: fields that are not made from the values.
    """
    given = {f.name: values[flag] for flag, f in settings_fields(owner).items() if flag in values}
    for f in fields(owner):
        if "parts" in f.metadata and f.default is MISSING and f.name not in ready:
            given[f.name] = f.default_factory.of(values)
    for flag, f in settings_fields(owner).items():
        if f.default is MISSING and f.name not in given:
            raise missing(f"--{flag}", allowed(f))
    return owner(**given, **ready)


def settings_dict(settings: object) -> dict[str, object]:
    """Return the settings, parts included, by the names of their flags."""
    values: dict[str, object] = {}
    for f in fields(settings):
        value = getattr(settings, f.name)
        if isinstance(value, Settings):
            values |= settings_dict(value)
        elif value is not None or "help" in f.metadata:
            values[getattr(settings, "prefix", "") + f.name] = value
    return values


def help_text(f: Field) -> str:
    """Return a flag's line of help."""
    text = f.metadata["help"]
    return text() if callable(text) else text


def kind(f: Field) -> type:
    """bool, int, float or str: the field's type without None."""
    return next((t for t in get_args(f.type) if t is not type(None)), f.type)


def allowed(f: Field) -> str:
    """Say what the field may hold."""
    limits = f.metadata
    if "wanted" in limits:
        return limits["wanted"]
    if "choices" in limits:
        return one_of(limits["choices"])
    if "low" in limits and "high" in limits:
        return f"{_KIND_NAMES[kind(f)]} from {limits['low']} to {limits['high']}"
    words = {"above": "above", "low": "at least", "high": "at most"}
    bounds = [f"{word} {limits[name]}" for name, word in words.items() if name in limits]
    return " ".join([_KIND_NAMES[kind(f)], ", ".join(bounds)]).strip()


def parse(f: Field, flag: str, value: Any) -> Any:
    """Return a field's value, from the text of a command line or recipe, or from Python's value.

    A whole number becomes a float if one is wanted, and `~` is replaced in paths.
    """
    limits = f.metadata
    if value is None and f.default is None:
        return value
    if isinstance(value, str):
        if "\0" in value:
            refuse(flag, value, "text without the character NUL")
        value = _of_text(kind(f), value)
    elif kind(f) is float and type(value) is int:
        value = float(value)
    # Not isinstance: True is an int, but no number of images.
    if type(value) is not kind(f) or not _within(value, limits):
        near = near_names(value, limits.get("choices", ())) if isinstance(value, str) else ""
        refuse(flag, value, allowed(f), near or limits.get("advice", ""))
    return os.path.expanduser(value) if "path" in limits else value


def _of_text(wanted: type, text: str) -> bool | int | float | str:
    """Return the value of a text; the text itself if it is none of the wanted type."""
    if wanted is bool:
        return _SWITCH.get(text.lower(), text)
    if wanted is int and _WHOLE.fullmatch(text):
        return int(text)
    if wanted is float and NUMBER.fullmatch(text):
        return float(text)
    return text


def _within(value: Any, limits: Mapping[str, Any]) -> bool:
    if isinstance(value, str) and not value.strip():
        return False
    if isinstance(value, float) and not math.isfinite(value):
        return False
    return (
        value in limits.get("choices", (value,))
        and value >= limits.get("low", value)
        and value <= limits.get("high", value)
        and ("above" not in limits or value > limits["above"])
    )


def bounds(flag: str, text: str) -> tuple[int, int]:
    """Return the two numbers of a-b: the first index, and the one after the last."""
    match = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", text)
    if not match or int(match[1]) >= int(match[2]):
        refuse(flag, text, "a-b with whole numbers a < b, such as 0-100")
    return int(match[1]), int(match[2])


def read_yaml(path: str, flag: str) -> dict[str, Any]:
    """Return the keys of the YAML file that `flag` names; values are texts, or lists and dicts."""
    source, lines = f"--{flag} {path}", "`name: value` lines"
    try:
        content = yaml.load(Path(in_checkout(path)).read_text("utf-8"), _TextLoader)
    except (FileNotFoundError, IsADirectoryError) as error:
        folder, name = os.path.split(path)
        elsewhere = "" if os.path.isabs(path) or os.path.exists(path) else f", here or in {ROOT}"
        names = [file.name for one in (folder, ROOT / folder) for file in Path(one).glob("*.yaml")]
        near = near_names(name, dict.fromkeys(names), os.path.join(folder, ""))
        raise mismatch(source, found_at(path) + elsewhere, "a YAML file", near) from error
    except RecursionError as error:
        raise mismatch(source, "lists nested too deeply", lines) from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise mismatch(source, damage(Path(path), error), "a YAML file") from error
    if content not in (None, "") and not isinstance(content, dict):
        raise mismatch(source, failed_download(Path(path)) or f"a {type(content).__name__}", lines)
    return content or {}


class _TextLoader(yaml.BaseLoader):
    """YAML in which every value is text, a key stands only once and nothing is null.

    YAML's own reading would make 2024_01_01 the number 20240101, 12:30 750 and 010 8.
    """

    def construct_scalar(self, node: yaml.ScalarNode) -> str:
        if node.style is None and node.value in ("~", "null", "Null", "NULL"):
            problem = f"{node.value} for a value; a text is written in quotes"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_scalar(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                problem = f"key {key!r} twice"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return super().construct_mapping(node, deep)
