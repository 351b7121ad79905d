"""What `benchmark` and `tune` are asked for, and the file of `benchmark --sweep`.

base: adt:proposal=topk         entries of --methods, by commas, to which the axes are added
axes:                           flag -> list of values; every combination is a cell
  adt_beta: [0.1, 0.5, 0.9]
methods: eagle2,adt             further entries, without the axes (may be left out)
"""

from dataclasses import MISSING, dataclass, replace
from itertools import combinations, product

from configs.fields import (
    Flag,
    Settings,
    allowed,
    bounds,
    flags_in,
    mismatch,
    missing,
    one_of,
    part,
    refuse,
    refusing,
    setting,
    split_list,
)
from configs.methods import MethodSettings
from configs.recipes import read_yaml
from configs.schema import RunSettings
from configs.targets import ROOT

_ENTRIES = "name[:flag=value...], by commas, as in --methods"


@dataclass(frozen=True)
class MethodsFlags(Settings, group="Benchmark"):
    """The methods that a benchmark compares, as a command line names them."""

    methods: str | None = setting(
        "methods to compare, by commas: name[:flag=value...]; name may be a recipe, file.yaml",
        shown="ar,eagle2:proposal=topk,eagle2,adt:proposal=topk,adt; with --method X: ar,X",
        many=True,
    )
    sweep: str | None = setting(
        "YAML file of a grid of methods (configs/sweeps), each measured next to ar"
    )
    cells: str | None = setting(
        "cells of the sweep, as start-stop (0-based, stop excluded)", shown="all"
    )


@dataclass(frozen=True)
class Sweep(Settings):
    """A sweep's file: its cells, each an entry of --methods."""

    base: str = setting("what the axes are added to", MISSING, wanted=_ENTRIES)
    methods: str | None = setting("what is compared with these cells", wanted=_ENTRIES)
    path: str = ""
    axes: tuple[str, ...] = ()  # the flags that vary
    varied: tuple[str, ...] = ()  # the cells of all their values
    others: tuple[str, ...] = ()  # the cells compared with them

    @property
    def where(self) -> str:
        """The file, for errors."""
        return f"--sweep {self.path}"

    @property
    def entries(self) -> tuple[str, ...]:
        """All cells, as entries of --methods."""
        return self.varied + self.others


@dataclass(frozen=True)
class BenchmarkSettings(Settings, group="Benchmark"):
    """Several methods on the same prompts and seeds; `run.with_method` returns one's settings."""

    run: RunSettings = part(RunSettings)
    methods: tuple[MethodSettings, ...] = ()
    repeats: int = setting("measurements per method; the table shows medians", 3, low=1, high=1000)
    warmup: int = setting(
        "images per method generated first and not counted; on a GPU 0, or at least a batch",
        1,
        low=0,
        high=1000,
    )
    remeasure: bool = setting(
        "measure what is marked (!) once more, if nothing else is left to measure", False
    )
    output: str | None = None  # folder for what the benchmark writes, if --output_dir was given
    sweep: Sweep | None = None

    def settle(self) -> None:
        """Refuse a method that stands twice, and cells that a sweep cannot have."""
        sweep, source = self.sweep, "--methods" if self.sweep is None else self.sweep.where
        names = sweep.entries if sweep else [method.method for method in self.methods]
        if not names:
            raise missing(source, "at least one method")
        for (name, method), (other, twin) in combinations(zip(names, self.methods, strict=True), 2):
            if method == twin:
                twins = f"{name} and {other}, which are the same"
                raise mismatch(source, twins, "different methods")
        for name, method in zip(names, self.methods, strict=True) if sweep else ():
            if method == MethodSettings("ar"):
                raise mismatch(source, name, "methods other than ar, which is always measured")


