"""Fields of the settings: what each one may hold, and how text becomes it."""

import math
import re
from dataclasses import Field, field, fields, is_dataclass
from typing import Any, NoReturn, get_args

_WHOLE = re.compile(r"[+-]?[0-9]+")
_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")
_BOOLEANS = {
    "true": True,
    "yes": True,
    "on": True,
    "1": True,
    "false": False,
    "no": False,
    "off": False,
    "0": False,
}
_KIND_NAMES = {
    int: "a whole number",
    float: "a number",
    str: "text that is not blank",
    bool: "true or false",
}


class SettingsError(ValueError):
    """A flag, recipe or file that cannot be used; the message names it, what was found, what is allowed."""


def refuse(flag: str, found: object, allowed: str) -> NoReturn:
    """Raise the error of flag `--flag`: `found` is shown as Python writes it, shortened."""
    shown = repr(found)
    shown = shown if len(shown) <= 100 else shown[:97] + "..."
    raise SettingsError(f"--{flag}: found {shown}; allowed: {allowed}")


def setting(default: Any, text: str, **limits: Any) -> Any:
    """A dataclass field that `check_fields` checks and the command line offers.

    default: None where other settings decide; text: one line of help; limits: choices (tuple), low and high
    (inclusive), above (exclusive), shown (the help's text of a default that other settings decide).
    """
    return field(default=default, metadata={"help": text, **limits})


def settings_fields(owner: type | object) -> dict[str, Field]:
    """The fields that are settings, by flag: the class's `prefix`, if it has one, and the field's name."""
    prefix = getattr(owner, "prefix", "")
    return {prefix + f.name: f for f in fields(owner) if "help" in f.metadata}


def kind(f: Field) -> type:
    """bool, int, float or str: the field's type without None."""
    return next((t for t in get_args(f.type) if t is not type(None)), f.type)


def allowed(f: Field) -> str:
    """What the field may hold, in words."""
    limits = f.metadata
    if "choices" in limits:
        return ", ".join(map(str, limits["choices"]))
    words = [_KIND_NAMES[kind(f)]]
    words += [f"above {limits['above']}"] if "above" in limits else []
    words += [f"at least {limits['low']}"] if "low" in limits else []
    words += [f"at most {limits['high']}"] if "high" in limits else []
    return " ".join(words[:2]) + "".join(f", {word}" for word in words[2:])


def parse_text(f: Field, flag: str, text: str) -> bool | int | float | str:
    """The value that `text` stands for; a SettingsError if it stands for none of the field's type."""
    wanted = kind(f)
    if wanted is str:
        return text
    if wanted is bool and text.lower() in _BOOLEANS:
        return _BOOLEANS[text.lower()]
    if wanted is int and _WHOLE.fullmatch(text) and len(text) < 25:
        return int(text)
    if wanted is float and _NUMBER.fullmatch(text):
        return float(text)
    refuse(flag, text, allowed(f))


def bounds(flag: str, text: str) -> tuple[int, int]:
    """The two numbers of a-b, a part of a list: the first index and the one behind the last."""
    match = re.fullmatch(r"([0-9]{1,9})-([0-9]{1,9})", text)
    if not match or int(match[1]) >= int(match[2]):
        refuse(flag, text, "a-b with whole numbers a < b, such as 0-100")
    return int(match[1]), int(match[2])


def check_fields(settings: object) -> None:
    """Check type and limits of a frozen dataclass's fields; whole numbers in float fields become floats."""
    for flag, f in settings_fields(settings).items():
        value = getattr(settings, f.name)
        if value is None and f.default is None:
            continue
        if kind(f) is float and type(value) is int:
            value = float(value)
            object.__setattr__(settings, f.name, value)
        if type(value) is not kind(f) or not _within(value, f.metadata):
            refuse(flag, value, allowed(f))


def _within(value: Any, limits: Any) -> bool:
    if (
        isinstance(value, float)
        and not math.isfinite(value)
        or isinstance(value, str)
        and not value.strip()
    ):
        return False
    if "choices" in limits and value not in limits["choices"]:
        return False
    return not (
        ("low" in limits and value < limits["low"])
        or ("high" in limits and value > limits["high"])
        or ("above" in limits and value <= limits["above"])
    )


def settings_dict(settings: object) -> dict[str, object]:
    """The settings, nested ones included, by the names of their flags."""
    values: dict[str, object] = {}
    for f in fields(settings):
        value = getattr(settings, f.name)
        if is_dataclass(value):
            values |= settings_dict(value)
        elif value is not None or "help" in f.metadata:
            values[getattr(settings, "prefix", "") + f.name] = value
    return values
