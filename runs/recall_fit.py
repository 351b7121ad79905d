"""Fit the numbers of `recall` and `eagle_recall` to a model, in rounds of their own.

A round of either method recalls predictions after the nodes of its tree, and the target then
chooses a token after each node on the accepted path. The numbers are those under which these
choices are likeliest. They change the shape of trees, never the tokens.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from configs.methods import MethodSettings
from decoding.drafter import Draft
from decoding.engine import Engine
from decoding.images import Job
from decoding.round import Round, RoundResult
from decoding.tree import GrowingTree
from drafters.mixed import MixedDrafter
from drafters.recall import FITTED_TO_TINY, RecallNumbers
from drafters.similarity import UNKNOWN, trust_in

ALONE = MethodSettings("recall")
MIXED = MethodSettings("eagle_recall")
LEAST_CHOICES = 50  # for a fit
_LEAST = -60.0  # log-probability of codes that the drafter cuts: lerp makes NaN of -inf
Pair = tuple[float, float]


@dataclass(frozen=True)
class Level:
    """What was predicted after the nodes of a level (1 image, k)."""

    parents: list[int]  # by node, in the level above
    tokens: list[int]
    recalled: Tensor  # (k, vocab) log-probabilities
    similarity: Tensor  # (k,)
    near: Tensor | None  # (k, vocab) the head's, None without a head


class Recorder:
    """Notes what an engine's drafter recalls; one image at a time."""

    def __init__(self, engine: Engine):
        drafter = engine.speculation.drafter
        self.mixed = isinstance(drafter, MixedDrafter)
        self.far = drafter.far if self.mixed else drafter
        self.calibration = engine.speculation.proposal.calibration
        self.engine, self.near = engine, None
        self.levels: list[Level] = []  # of the round that is drafted
        # Of each choice: what is recalled, what the head says and the noise, (vocab,) each, then
        # the factor of the calibration, the similarity and the chosen code.
        self.rows: list[tuple[Tensor, ...]] = []
        # Bound methods are replaced, so rounds must not be replayed: a CUDA graph calls no Python.
        self._expand, drafter.expand = drafter.expand, self._noting_expand
        if self.mixed:
            self._expand_near, drafter.near.expand = drafter.near.expand, self._noting_near
        engine.watcher = self._after_round

    def generate(self, jobs: Sequence[Job], seconds: float) -> None:
        end = time.monotonic() + seconds
        with closing(self.engine.generate(jobs)) as rounds:
            for _ in rounds:
                if time.monotonic() > end:
                    break

    def _noting_near(self, *call: object) -> Draft:
        draft = self._expand_near(*call)
        self.near = draft.log_q[0]
        return draft

    def _noting_expand(self, tree: GrowingTree, picked: Tensor, round: Round) -> Draft:
        draft = self._expand(tree, picked, round)
        level, near = tree.newest, self.near
        recalled = self.far.recall_window(round)
        log_q, candidates, among = recalled.look_up(tree, picked)
        similarity = recalled.similarity[:, tree.height].gather(1, candidates)
        similarity = similarity.where(among, UNKNOWN)
        tokens = level.tokens.gather(1, picked)[0].tolist()
        parents = (picked[0] // level.children).tolist()
        self.levels.append(Level(parents, tokens, log_q[0], similarity[0], near))
        # Deeper levels than --head_depth run no head, so its last output must not stay here.
        self.near = None
        return draft

    def _after_round(self, states: object, result: RoundResult) -> None:
        """Keep the predictions after the root and the accepted tokens."""
        accepted, emitted = int(result.verdict.accepted[0]), result.verdict.emitted[0].tolist()
        node = 0
        for depth, level in enumerate(self.levels[: accepted + 1]):
            if depth:
                nodes = [*zip(level.parents, level.tokens, strict=True)]
                accepted_node = node, emitted[depth - 1]
                if accepted_node not in nodes:
                    break  # it was not expanded
                node = nodes.index(accepted_node)
            # where nothing was recalled it is `UNKNOWN`, below 0
            if level.similarity[node] > 0 and (level.near is not None or not self.mixed):
                self._keep(level, node, result.round, depth, emitted[depth])
        self.levels = []

    def _keep(self, level: Level, node: int, round: Round, depth: int, chosen: int) -> None:
        recalled = level.recalled[node].float().cpu()
        near = recalled if level.near is None else level.near[node].float().cpu().clamp(min=_LEAST)
        noise = round.ahead[0, depth].float().cpu().expand_as(recalled)
        factor = torch.tensor(self.calibration.at(depth + 1))  # levels count from 1
        similarity = level.similarity[node].float().cpu()
        self.rows.append((recalled, near, noise, factor, similarity, torch.tensor(chosen)))


def fit_numbers(
    # opens the engine of a method, for one image, whose rounds are not replayed
    open_engine: Callable[[MethodSettings], Engine],
    jobs: Sequence[Job],  # images to generate, at least two
    drafted: bool,  # whether a head is there, so that mixtures are fitted too
    seconds: float,
) -> RecallNumbers | None:
    """Return the numbers fitted to a model; pairs that accept no more tokens are tiny's.

    Half of the images are fitted to; rounds of the other half say whether that is an improvement.
    The likeliest numbers need not be: choices along a path depend on each other. None if the time,
    in seconds, is too short for enough choices.
    """
    numbers, methods = FITTED_TO_TINY, (ALONE, MIXED) if drafted else (ALONE,)
    half, others = jobs[: len(jobs) // 2], jobs[len(jobs) // 2 :]
    for method in methods:
        time_each = seconds / len(methods) / 3  # to record, and to compare two engines
        recorder = Recorder(open_engine(method))
        recorder.generate(half, time_each)
        if len(recorder.rows) < LEAST_CHOICES:
            return None
        data = tuple(map(torch.stack, zip(*recorder.rows, strict=True)))
        if recorder.mixed:
            share, trust = _fitted(_loss_mixed, [numbers.share, numbers.trust_mixed], data)
            fitted = replace(numbers, share=share, trust_mixed=trust)
        else:
            (alone,) = _fitted(_loss_alone, [numbers.trust_alone], data)
            fitted = replace(numbers, trust_alone=alone)
        engines = (open_engine(_with(method, each)) for each in (numbers, fitted))
        before, after = (_tokens_per_round(engine, others, time_each) for engine in engines)
        numbers = fitted if after > before else numbers
    return numbers


def _with(method: MethodSettings, numbers: RecallNumbers) -> MethodSettings:
    text = "/".join(f"{number:g}" for pair in vars(numbers).values() for number in pair)
    return replace(method, recall_numbers=text)


def _tokens_per_round(engine: Engine, jobs: Sequence[Job], seconds: float) -> float:
    """Return the mean tokens that a round decides; at least one round is run."""
    end, decided = time.monotonic() + seconds, []
    with closing(engine.generate(jobs)) as rounds:
        for step in rounds:
            decided += [round.accepted + 1 for round in step.rounds]
            if time.monotonic() > end:
                break
    return sum(decided) / len(decided)


def _loss_alone(data: tuple[Tensor, ...], numbers: Tensor) -> Tensor:
    recalled, _, noise, _, similarity, chosen = data
    trust = trust_in(similarity, *numbers[0])
    return F.cross_entropy(trust[:, None] * (recalled + noise), chosen)


def _loss_mixed(data: tuple[Tensor, ...], numbers: Tensor) -> Tensor:
    recalled, near, noise, factor, similarity, chosen = data
    (least, slope), trust = numbers
    share = (least + slope * similarity).clamp(0, 1)[:, None]
    mixed = torch.lerp(near, recalled, share).log_softmax(-1) + noise
    return F.cross_entropy((factor * trust_in(similarity, *trust))[:, None] * mixed, chosen)


def _fitted(
    loss: Callable[[tuple[Tensor, ...], Tensor], Tensor],
    current: list[Pair],
    data: tuple[Tensor, ...],
) -> list[Pair]:
    """Return pairs fitted to some choices; the current ones if the fit diverges."""
    numbers = torch.tensor(current, requires_grad=True)
    optimizer = torch.optim.LBFGS([numbers], max_iter=60, line_search_fn="strong_wolfe")

    def step() -> Tensor:
        optimizer.zero_grad()
        value = loss(data, numbers)
        value.backward()
        return value

    optimizer.step(step)
    fitted = numbers.detach()
    if not bool(fitted.isfinite().all()):
        return current
    return [tuple(round(value, 2) for value in pair) for pair in fitted.tolist()]
