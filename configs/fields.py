"""What every settings class is made of, and the one way from a text or a value to a setting.

A command line and a recipe give texts, Python gives values. `parse` reads both, and settings call
it when they are made, so that no source is checked less than another.
"""

import difflib
import heapq
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn, Self, TypeVar, get_args

ROOT = Path(__file__).resolve().parent.parent  # the checkout
# Narrower than Python's int and float, which also take 1_000, nan and digits of other scripts.
_WHOLE = re.compile(r"[+-]?[0-9]{1,24}")
# A name in quotes, in which a quote is doubled, or a bare one; then a comma or the end.
_ENTRY = re.compile(r'\s*(?:"((?:[^"]|"")*)"|([^,]*?))\s*(,|\Z)', re.DOTALL)
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
T = TypeVar("T")


class Flag(NamedTuple):
    """What an error is about: a flag, and the path or text that was given for it, if it matters."""

    name: str
    value: object = ""


class SettingsError(ValueError):
    """A flag, argument, recipe or file that cannot be used.

    `str` writes flags as `--seed`, or as the border wants that sets `spell`: Python and the API
    have other names. In our own words (`text`, `expected`, `advice`) flags stand as `--seed`, and
    commands to type between backticks; what was given, `got`, is shown as it is.
    """

    def __init__(
        self,
        text: str = "",  # what is wrong, where got and expected do not say it
        source: Flag | str = "",  # the flag, file or entry that it is about
        got: str = "",
        expected: str = "",  # "only with ..." if the value is good but does not work here
        advice: str = "",  # a sentence that says what to do
    ):
        super().__init__()
        self.text, self.source, self.advice = text, source, advice
        self.got, self.expected = got, expected
        self.inside: tuple[Flag | str, ...] = ()  # what is around the source, outermost first
        self.spell: Callable[[str], str] = "--{}".format

    @property
    def flag(self) -> str | None:
        """The flag that the error is about."""
        return self.source.name if isinstance(self.source, Flag) and not self.inside else None

    def __str__(self) -> str:
        places = [
            f"{self.spell(place.name)} {place.value}".strip() if isinstance(place, Flag) else place
            for place in (*self.inside, self.source)
        ]
        text, expected, advice = (
            spelled(words, self.spell) for words in (self.text, self.expected, self.advice)
        )
        if expected.startswith("only "):
            text = f"{self.got} works {expected}"
        text = text or f"expected {expected}, got {self.got}"
        text = ": ".join(filter(None, (*places, text)))
        return text + (f". {advice}" if advice else "")


def spelled(text: str, spell: Callable[[str], str]) -> str:
    """Return a text with flags as a border writes them; commands in backticks stay."""
    return re.sub(r"`[^`]*`|--(\w+)", lambda m: spell(m[1]) if m[1] else m[0], text)


def mismatch(source: Flag | str, got: str, expected: str, advice: str = "") -> SettingsError:
    """Return the error of a value; the arguments are those of `SettingsError`."""
    return SettingsError(source=source, got=got, expected=expected, advice=advice)


def settled(value: T | None) -> T:
    """Return a setting that `settle` has filled in."""
    assert value is not None
    return value


def refuse(flag: str, value: object, expected: str, advice: str = "") -> NoReturn:
    """Raise the error of a flag; the value is shown as Python writes it, shortened."""
    shown = repr(value)
    shown = shown if len(shown) <= 100 else shown[:97] + "..."
    raise mismatch(Flag(flag), shown, expected, advice)


def missing(source: Flag | str, expected: str) -> SettingsError:
    """Return the error of a value that is required and was not given."""
    return mismatch(source, "nothing", expected)


@contextmanager
def refusing(inside: Flag | str = "") -> Iterator[None]:
    """Let a ValueError of the block be a SettingsError; inside: the flag or file that it reads."""
    around: tuple[Flag | str, ...] = (inside,) if inside else ()
    try:
        yield
    except SettingsError as error:
        error.inside = (*around, *error.inside)
        raise
    except ValueError as error:
        told = SettingsError(str(error))
        told.inside = around
        raise told from error


def one_of(names: Iterable[str]) -> str:
    """Return names as a sentence lists them: a, b or c."""
    *names, last = names
    return f"{', '.join(names)} or {last}" if names else last


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
    words, near = set(name.split("_")), dict.fromkeys(names, 0.0)
    for other in near:
        letters = difflib.SequenceMatcher(None, other, name).ratio()
        # as "samples" is in samples_per_prompt
        shared = sum(map(len, words & set(other.split("_")))) / max(len(name), 1)
        near[other] = max(letters * (letters >= 0.6), shared * (shared >= 0.3))
    best = heapq.nlargest(3, filter(near.__getitem__, near), near.__getitem__)
    return f"Did you mean {one_of(prefix + other for other in best)}?" if best else ""


def setting(text: str | Callable[[], str], default: Any = None, **limits: Any) -> Any:
    """Declare one setting: a dataclass field with a flag.

    text: its line of help.
    default: None where other settings decide, MISSING where the user has to.
    limits: choices (names); low, high (inclusive); above (exclusive); path (True: `~` is replaced);
        many (True: the flag may be repeated, as if by commas); pattern (of texts); group (heading
        in the help, where it is not the class's); wanted (what errors say is allowed); advice (what
        they say to do); hints (advice on certain values); shown (the default in the help, where it
        depends). text and shown may be functions, called when they are read.
    """
    metadata = {"help": text, **limits}
    return field(default=default, kw_only=default is MISSING, metadata=metadata)


