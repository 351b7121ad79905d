"""The rounds of finished runs by their own sizes: priced, or replayed on a GPU."""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle, islice
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from configs.fields import mismatch
from configs.methods import AdtSettings, MethodSettings
from decoding.graphs import CudaGraphs
from decoding.policies.base import Controller
from decoding.policies.dynamic import DynamicTree
from decoding.round import ImageRound, RoundShape, TreeShape
from runs.records import TRACE, files_of, read_manifest
from support.json_lines import read_lines

GROWN = ("adt", "eagle2")  # their trees grow level by level, so trees of any size have a price
Line = dict[str, Any]  # of trace.jsonl: a round of an image


class Replayed(NamedTuple):
    """A round as it is replayed on a GPU: of a method with trees of one size."""

    method: MethodSettings
    masked: bool  # trees are smaller than that
    depth: int  # levels; 0: plain decoding


@dataclass(frozen=True)
class TracedRun:
    """A run's rounds, image by image."""

    name: str
    method: MethodSettings
    images: dict[str, list[Line]]  # by id

    @cached_property
    def lines(self) -> list[Line]:
        return [line for image in self.images.values() for line in image]

    def only(self, images: Collection[str]) -> "TracedRun":
        """Return the rounds of these images, in the order of their ids."""
        return replace(self, images={image: self.images[image] for image in sorted(images)})

    def mean(self, column: str) -> float:
        return fmean(line[column] for line in self.lines)

    @property
    def tau(self) -> float:
        return self.mean("accepted") + 1

    def cells(self) -> dict[str, str]:
        """Return the means of a table's row."""
        columns = ("drafted_depth", "verified_depth", "width", "nodes")
        means = {name.replace("_", " "): f"{self.mean(name):.2f}" for name in columns}
        return {"tau": f"{self.tau:.2f}"} | means

    def plain_rounds(self, batch: int) -> int:
        """Return how many rounds plain decoding needs for these images."""
        tokens = sum(line["accepted"] + 1 for line in self.lines) // len(self.images)
        return -(-len(self.images) // batch) * tokens

    def rounds(self, batch: int) -> Counter[Replayed]:
        """Return the rounds of images that are decoded together.

        A finished image makes room for the next one, as in the engine.
        """
        queue = iter(self.images.values())
        return Counter(map(self._replayed, _together([*islice(queue, batch)], queue)))

    def _replayed(self, lines: list[Line]) -> Replayed:
        trees = {(line["drafted_depth"], line["width"]) for line in lines}
        depth, width = map(max, zip(*trees, strict=True))
        own, nodes = self.method.own, self.method.nodes
        most = own.k_max if isinstance(own, AdtSettings) else self.method.width
        assert most is not None and nodes is not None
        size = RoundShape(len(lines), depth, width, nodes, 0, 1, 1, uniform=len(trees) == 1)
        size = CudaGraphs().round_up(size, replace(size, width=most))
        held = replace(self.method, method="eagle2", own=None, depth=None, width=size.width)
        return Replayed(held, not size.uniform, depth)


def _together(rows: list[list[Line]], queue: Iterator[list[Line]]) -> Iterator[list[Line]]:
    """Yield the lines of a round, one per image in flight."""
    while rows:
        yield [row[0] for row in rows]
        left = [row[1:] or next(queue, None) for row in rows]
        rows = [row for row in left if row]


class RecordedTrees(DynamicTree):
    """Trees of a run's sizes in its order, whatever is accepted: image by image, by their seeds."""

    def __init__(self, run: TracedRun, largest: TreeShape):
        super().__init__(largest)
        self.images = [
            # at an image's end there is no tree
            [line for line in lines if line["drafted_depth"]]
            for lines in run.images.values()
        ]

    def controller(self, seed: int) -> Controller:
        lines = self.images[seed % len(self.images)]
        sizes = [(line["drafted_depth"], line["width"], self.largest.nodes) for line in lines]
        return _Recorded(cycle(TreeShape(*size) for size in sizes))


@dataclass(frozen=True)
class _Recorded:
    """The sizes of an image's trees."""

    shapes: Iterator[TreeShape]

    def shape(self, position: int) -> TreeShape:
        return next(self.shapes)

    def observe(self, outcome: ImageRound) -> None:
        pass


def read_trace(folder: str) -> TracedRun:
    """Read a folder that `generate_images --trace` wrote."""
    flag, path = f"--trace {folder}", Path(folder)
    if not (files := files_of(path, TRACE)):
        raise mismatch(flag, f"no {TRACE}", "a folder of generate_images --trace")
    settings = read_manifest(path)["settings"]
    method = MethodSettings.of({k: v for k, v in settings.items() if v is not None})
    if method.method not in GROWN:
        raise mismatch(flag, f"--method {method.method}", f"a run of {' or '.join(GROWN)}")
    images = defaultdict(list)
    for line in (line for file in files for line in read_lines(file)):
        images[line["id"]].append(line)
    return TracedRun(path.name, method, images)