def read_sweep(path: str, cells: str | None = None) -> Sweep:
    """Return the sweep in a file, or some cells of it; a SettingsError names file and key.

    Flags and values are checked later, with the methods.
    """
    content, expected = read_yaml(path, "sweep"), "flag: [value, ...] lines"
    axes = content.pop("axes", None)
    with refusing(Flag("sweep", path)):
        if unknown := content.keys() - flags_in(Sweep).keys():
            raise mismatch("keys", min(unknown), one_of(["axes", *flags_in(Sweep)]))
        for key, f in flags_in(Sweep).items():
            if not isinstance(content.get(key, ""), str) or (key == "base" and key not in content):
                raise mismatch(key, repr(content[key]) if key in content else "nothing", allowed(f))
        if not isinstance(axes, dict) or not axes:
            raise mismatch("axes", "nothing" if axes is None else repr(axes), expected)
        for flag, values in axes.items():
            # YAML is read as texts, so any other type in the list is a nested list or mapping.
            if not isinstance(values, list) or not values or {*map(type, values)} != {str}:
                raise mismatch(f"axes: {flag}", repr(values), "a list of values")
    sweep = Sweep.of(content, path=path)
    values = product(*([f"{flag}={value}" for value in axes[flag]] for flag in axes))
    varied = [":".join((entry, *cell)) for entry, cell in product(entries_of(sweep.base), values)]
    entries = (*varied, *(entries_of(sweep.methods) if sweep.methods else ()))
    first, end = (0, len(entries)) if cells is None else bounds("cells", cells)
    if end > len(entries):
        refuse("cells", cells, f"start-stop with stop up to {len(entries)}, the number of cells")
    middle = min(max(first, len(varied)), end)
    chosen, rest = entries[first:middle], entries[middle:end]
    return replace(sweep, axes=tuple(axes), varied=chosen, others=rest)


def entries_of(text: str) -> tuple[str, ...]:
    """Split a list of methods at its commas."""
    return tuple(split_list(text))


# What `tune` tries, likelier winners first: if the time is short, the last ones are not tried.
CANDIDATES = (
    # the fastest drafts on all three CPUs in docs/results/speed.md
    "jacobi:window=10",
    "eagle_recall:nodes=58",
    "block:nodes=16:depth=16:width=3",
    "eagle_recall:nodes=16:depth=16:width=3",
    "block",
    # on an H200 its rounds take 12 % longer than with 58 nodes and accept 8 % more (docs/gpu.md)
    "block:nodes=96:depth=20:width=5",
    "adt",
    "eagle2:nodes=16:depth=4:width=6",
    "eagle_recall:nodes=128:depth=20:width=7",
    "eagle2:nodes=6:depth=2:width=6",
    "recall:nodes=16:depth=14:width=3",
    "jacobi",
    "recall",
    "jacobi:window=6",
    # in batches, which share a pass (docs/generating.md#overnight)
    "block:nodes=31:depth=16:width=3",
    "jacobi:window=4",
    "block:nodes=7:depth=8:width=2",
)


@dataclass(frozen=True)
class TuneSettings(Settings, group="Tuning"):
    """Which methods `tune` tries, on which prompts, and for how long."""

    prompt: str = setting(
        "your prompts, as for generate_images",
        str(ROOT / "configs/prompts/tiny_validation.txt"),
        shown="configs/prompts/tiny_validation.txt",
    )
    minutes: float = setting(
        "minutes for the trials, without loading the model", 10.0, low=0.01, high=10080
    )
    methods: str | None = setting(
        "methods to try, by commas: name[:flag=value...]",
        shown="lossless methods at several sizes",
        many=True,
    )
    batch_sizes: str | None = setting(
        "numbers of images at once to try, by commas",
        pattern=r"[1-9][0-9]{0,2}(,[1-9][0-9]{0,2})*",
        wanted="different whole numbers from 1 to 999, by commas, such as 1,4,16",
        shown="1, 2, 4, ... as long as they fit into memory and give more images per hour",
        many=True,
    )
    output: str | None = setting(
        "file of the result", path=True, shown="outputs/tuned/<model and settings>.yaml"
    )
    run: RunSettings = part(RunSettings)
    tried: tuple[MethodSettings, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes that were asked for, ascending; none if memory decides."""
        return tuple(sorted({int(size) for size in (self.batch_sizes or "").split(",") if size}))

    @property
    def bench(self) -> BenchmarkSettings:
        """The benchmark whose measurements decide."""
        # `tune` warms up by itself, and takes new images instead of repeats.
        return BenchmarkSettings(self.run, self.tried, repeats=1, warmup=0)
