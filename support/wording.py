"""Lists in errors: the first entries and how many more there are; settings that differ."""

from collections.abc import Mapping, Sequence

from support.provenance import CONTENT

MOST = 10  # entries of a list in an error
_LONG, _HEAD = 60, 20  # characters of a value; long paths differ at their end
_RULES = ("method", "verifier")  # another one brings other flags with it


def first_of(texts: Sequence[str], most: int = MOST) -> str:
    """Return the first texts of a list, and how many more there are."""
    rest = len(texts) - most
    return "; ".join([*texts[:most], *([f"and {rest} more"] if rest > 0 else [])])


def differences(
    there: Mapping[str, object], now: Mapping[str, object], dashes: str = "--"
) -> list[str]:
    """Return what differs between two identities: "--cfg: 3.0 there, 4.0 now".

    there, now: settings by flag, and hashes of what they name (`runs.made_of`). Flags that only one
    of two methods or rules has are left out: they follow from it. dashes: before flags.
    """
    names = [name for name in {**there, **now} if there.get(name) != now.get(name)]
    if not set(_RULES).isdisjoint(names):
        names = [name for name in names if None not in (there.get(name), now.get(name))]
    names.sort(key=lambda name: (name not in _RULES, name))
    return [
        (dashes if name.isidentifier() else "") + _difference(name, there.get(name), now.get(name))
        for name in names
    ]


def _difference(name: str, there: object, now: object) -> str:
    if all(str(value).startswith(CONTENT) for value in (there, now)):
        return f"{name}: other files there"
    return f"{name}: {_value(there)} there, {_value(now)} now"


def _value(value: object) -> str:
    """Return a value in words: texts of several words in quotes, long ones without their middle."""
    if value is None:
        return "none"
    text = value if isinstance(value, str) and " " not in value else repr(value)
    return text if len(text) <= _LONG else f"{text[:_HEAD]}...{text[_HEAD - _LONG :]}"
