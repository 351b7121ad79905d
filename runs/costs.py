"""What rounds cost on this machine: by the nodes that the target verifies, and per draft level."""

import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from statistics import median_low

import numpy as np

from configs.fields import SettingsError
from configs.methods import MethodSettings
from decoding.engine import Engine
from decoding.flight import Job
from decoding.policies.marginal import Prices
from support.durable import replace_file
from support.json_files import read_object

BUDGETS = (2, 4, 6, 8, 12, 16, 24, 40, 58)
WARM_UP, ROUNDS = 2, 7
_LEVEL = 8  # nodes of a draft level


@dataclass(frozen=True)
class Costs:
    """Measured milliseconds of a round.

    nodes: numbers of verified nodes per image, ascending from 0. verify: of a round without its
    draft, for each of these. level: of one draft level of eight nodes, with the growing of the
    tree. images: how many were decoded together; None where a file does not say, which then holds
    for any batch as it is.
    """

    nodes: tuple[float, ...]
    verify: tuple[float, ...]
    level: float
    images: int | None = None

    def at(self, images: int) -> "Costs":
        """Return the costs of rounds of so many images.

        A pass is taken to last as long as one over the same number of tokens, however these are
        spread over images; a draft level changes as a pass over its eight nodes does.
        """
        if self.images in (None, images):
            return self
        share = images / self.images
        verify = tuple(self._pass(share * (1 + nodes)) for nodes in self.nodes)
        level = self.level * self._pass(share * _LEVEL) / self._pass(_LEVEL)
        return Costs(self.nodes, verify, level, images)

    def _pass(self, tokens: float) -> float:
        """Return the milliseconds of a pass over so many tokens per measured image.

        Below one token the first difference goes on, but a pass is not cheaper than its share.
        """
        if tokens >= 1:
            return self.round(tokens - 1, 0)
        slope = (self.verify[1] - self.verify[0]) / (self.nodes[1] - self.nodes[0])
        return max(self.verify[0] - slope * (1 - tokens), self.verify[0] * tokens)

    def prices(self, nodes: int) -> Prices:
        """Return the prices for a policy that verifies at most so many nodes.

        Times that fall with more nodes are measurement noise, and evened out from both sides.
        """
        times = np.array([self.round(count, 0) for count in range(nodes + 1)])
        verify = (np.maximum.accumulate(times) + np.minimum.accumulate(times[::-1])[::-1]) / 2
        return Prices(tuple(verify.tolist()), self.level)

    def round(self, nodes: float, levels: float) -> float:
        """Return the milliseconds of a round: linear between measured nodes, and beyond."""
        last = max(self.verify[-1] - self.verify[-2], 0) / (self.nodes[-1] - self.nodes[-2])
        beyond = max(nodes - self.nodes[-1], 0) * last
        return float(np.interp(nodes, self.nodes, self.verify)) + beyond + self.level * levels

    def speedup(self, row: dict[str, float]) -> float:
        """Return the speed-up over plain decoding that a method's counts promise.

        row: of `benchmark`, with tau, mean_nodes, draft_forwards and target_forwards.
        """
        levels = row["draft_forwards"] / (row["target_forwards"] - 1)
        return row["tau"] * self.round(0, 0) / self.round(row["mean_nodes"], levels)

    @staticmethod
    def read(path: Path) -> "Costs":
        """Return the costs that `scripts.tools.costs` wrote; a SettingsError names a fault."""
        content = read_object(path).get("costs")
        try:
            nodes, verify = (tuple(map(float, content[name])) for name in ("nodes", "verify"))
            images = content.get("images")
            images = None if images is None else int(images)
            costs = Costs(nodes, verify, float(content["level"]), images)
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            found = f"found costs that cannot be read: {error!r}"
            raise SettingsError(
                f"{path}: {found}; allowed: what python -m scripts.tools.costs writes"
            ) from error
        if fault := costs.fault():
            raise SettingsError(f"{path}: found {fault}")
        return costs

    def fault(self) -> str | None:
        """Return what is wrong with the numbers, and what is allowed; None if they can be used."""
        rising = self.nodes[:1] == (0,) and list(self.nodes) == sorted(set(self.nodes))
        if not rising or not len(self.nodes) == len(self.verify) > 1:
            return "other numbers of nodes; allowed: some that rise from 0, with a time each"
        if not all(0 < time < np.inf for time in (*self.verify, self.level)):
            return "a time that is not above 0; allowed: milliseconds above 0"
        if self.images is not None and self.images < 1:
            return f"{self.images} images; allowed: at least 1"
        return None


def measure_costs(
    open_engine: Callable[[MethodSettings], Engine], jobs: list[Job], repeats: int
) -> Costs:
    """Time the first rounds of these jobs, decoded together, with trees of several sizes.

    Sizes take turns, `repeats` times. The least time counts, since other work on the machine only
    adds to it.

    open_engine: builds a method's engine for as many images as there are jobs.
    """
    trees = (MethodSettings(method="eagle2", depth=3, width=8, nodes=nodes) for nodes in BUDGETS)
    methods = (MethodSettings(method="ar"), *trees)
    times: dict[float, list[float]] = {}  # by nodes: a small image may have fewer than a budget
    levels = []
    for _ in range(repeats):
        for method in methods:
            rounds = _timed(open_engine(method), jobs)
            nodes = median_low(row[0] for row in rounds)
            times.setdefault(nodes, []).extend(row[1] for row in rounds if row[0] == nodes)
            levels += [row[2] for row in rounds if row[2] is not None]
    verify = tuple(min(times[nodes]) for nodes in sorted(times))
    return Costs(tuple(sorted(times)), verify, min(levels), len(jobs) or None)


def _timed(engine: Engine, jobs: list[Job]) -> list[tuple[float, float, float | None]]:
    """Return nodes, milliseconds without the draft and per draft level, after warm-up."""
    rows, before = [], Counter()
    for step in islice(engine.generate(jobs), WARM_UP + ROUNDS):
        now = Counter(engine.watch.seconds) + Counter(levels=engine.watch.calls["draft_forward"])
        spent = {name: 1000 * (now[name] - before[name]) for name in ("round", "draft", "levels")}
        level = 1000 * spent["draft"] / spent["levels"] if spent["levels"] else None
        rows.append(
            (median_low(row.nodes for row in step.rounds), spent["round"] - spent["draft"], level)
        )
        before = now
    return rows[WARM_UP:] or rows


def machine_costs(key: str, measure: Callable[[], Costs]) -> Costs:
    """Return the costs kept under this key in the user's cache folder, or measure and keep them.

    Costs that cannot be read are measured anew; that, and a folder that takes no file, is said on
    standard error.
    """
    home = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    path = Path(home) / "adt-tree" / f"costs-{key}.json"
    try:
        if path.is_file():
            return Costs.read(path)
    except ValueError as error:
        print(f"{error}: measured anew", file=sys.stderr)
    costs = measure()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_costs(path, costs)
    except OSError as error:
        print(f"{path}: costs cannot be kept: {error}", file=sys.stderr)
    return costs


def write_costs(path: Path, costs: Costs) -> None:
    """Write costs to a file that `Costs.read` and --prices take."""
    replace_file(path, (json.dumps({"costs": asdict(costs)}) + "\n").encode())
