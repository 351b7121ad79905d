"""The file of `benchmark --sweep`: which methods are measured, each against plain decoding.

base: adt:proposal=topk         entries of --methods, by commas, to which the axes are added
axes:                           flag -> list of values; every combination is a cell
  adt_beta: [0.1, 0.5, 0.9]
methods: eagle2,adt             further entries, without the axes (may be left out)
quality: true                   --quality, where a model has a classifier; relaxed cells need the
                                line, true or false
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product
from pathlib import Path
from typing import Any, NoReturn

from configs.fields import SettingsError, bounds, parse_switch, refuse
from configs.methods import MethodSettings
from configs.yaml_file import read_yaml

KEYS = ("base", "axes", "methods", "quality")


@dataclass(frozen=True)
class Sweep:
    """The cells of a sweep file, each an entry of --methods.

    Attributes:
        path: the file.
        axes: the flags that vary.
        varied: the cells of all their values.
        others: the cells compared with them.
        quality: whether images are judged; None where the file says nothing.
    """

    path: str
    axes: tuple[str, ...]
    varied: tuple[str, ...]
    others: tuple[str, ...]
    quality: bool | None

    @property
    def where(self) -> str:
        """The file, for errors."""
        return f"--sweep {self.path}"

    @property
    def entries(self) -> tuple[str, ...]:
        """All cells, as entries of --methods."""
        return self.varied + self.others

    @property
    def output_dir(self) -> str:
        """Where results go by default."""
        return f"outputs/sweeps/{Path(self.path).stem}"

    def part(self, cells: str | None) -> "Sweep":
        """Return the sweep of the cells a-b, as --cells says; of all for None."""
        if cells is None:
            return self
        first, end = bounds("cells", cells)
        border = len(self.varied)
        part = replace(
            self, varied=self.varied[first:end], others=self.entries[max(first, border) : end]
        )
        if not part.entries:
            refuse("cells", cells, f"a-b with a below {len(self.entries)}, the number of cells")
        return part

    def check(self, methods: Sequence[MethodSettings], given: Mapping[str, object]) -> None:
        """Check the cells' methods, and that the command line has none of the axes' flags.

        Raises:
            SettingsError: two cells are the same method, one is plain decoding, or one is relaxed
                and the file does not say whether quality is judged.
        """
        for name in self.axes:
            if name in given:
                refuse(name, given[name], f"not with {self.where}, which varies it")
        if (ar := MethodSettings(method="ar")) in methods:
            found = self.entries[methods.index(ar)]
            raise SettingsError(
                f"{self.where}: found {found}; allowed: without it: it is always measured"
            )
        for (one, method), (other, twin) in combinations(
            zip(self.entries, methods, strict=True), 2
        ):
            if method == twin:
                found = f"found {one} and {other}, the same method"
                raise SettingsError(f"{self.where}: {found}; allowed: cells that differ")
        for entry, method in zip(self.entries, methods, strict=True):
            if self.quality is None and not method.lossless:
                allowed = f"true or false, since {entry} is relaxed"
                raise SettingsError(f"{self.where}: quality: missing; allowed: {allowed}")


def read_sweep(path: str) -> Sweep:
    """Return the sweep in a file; flags and values are checked later, with the methods.

    Raises:
        SettingsError: a key is missing, unknown or has a wrong value; names file and key.
    """
    content = read_yaml(path, "sweep")
    for key in content:
        if key not in KEYS:
            raise SettingsError(f"--sweep {path}: {key}: unknown key; allowed: {', '.join(KEYS)}")
    axes, quality = content.get("axes"), content.get("quality")
    if not isinstance(axes, dict) or not axes:
        _refuse(path, "axes", axes, "flag: [value, ...] lines")
    if quality is not None:
        quality = parse_switch(quality) if isinstance(quality, str) else None
        if quality is None:
            _refuse(path, "quality", content["quality"], "true or false")
    choices = product(
        *([f"{flag}={value}" for value in _values(path, flag, axes[flag])] for flag in axes)
    )
    varied = [
        ":".join((entry, *chosen))
        for entry, chosen in product(_entries(path, content, "base"), choices)
    ]
    others = _entries(path, content, "methods") if "methods" in content else []
    return Sweep(path, tuple(axes), tuple(varied), tuple(others), quality)


def _entries(path: str, content: Mapping[str, Any], key: str) -> list[str]:
    text = content.get(key)
    if not isinstance(text, str) or not text.strip():
        _refuse(path, key, text, "name[:flag=value...], by commas, as in --methods")
    return [entry.strip() for entry in text.split(",")]


def _values(path: str, flag: str, values: object) -> list[str]:
    if not isinstance(values, list) or not values or not all(isinstance(v, str) for v in values):
        _refuse(path, f"axes: {flag}", values, "a list of values")
    return values


def _refuse(path: str, key: str, found: object, allowed: str) -> NoReturn:
    shown = "missing" if found is None else f"found {found!r}"
    raise SettingsError(f"--sweep {path}: {key}: {shown}; allowed: {allowed}")
