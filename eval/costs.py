"""What rounds cost on this machine: by the number of nodes that the target verifies, and per draft level."""

import json
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np

from configs.methods import MethodSettings
from decoding.flight import Job
from eval.benchmark import BASELINE, repeated
from eval.session import Session

BUDGETS = (2, 4, 6, 8, 12, 16, 24, 40, 58)


@dataclass(frozen=True)
class Costs:
    """nodes: ascending, from 0. verify: milliseconds of a round without its draft that verifies so many nodes. level:
    milliseconds of a draft level of eight nodes, with the growing of the tree."""

    nodes: tuple[float, ...]
    verify: tuple[float, ...]
    level: float

    def round(self, nodes: float, levels: float) -> float:
        """Milliseconds of a round: straight lines between the numbers of nodes that were measured, the last one
        continued."""
        last = (self.verify[-1] - self.verify[-2]) / (self.nodes[-1] - self.nodes[-2])
        beyond = max(nodes - self.nodes[-1], 0) * last
        return float(np.interp(nodes, self.nodes, self.verify)) + beyond + self.level * levels

    def speedup(self, row: dict[str, float]) -> float:
        """What the counts of a method (a row of `benchmark`) promise over plain decoding."""
        levels = row["draft_forwards"] / (row["target_forwards"] - 1)
        return row["tau"] * self.round(0, 0) / self.round(row["mean_nodes"], levels)

    @staticmethod
    def read(path: Path) -> "Costs":
        """The costs in a file that `scripts.costs` wrote; ValueError names what is wrong with it."""
        try:
            content = json.loads(path.read_text(encoding="utf-8"))["costs"]
            nodes, verify = (tuple(map(float, content[name])) for name in ("nodes", "verify"))
            costs = Costs(nodes, verify, float(content["level"]))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a file of costs: {error!r}; python -m scripts.costs writes one") from error
        rising = nodes[:1] == (0,) and list(nodes) == sorted(set(nodes)) and len(nodes) == len(verify) > 1
        if not rising or not all(0 < time < np.inf for time in (*verify, costs.level)):
            raise ValueError(f"{path}: expected nodes that rise from 0, as many times, and times above 0")
        return costs


def measure_costs(session: Session, jobs: list[Job], repeats: int) -> Costs:
    """Decode the jobs `repeats` times with trees of several sizes, in alternating order, after one turn that warms up;
    medians."""
    trees = (MethodSettings(method="eagle2", depth=3, width=8, nodes=nodes) for nodes in BUDGETS)
    runs = list(repeated(session, (BASELINE, *trees), jobs, repeats, warmup=len(jobs)).values())
    nodes = [own[0].mean("mean_nodes") for own in runs]
    verify = [median(run.profile["round"] - run.profile["draft"] for run in own) for own in runs]
    drafted = [run for own in runs[1:] for run in own]
    levels = [1000 * run.seconds["draft"] / run.calls["draft_forward"] for run in drafted]
    return Costs(tuple(nodes), tuple(verify), median(levels))
