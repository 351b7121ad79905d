"""What every settings class is made of: checked fields, parts, and the error that names a flag."""

import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, ClassVar, NoReturn, TypeVar, get_args

_WHOLE = re.compile(r"[+-]?[0-9]{1,24}")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BOOLEANS = dict.fromkeys(("true", "yes", "on", "1"), True)
_BOOLEANS |= dict.fromkeys(("false", "no", "off", "0"), False)
_KIND_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text that is not blank",
    bool: "true or false",
}
Values = dict[str, Any]  # values by the names of their flags
S = TypeVar("S", bound="Settings")


class SettingsError(ValueError):
    """A flag, recipe or file that cannot be used: which one, what was found, what is allowed."""


def refuse(flag: str, found: object, allowed: str) -> NoReturn:
    """Raise the error of `--flag`; `found` is shown as Python writes it, shortened."""
    shown = repr(found)
    shown = shown if len(shown) <= 100 else shown[:97] + "..."
    raise SettingsError(f"--{flag}: found {shown}; allowed: {allowed}")


def setting(default: Any, text: str, **limits: Any) -> Any:
    """Declare one setting: a dataclass field with a flag.

    default: None where other settings decide, MISSING where the user has to.
    text: its line of help.
    limits: choices (tuple); low, high (inclusive); above (exclusive); word (a text that may stand
        for a number); path (True: `~` is replaced); wanted (what errors say is allowed); shown (the
        default in the help, where it depends);
        later (True: runs made before the flag existed are those where it is None).
    """
    required = default is MISSING
    return field(default=default, kw_only=required, metadata={"help": text, **limits})


def part(*owners: type, default: Any = MISSING) -> Any:
    """Declare settings inside settings, of the class `owners`, or of one of several.

    default: None if the part may be absent; otherwise it is made with its own defaults.
    """
    factory = owners[0] if default is MISSING else MISSING
    return field(default=default, default_factory=factory, metadata={"parts": owners})


@dataclass(frozen=True)
class Settings:
    """Settings that are checked when they are made.

    A class declares `setting` fields and may inherit those of others. The `settle` of each class
    refuses what does not go together and decides what was left None; base classes come first.
    """

    group: ClassVar[str] = ""  # heading in the help
    prefix: ClassVar[str] = ""  # of the flags

    def __post_init__(self) -> None:
        for flag, f in settings_fields(self).items():
            self.put(**{f.name: checked(f, flag, getattr(self, f.name))})
        for owner in reversed(type(self).__mro__):
            if "settle" in vars(owner):
                vars(owner)["settle"](self)

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
        for inner in f.metadata.get("parts", ()):
            yield from parts_of(inner)


def flags_in(owner: type[Settings]) -> dict[str, Field]:
    """Return all settings of a class and its parts, by flag; of two of one name the outer."""
    found: dict[str, Field] = {}
    for each in parts_of(owner):
        found = settings_fields(each) | found
    return found


def build(owner: type[S], values: Mapping[str, Any], **ready: Any) -> S:
    """Make settings from values by flag; values of other flags are left alone.

    ready: fields that are not made from the values.

    Raises:
        SettingsError: a value that is required is missing, or one cannot be used.
    """
    own = {f.name: values[flag] for flag, f in settings_fields(owner).items() if flag in values}
    for f in fields(owner):
        if f.name in ready:
            continue
        for inner in f.metadata.get("parts", ()):
            if f.default is not None or not values.keys().isdisjoint(flags_in(inner)):
                own[f.name] = build(inner, values)
    for flag, f in settings_fields(owner).items():
        if f.default is MISSING and f.name not in own:
            raise SettingsError(f"--{flag}: missing; allowed: {allowed(f)}")
    return owner(**own, **ready)


def settings_dict(settings: object) -> dict[str, object]:
    """Return the settings, parts included, by the names of their flags.

    Flags that came later are left out while they are None: identities of older runs lack them.
    """
    values: dict[str, object] = {}
    for f in fields(settings):
        value = getattr(settings, f.name)
        if isinstance(value, Settings):
            values |= settings_dict(value)
        elif value is not None or ("help" in f.metadata and not f.metadata.get("later")):
            values[getattr(settings, "prefix", "") + f.name] = value
    return values


def kind(f: Field) -> type:
    """bool, int, float or str: the field's type without None."""
    return next((t for t in get_args(f.type) if t is not type(None)), f.type)


def allowed(f: Field) -> str:
    """Say what the field may hold."""
    limits = f.metadata
    if "wanted" in limits:
        return limits["wanted"]
    if "choices" in limits:
        return ", ".join(map(str, limits["choices"]))
    words = [f"above {limits['above']}"] if "above" in limits else []
    words += [f"at least {limits['low']}"] if "low" in limits else []
    words += [f"at most {limits['high']}"] if "high" in limits else []
    found = " ".join([_KIND_NAMES[kind(f)], ", ".join(words)]).strip()
    return f"{limits['word']}, or {found}" if "word" in limits else found


def parse_text(f: Field, flag: str, text: str) -> bool | int | float | str:
    """Return the value of a text; a SettingsError if it is none of the field's type."""
    wanted = kind(f)
    if wanted is str or text == f.metadata.get("word"):
        return text
    if wanted is bool and (switch := parse_switch(text)) is not None:
        return switch
    if wanted is int and _WHOLE.fullmatch(text):
        return int(text)
    if wanted is float and _NUMBER.fullmatch(text):
        return float(text)
    refuse(flag, text, allowed(f))


def parse_switch(text: str) -> bool | None:
    """Return the value of a word such as true, off or No; None for any other text."""
    return _BOOLEANS.get(text.lower())


def checked(f: Field, flag: str, value: Any) -> Any:
    """Return a field's value: a float for a whole number if one is wanted, `~` replaced in paths.

    Raises:
        SettingsError: the value has another type, or is out of the field's limits.
    """
    if value is None and f.default is None:
        return None
    if isinstance(value, str) and value == f.metadata.get("word"):
        return value
    if kind(f) is float and type(value) is int:
        value = float(value)
    if isinstance(value, str) and "\0" in value:
        refuse(flag, value, "text without the character NUL")
    if type(value) is not kind(f) or not _within(value, f.metadata):
        refuse(flag, value, allowed(f))
    return os.path.expanduser(value) if "path" in f.metadata else value


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