def part(owner: type) -> Any:
    """Declare settings inside settings; without a value they have their defaults."""
    return field(default_factory=owner, metadata={"part": owner})


def part_in(table: Mapping[str, Any]) -> Any:
    """Declare settings inside settings that are those of an entry's `settings`, or None."""
    return field(default=None, metadata={"table": table})


@dataclass(frozen=True)
class Settings:
    """Settings that are checked when they are made.

    A class declares fields by `setting`, and settings inside it by `part`. Its `settle` refuses
    what does not go together and decides what was left None; its parts are settled before it.
    """

    group: ClassVar[str] = ""  # heading in the help
    prefix: ClassVar[str] = ""  # of the flags

    def __init_subclass__(cls, group: str = "", prefix: str = "") -> None:
        cls.group, cls.prefix = group, prefix

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if "help" in f.metadata and value is not f.default:
                object.__setattr__(self, f.name, parse(f, self.prefix + f.name, value))
        self.settle()

    def settle(self) -> None:
        """Check the settings as a whole."""

    @classmethod
    def of(cls, values: Mapping[str, Any] | None = None, /, **more: Any) -> Self:
        """Make the settings, parts included, from values by flag; other flags are left alone.

        more: further values, or the values of fields that are no flags; a part by its name.
        """
        values = {**(values or {}), **more}
        given = {}
        for f in fields(cls):
            flag = cls.prefix + f.name
            if "help" in f.metadata:
                if flag in values:
                    given[f.name] = values[flag]
                elif f.default is MISSING:
                    raise missing(Flag(flag), allowed(f))
            elif f.name in more or isinstance(values.get(f.name), Settings):
                given[f.name] = values[f.name]
            elif "part" in f.metadata:
                given[f.name] = f.metadata["part"].of(values)
        return cls(**given)

    def put(self, **values: object) -> None:
        """Set fields. Only for `settle`: afterwards settings do not change."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def fill(self, **values: object) -> None:
        """Set those of the fields that are None."""
        for name, value in values.items():
            if getattr(self, name) is None:
                self.put(**{name: value})


def declared(owner: type[Settings]) -> Iterator[tuple[str, str, Field]]:
    """Yield the settings of a class and its parts: heading in the help, flag, field."""
    for f in fields(owner):
        if "help" in f.metadata:
            yield f.metadata.get("group", owner.group), owner.prefix + f.name, f
        for inner in _inner(f):
            yield from declared(inner)


def flags_in(*owners: type[Settings]) -> dict[str, Field]:
    """Return all settings of classes and their parts, by flag; of two of one name the outer."""
    flags: dict[str, Field] = {}
    for owner in owners:
        for f in fields(owner):
            if "help" in f.metadata:
                flags[owner.prefix + f.name] = f
            else:
                flags = flags_in(*_inner(f)) | flags
    return flags


def _inner(f: Field) -> list[type[Settings]]:
    """Return the classes that settings inside settings may be of, each once."""
    if "part" in f.metadata:
        return [f.metadata["part"]]
    entries = f.metadata.get("table", {}).values()
    return [*dict.fromkeys(entry.settings for entry in entries if entry.settings)]


def settings_dict(settings: Settings) -> Values:
    """Return the settings, parts included, by the names of their flags."""
    values: Values = {}
    for f in fields(settings):
        value = getattr(settings, f.name)
        if isinstance(value, Settings):
            values |= settings_dict(value)
        elif value is not None or "help" in f.metadata:
            values[settings.prefix + f.name] = value
    return values


def help_text(f: Field) -> str:
    """Return a flag's line of help."""
    text = f.metadata["help"]
    return text() if callable(text) else text


def kind(f: Field) -> type:
    """bool, int, float or str: the field's type without None."""
    return (*get_args(f.type), f.type)[0]


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
        hint = ""
        if isinstance(value, str):
            near = near_names(value, limits.get("choices", ()))
            hint = limits.get("hints", {}).get(value, near)
        refuse(flag, value, allowed(f), hint or limits.get("advice", ""))
    return os.path.expanduser(str(value)) if "path" in limits else value


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
    if value not in limits.get("choices", (value,)):
        return False
    if isinstance(value, str):
        pattern = limits.get("pattern", "(?s).*")
        return value.strip() != "" and re.fullmatch(pattern, value) is not None
    if isinstance(value, float) and not math.isfinite(value):
        return False
    low, high = limits.get("low", value), limits.get("high", value)
    return low <= value <= high and ("above" not in limits or value > limits["above"])


def bounds(flag: str, text: str, other: str = "") -> tuple[int, int]:
    """Return the two numbers of start-stop: the first index, and the one after the last.

    other: what the flag also takes, for errors.
    """
    match = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", text)
    if not match or int(match[1]) >= int(match[2]):
        refuse(flag, text, f"start-stop with whole numbers start < stop, such as 0-100{other}")
    return int(match[1]), int(match[2])


def split_list(text: str) -> list[str]:
    """Return the names in a list such as `one,"two, and more"`; blanks around bare names go."""
    names: list[str] = []
    end, more = 0, ","
    while more:
        match = _ENTRY.match(text, end)
        assert match is not None  # the pattern matches any text
        quoted, bare, more = match.groups()
        names.append(bare if quoted is None else quoted.replace('""', '"'))
        end = match.end()
    return names


def join_list(names: Iterable[str]) -> str:
    """Return the list that `split_list` splits into these names."""
    return ",".join(map(in_list, names))


def in_list(name: str) -> str:
    """Return a name as a list writes it: in quotes if it needs them."""
    bare = split_list(name) == [name] and not name.startswith('"')
    return name if bare else '"' + name.replace('"', '""') + '"'
