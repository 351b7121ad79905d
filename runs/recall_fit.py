"""Fit the numbers of `recall` to a model, in rounds of its own.

A round recalls predictions after the nodes of its tree, and the target then chooses a token after
each node on the accepted path. The numbers are those under which these choices are likeliest. They
change the shape of trees, never the tokens. Mixtures keep the included model's: fitted over
all codes they accepted up to 4 % fewer tokens (docs/results/tried.md).
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from configs.methods import MethodSettings
from decoding.drafter import Children
from decoding.engine import Engine
from decoding.images import Job
from decoding.proposals import Proposal
from decoding.round import Round, RoundResult
from decoding.tree import GrowingTree, rows_at
from drafters.recall import FITTED_TO_TINY, RecallDrafter, RecallNumbers
from drafters.similarity import NO_NODE, sharpness_of
from drafters.training.agreement import compared

METHOD = MethodSettings("recall")
LEAST_CHOICES = 50  # for a fit, and to judge it by
Pair = tuple[float, float]


@dataclass(frozen=True)
class Level:
    """What was predicted after the nodes of a level (1 image, k)."""

    parents: list[int]  # by node, in the level above
    tokens: list[int]
    recalled: Tensor  # (k, vocab) log-probabilities
    similarity: Tensor  # (k,)


class NotingDrafter(RecallDrafter):
    """Notes what it recalls, of one image; a round that is replayed would call no Python."""

    def begin(self, round: Round, proposal: Proposal) -> None:
        self.levels: list[Level] = []
        super().begin(round, proposal)

    def children(
        self, tree: GrowingTree, picked: Tensor, round: Round, proposal: Proposal
    ) -> Children:
        window, level = self.window, tree.newest
        candidates, is_candidate = window.look_up(tree, picked)
        log_q = rows_at(window.result.log_q[:, tree.height], candidates)
        similarity = window.result.similarity[:, tree.height].gather(1, candidates)
        similarity = similarity.where(is_candidate, NO_NODE)
        tokens = level.tokens.gather(1, picked)[0].tolist()
        parents = (picked[0] // level.children).tolist()
        self.levels.append(Level(parents, tokens, log_q[0], similarity[0]))
        return super().children(tree, picked, round, proposal)


class Recorder:
    """Compares what an engine's drafter recalls with what the target then chooses."""

    def __init__(self, engine: Engine):
        assert engine.speculation is not None, "its method is recall"
        drafter = engine.speculation.drafter
        assert isinstance(drafter, RecallDrafter)
        self.drafter = NotingDrafter(engine.target, drafter.guess, drafter.largest, drafter.numbers)
        engine.speculation = replace(engine.speculation, drafter=self.drafter)
        # of each choice: the values that it is compared by (k,), the similarity, and which it is
        self.rows: list[tuple[Tensor, ...]] = []
        self.engine, engine.watcher = engine, self._after_round

    def generate(self, jobs: Sequence[Job], seconds: float) -> None:
        end = time.monotonic() + seconds
        with closing(self.engine.generate(jobs)) as rounds:
            for _ in rounds:
                if time.monotonic() > end:
                    break

    def _after_round(self, states: object, result: RoundResult) -> None:
        """Keep the predictions after the root and the accepted tokens."""
        accepted, emitted = int(result.verdict.accepted[0]), result.verdict.emitted[0].tolist()
        node = 0
        # an image's last token is decided without a draft
        levels = self.drafter.levels if result.tree.height else []
        for depth, level in enumerate(levels[: accepted + 1]):
            if depth:
                nodes = [*zip(level.parents, level.tokens, strict=True)]
                accepted_node = node, emitted[depth - 1]
                if accepted_node not in nodes:
                    break  # it was not expanded
                node = nodes.index(accepted_node)
            # where nothing was recalled it is `NO_NODE`, below 0
            if level.similarity[node] > 0:
                values = level.recalled[node] + result.round.ahead[0, depth]
                chosen = torch.tensor(emitted[depth : depth + 1], device=values.device)
                best, which, is_among = compared(values[None], chosen)
                if bool(is_among):
                    row = best[0].float(), level.similarity[node].float(), which[0]
                    self.rows.append(tuple(part.cpu() for part in row))


def fit_numbers(
    # opens the engine of a method, for one image, whose rounds are not replayed
    open_engine: Callable[[MethodSettings], Engine],
    jobs: Sequence[Job],  # images to generate, at least two
    seconds: float,
) -> RecallNumbers | None:
    """Return the numbers fitted to a model; tiny's if these do better.

    Half of the images are fitted to, the other half says whether that is an improvement. None if
    the time, in seconds, is too short for enough choices.
    """
    recorders = [Recorder(open_engine(METHOD)) for _ in range(2)]
    halves = jobs[: len(jobs) // 2], jobs[len(jobs) // 2 :]
    for recorder, half in zip(recorders, halves, strict=True):
        recorder.generate(half, seconds / 2)
    if any(len(recorder.rows) < LEAST_CHOICES for recorder in recorders):
        return None
    groups = [tuple(map(torch.stack, zip(*r.rows, strict=True))) for r in recorders]
    return replace(FITTED_TO_TINY, sharpness=_better(FITTED_TO_TINY.sharpness, *groups))


def _loss(data: tuple[Tensor, ...], numbers: Tensor) -> Tensor:
    values, similarity, chosen = data
    sharpness = sharpness_of(similarity, numbers[0], numbers[1])
    return F.cross_entropy(sharpness[:, None] * values, chosen)


def _better(current: Pair, fitted_to: tuple[Tensor, ...], others: tuple[Tensor, ...]) -> Pair:
    """Return numbers fitted to some choices; the current ones if they do better on others."""
    numbers = torch.tensor(current, requires_grad=True)
    optimizer = torch.optim.LBFGS([numbers], max_iter=60, line_search_fn="strong_wolfe")

    def step() -> Tensor:
        optimizer.zero_grad()
        value = _loss(fitted_to, numbers)
        value.backward()
        return value

    optimizer.step(step)
    fitted = numbers.detach()
    if not bool(_loss(others, fitted) < _loss(others, torch.tensor(current))):
        return current
    offset, slope = fitted.tolist()
    return round(offset, 2), round(slope, 2)
