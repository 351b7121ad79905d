"""Checks of the entries of config.json; a fault names the entry, its value and what is allowed."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NoReturn, TypeGuard

from configs.fields import mismatch


def refuse_entry(name: str, value: object, expected: str, file: str = "config.json") -> NoReturn:
    """Raise the error of an entry of a model's file."""
    raise mismatch(f"{file}: {name}", repr(value), expected)


@contextmanager
def library_errors(source: object) -> Iterator[None]:
    """Turn what a library raises for entries that it cannot use, of many types, into one line."""
    try:
        yield
    except Exception as error:
        shown = " ".join(str(error).split())
        raise ValueError(f"{source}: {shown}") from error


def require_values(
    entries: Mapping[str, object],
    allowed: Mapping[str, tuple[object, ...]],
    prefix: str = "",
    file: str = "config.json",
) -> None:
    """Refuse the first entry that has none of the values that are built here.

    Absent entries are right. In errors a None beside other values is not told.
    """
    for name, values in allowed.items():
        if (value := entries.get(name, values[0])) not in values:
            told = [repr(one) for one in values if one is not None] or ["None"]
            refuse_entry(f"{prefix}{name}", value, " or ".join(told), file)


def require_size(name: str, value: object, file: str = "config.json") -> int:
    """Return an entry that must be a whole number from 1; a SettingsError otherwise."""
    if not is_size(value):
        refuse_entry(name, value, "whole numbers from 1", file)
    return value


def is_size(value: object) -> TypeGuard[int]:
    """Return whether a value is a whole number from 1; true and false are none."""
    return type(value) is int and value >= 1


def filled(section: object, defaults: Mapping[str, object]) -> dict:
    """Return a section of config.json with its defaults; an absent section is all defaults."""
    given = section if isinstance(section, dict) else {}
    return {**defaults, **{name: value for name, value in given.items() if value is not None}}
