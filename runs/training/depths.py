"""`--layers auto`: after which of the target's layers an early exit pays most.

A head is fitted by least squares for some depths. On held-out images its hits at every level are
computed, on this machine the milliseconds of its rounds are measured. The depth is taken whose
chain, of the length that pays most, decides the most tokens per millisecond.
"""

import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

import torch

from configs.fields import SettingsError, refuse
from configs.training import AUTO, DEEPEST, TrainSettings
from decoding.flight import Job
from drafters.exit import ExitHead
from drafters.loading import LoadedDrafter
from drafters.training.agreement import expected_hits
from drafters.training.exit_fit import fit_exits, shares_of
from drafters.training.features import Computed
from drafters.training.heads import open_head
from drafters.training.rows import Rows
from drafters.training.shards import Tokens
from models.base import TargetModel
from models.linear import pack_weights
from runs.cost_rounds import CHAINS, measure_chain_costs
from runs.costs import Costs
from runs.fusing import fuse, fuses
from runs.methods import sampling_distribution
from runs.session import Session, open_target
from runs.training.tokens import check_grid, split_tokens
from support.crew import Crew
from support.durable import encode_json, replace_file
from support.json_files import read_object
from support.tables import Table

FILE = "depth.json"  # in --output_dir
LEVELS = max(CHAINS)
_FEW = 6  # layers: of such a target and smaller ones all depths are weighed
_JUDGED = 16  # held-out images
_REPEATS = 4  # turns of the measurement


@dataclass(frozen=True)
class Promise:
    """What a depth promises.

    layers: before the exit. hits: by level, the probability that draft and target choose alike.
    level: milliseconds of a draft level. nodes: of the chain that pays most. tau: tokens that its
    rounds decide, on average. speedup: tokens per millisecond, over plain decoding's.
    """

    layers: int
    hits: tuple[float, ...]
    level: float
    nodes: int
    tau: float
    speedup: float


def promise(layers: int, hits: Sequence[float], costs: Costs) -> Promise:
    """Return what a depth promises with the chain that pays most.

    Args:
        layers: the depth.
        hits: by level.
        costs: of rounds of plain decoding, and with chains of this depth's head.
    """
    verify, reached, tau, found = costs.verified(len(hits)), 1.0, 1.0, []
    for nodes, hit in enumerate(hits, 1):
        reached *= hit
        tau += reached
        milliseconds = verify[nodes] + nodes * costs.level
        found.append((tau / milliseconds * verify[0], nodes, tau))
    speedup, nodes, tau = max(found)
    return Promise(layers, tuple(hits), costs.level, nodes, tau, speedup)


def candidates(layers: int) -> tuple[int, ...]:
    """Return the depths that are weighed for a target of so many layers.

    These are all of a small target, and powers of two of a larger one.

    Raises:
        SettingsError: no depth is before the target's last layer.
    """
    if layers < 2:
        refuse("layers", AUTO, "a target of at least 2 layers, since an exit is before the last")
    below = range(1, min(layers, DEEPEST + 1))
    return tuple(n for n in below if layers <= _FEW or n & (n - 1) == 0)


def with_depth(settings: TrainSettings, tokens: Tokens, crew: Crew) -> TrainSettings:
    """Return settings with a number for `--layers auto`: the one of depth.json, or a new choice.

    The first process chooses, says why on stderr and writes the file; the others wait.

    Raises:
        SettingsError: depth.json is damaged, or no depth can be weighed.
    """
    if settings.layers != AUTO:
        return settings
    path = settings.folder / FILE
    if crew.rank == 0 and not path.exists():
        found = promises(settings, tokens)
        best = max(found, key=lambda each: each.speedup)
        print(report(found, best), file=sys.stderr, flush=True)
        content = {"layers": best.layers, "depths": [asdict(each) for each in found]}
        replace_file(path, encode_json(content))
    crew.wait()
    return replace(settings, layers=_read(path))


def _read(path: Path) -> int:
    layers = read_object(path).get("layers")
    if type(layers) is not int or not 1 <= layers <= DEEPEST:
        allowed = f"a number from 1 to {DEEPEST}; without the file the depth is chosen again"
        raise SettingsError(f"{path}: layers: found {layers!r}; allowed: {allowed}")
    return layers


def report(found: Sequence[Promise], best: Promise) -> str:
    """Return a table of depths, and which was taken and why."""
    columns = "layers", "hits by level", "ms per level", "nodes", "tau", "promised speed-up"
    rows = [
        (
            str(each.layers),
            " ".join(f"{hit:.3f}" for hit in each.hits[:4]),
            f"{each.level:.2f}",
            str(each.nodes),
            f"{each.tau:.2f}",
            f"{each.speedup:.2f}",
        )
        for each in found
    ]
    why = f"{best.speedup:.2f} times the tokens per millisecond of plain decoding"
    if best.speedup <= 1:
        why += "; no depth promises more than plain decoding, and this is the best of them"
    return f"{Table(columns, tuple(rows)).markdown()}--layers auto: {best.layers}, for {why}"


def promises(settings: TrainSettings, tokens: Tokens) -> list[Promise]:
    """Return what the depths that are weighed promise on this machine.

    Raises:
        ValueError: the tokens or the target do not fit.
    """
    target = open_target(settings.plain)
    check_grid(settings, tokens, target)
    images, held = split_tokens(settings, tokens)
    depths = candidates(target.spec.layers)
    heads = [open_head(replace(settings, layers=depth), target) for depth in depths]
    rows = Computed(target, tokens, settings.guidance, settings.precision)
    fit_exits(heads, target, shares_of(rows, images))
    hits = fitted_hits(settings, target, heads, [rows([image]) for image in held[:_JUDGED]])
    costs = chain_costs(settings, target, heads, tokens.captions[held[0]])
    return [promise(*each) for each in zip(depths, hits, costs, strict=True)]


def fitted_hits(
    settings: TrainSettings,
    target: TargetModel,
    heads: Sequence[ExitHead],
    images: Sequence[Rows],
) -> list[list[float]]:
    """Return the hits of heads by level: means over images, whose rows are given one by one.

    The heads take the target's type, as a user would load them.
    """
    distribution = sampling_distribution(settings.sampling)
    levels = min(LEVELS, target.grid.tokens - 1)
    found = []
    for head in heads:
        parts = target, head.to(target.dtype)
        hits = [
            expected_hits(*parts, rows.to(target.device, target.dtype), distribution, levels)
            for rows in images
        ]
        found.append(torch.stack(hits).mean(0).tolist())
    return found


def chain_costs(
    settings: TrainSettings, target: TargetModel, heads: Sequence[ExitHead], text: str
) -> list[Costs]:
    """Return what rounds with chains of these heads cost here, for an image of a text.

    Networks are changed to what decoding runs: the target's type, packed weights, compiled kernels.
    """
    for head in heads:
        pack_weights(head.requires_grad_(False).to(target.dtype))
    if fuses(settings.plain):
        fuse(target.transformer, *heads)
    sessions = [Session(settings.plain, target, LoadedDrafter(head)) for head in heads]
    openers = [partial(session.open_engine, images=1) for session in sessions]
    return measure_chain_costs(openers, [Job("0", text, 0)], _REPEATS)
