"""The file of `benchmark --sweep`: which methods are measured, each against plain decoding.

base: adt:proposal=topk         entries of --methods, by commas, to which the axes are added
axes:                           flag -> list of values; every combination is a cell
  adt_beta: [0.1, 0.5, 0.9]
methods: eagle2,adt             further entries, without the axes (may be left out)
quality: true                   --quality, where a model has a classifier; relaxed cells need the
                                line, true or false
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from itertools import combinations, product
from pathlib import Path

from configs.fields import (
    Settings,
    SettingsError,
    bounds,
    build,
    read_yaml,
    refuse,
    setting,
    settings_fields,
)
from configs.methods import MethodSettings

_ENTRIES = "name[:flag=value...], by commas, as in --methods"


@dataclass(frozen=True)
class SweepFile(Settings):
    """What a file says, without its axes."""

    base: str = setting(MISSING, "what the axes are added to", wanted=_ENTRIES)
    methods: str | None = setting(None, "what is compared with these cells", wanted=_ENTRIES)
    quality: bool | None = setting(None, "whether images are judged")


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
    axes = content.pop("axes", None)
    try:
        file = build(SweepFile, content)
        _check_axes(axes)
        if unknown := content.keys() - settings_fields(SweepFile).keys():
            keys = ", ".join(["axes", *settings_fields(SweepFile)])
            raise SettingsError(f"--{min(unknown)}: unknown key; allowed: {keys}")
    except SettingsError as error:
        raise SettingsError(f"--sweep {path}: {str(error).removeprefix('--')}") from error
    cells = product(*([f"{flag}={value}" for value in axes[flag]] for flag in axes))
    varied = [":".join((entry, *cell)) for entry, cell in product(entries_of(file.base), cells)]
    others = () if file.methods is None else entries_of(file.methods)
    return Sweep(path, tuple(axes), tuple(varied), others, file.quality)


def entries_of(text: str) -> tuple[str, ...]:
    """Return the entries of a list of methods."""
    return tuple(entry.strip() for entry in text.split(","))


def _check_axes(axes: object) -> None:
    allowed = "flag: [value, ...] lines"
    if axes is None:
        raise SettingsError(f"--axes: missing; allowed: {allowed}")
    if not isinstance(axes, dict) or not axes:
        refuse("axes", axes, allowed)
    for flag, values in axes.items():
        if not isinstance(values, list) or not values or {*map(type, values)} != {str}:
            refuse(f"axes: {flag}", values, "a list of values")
