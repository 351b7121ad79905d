"""Rounds timed on this machine, for the costs that `runs.costs` keeps and converts."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from statistics import median_low

from torch import nn

from configs.methods import MethodSettings
from decoding.engine import Engine
from decoding.flight import Job
from drafters.block_head import BlockHead
from drafters.eagle_head import EagleHead
from runs.costs import Costs

BUDGETS = (2, 4, 6, 8, 12, 16, 24, 40, 58)
WARM_UP, ROUNDS = 2, 7
PLAIN = MethodSettings("ar")
RECALLING = MethodSettings("similar", nodes=16)
ONE_PASS = MethodSettings("block", nodes=16)
CHAINS = (1, 2, 4, 8)  # nodes


@dataclass(frozen=True)
class Round:
    """A round's nodes, its milliseconds without the draft, those of the draft, and its levels."""

    nodes: int
    rest: float
    draft: float
    levels: int


def measure_costs(
    open_engine: Callable[[MethodSettings], Engine],
    jobs: list[Job],
    repeats: int,
    network: nn.Module | None,
) -> Costs:
    """Time the first rounds of these jobs, decoded together, with trees of several sizes.

    Methods take turns, `repeats` times. The least time counts, since other work on the machine only
    adds to it.

    Args:
        open_engine: builds a method's engine for as many images as there are jobs.
        jobs: images to begin.
        repeats: turns.
        network: the drafter's; None without one.
    """
    grown = "similar" if network is None else "eagle2"
    trees = [MethodSettings(grown, depth=3, width=8, nodes=nodes) for nodes in BUDGETS]
    blocks = [ONE_PASS] if isinstance(network, EagleHead) else []
    found: dict[MethodSettings, list[Round]] = {}
    for _ in range(repeats):
        for method in (PLAIN, *trees, RECALLING, *blocks):
            found.setdefault(method, []).extend(timed_rounds(open_engine(method), jobs))
    times: dict[float, float] = {}  # by nodes: a small image may have fewer than a budget
    for method in (PLAIN, *trees):
        usual = median_low(row.nodes for row in found[method])
        own = [row.rest for row in found[method] if row.nodes == usual]
        times[usual] = min([*own, times.get(usual, own[0])])
    recall = min(_per_level(found[RECALLING]))
    level = None
    if network is not None and not isinstance(network, BlockHead):
        level = min(_per_level(row for method in trees for row in found[method]))
    passes = [row.draft - recall * row.levels for method in blocks for row in found[method]]
    block = max(min(passes), recall) if passes else None
    verify = tuple(times[nodes] for nodes in sorted(times))
    return Costs(tuple(sorted(times)), verify, level, len(jobs) or None, recall, block)


def measure_chain_costs(
    openers: Sequence[Callable[[MethodSettings], Engine]], jobs: list[Job], repeats: int
) -> list[Costs]:
    """Time the first rounds of these jobs with chains that several heads draft.

    Heads and chains take turns with plain decoding, which has no head and is the same in all costs.
    Levels of one node are cheaper than those of the trees of `measure_costs`.

    Args:
        openers: of each head what builds a method's engine for as many images as there are jobs.
        jobs: images to begin.
        repeats: turns.
    """
    chains = {n: MethodSettings("eagle2", depth=n, width=1, nodes=n) for n in CHAINS}
    plain: list[Round] = []
    found: list[dict[int, list[Round]]] = [{n: [] for n in CHAINS} for _ in openers]
    for _ in range(repeats):
        plain += timed_rounds(openers[0](PLAIN), jobs)
        for open_engine, own in zip(openers, found, strict=True):
            for nodes, method in chains.items():
                rounds = timed_rounds(open_engine(method), jobs)
                # the last rounds of a small image have fewer nodes
                own[nodes] += [row for row in rounds if row.nodes == nodes]
    return [_chain_costs({0: plain} | own, len(jobs)) for own in found]


def _chain_costs(found: Mapping[int, list[Round]], images: int) -> Costs:
    """Return the least times of rounds by nodes, and of a level."""
    known = {nodes: rounds for nodes, rounds in found.items() if rounds}
    verify = tuple(min(row.rest for row in rounds) for rounds in known.values())
    level = min(_per_level(row for rounds in known.values() for row in rounds))
    return Costs(tuple(map(float, known)), verify, level, images)


def _per_level(rounds: Iterable[Round]) -> Iterator[float]:
    """Yield the milliseconds per level of rounds that drafted any."""
    return (row.draft / row.levels for row in rounds if row.levels)


def timed_rounds(engine: Engine, jobs: list[Job]) -> list[Round]:
    """Return the first rounds after the warm-up; if there are none, those of the warm-up."""
    rows, before = [], Counter()
    for step in islice(engine.generate(jobs), WARM_UP + ROUNDS):
        now = Counter(engine.watch.seconds) + Counter(levels=engine.watch.calls["level"])
        spent, draft = (1000 * (now[name] - before[name]) for name in ("round", "draft"))
        nodes = median_low(row.nodes for row in step.rounds)
        rows.append(Round(nodes, spent - draft, draft, now["levels"] - before["levels"]))
        before = now
    return rows[WARM_UP:] or rows
