"""ADT-Tree's controller against equation 2 of arXiv 2512.21857, written out in plain Python."""

from dataclasses import replace
from random import Random

import pytest

from configs.schema import AdtSettings
from decoding.policies.adaptive import AdaptiveController
from decoding.round import ImageRound, TreeShape
from models.base import ImageGrid

COLUMNS, NODES, TOKENS = 5, 12, 100
SETTINGS = AdtSettings(
    beta=0.5, l_d=2, l_k=1, d_min=2, d_max=8, k_min=2, k_max=6, d_init=4, k_init=4
)


def controller(seed: int = 0, **changes: object) -> AdaptiveController:
    return AdaptiveController(replace(SETTINGS, **changes), NODES, ImageGrid(8, COLUMNS), seed)


def outcome(accepted: int, levels: int, confidence: float = 0.0) -> ImageRound:
    return ImageRound(0, accepted, levels, levels, confidence, (), (), ())


def run(one: AdaptiveController, outcomes: list[ImageRound]) -> list[tuple[int, int]]:
    """Depth and width of the first tree and of those after each outcome."""
    shapes, position = [], 1
    for result in [*outcomes, None]:
        shape = one.shape(position)
        shapes.append((shape.depth, shape.width))
        if result is not None:
            one.observe(result)
            position += result.accepted + 1
    return shapes


def test_random_start_is_within_bounds_and_belongs_to_the_seed() -> None:
    outcomes = [outcome(1, 4)] * 200
    shapes = run(controller(3, init="random", adapt="none"), outcomes)
    depths, widths = (set(limits) for limits in zip(*shapes, strict=True))
    assert depths == set(range(2, 9)) and widths == set(range(2, 7))
    assert shapes == run(controller(3, init="random", adapt="none"), outcomes)
    assert shapes != run(controller(4, init="random", adapt="none"), outcomes)


def test_random_adaptation_ignores_acceptance() -> None:
    runs = [run(controller(1, adapt="random"), [outcome(a, 4)] * 50) for a in (0, 0, 4)]
    assert runs[0] == runs[1] == runs[2]
    steps = {b[0] - a[0] for a, b in zip(runs[0], runs[0][1:], strict=False)}
    assert steps == {-2, 0, 2}, "0 at the bounds only"
    rare = run(controller(1, adapt="random", beta=1.0), [outcome(4, 4)] * 20)
    assert rare[-1] == (2, 6), "beta is the probability of the other direction"


def test_confidence_adaptation_uses_the_drafters_own_estimate() -> None:
    outcomes = [outcome(0, 4, confidence=0.9), outcome(4, 4, confidence=0.1)]
    assert run(controller(adapt="confidence"), outcomes) == [(4, 4), (6, 3), (4, 4)]


def reference(settings: AdtSettings, outcomes: list[ImageRound]) -> list[tuple[int, int]]:
    """Acceptance adaptation by the formulas; owner[i] is the tree that decided position i."""
    owner: list[tuple[int, int, float] | None] = [None]
    shapes = []
    for result in outcomes:
        above = owner[len(owner) - COLUMNS] if len(owner) >= COLUMNS else None
        start = {"horizontal": owner[-1], "vertical": above, "fixed": None}[settings.init]
        depth, width = start[:2] if start else (settings.d_init, settings.k_init)
        near = above if settings.init == "vertical" else owner[-1]
        judged = near if settings.alpha == "neighbour" else owner[-1]
        if judged is not None and settings.adapt != "none":
            sign = 1 if judged[2] >= settings.beta else -1
            depth, width = depth + sign * settings.l_d, width - sign * settings.l_k
        depth = max(settings.d_min, min(settings.d_max, depth))
        width = max(settings.k_min, min(settings.k_max, width))
        shapes.append((depth, width))
        owner += [(depth, width, result.accepted / result.depth)] * (result.accepted + 1)
    return shapes


@pytest.mark.parametrize("adapt", ["acceptance", "none"])
@pytest.mark.parametrize("alpha", ["previous", "neighbour"])
@pytest.mark.parametrize("init", ["horizontal", "vertical", "fixed"])
def test_long_runs_follow_the_formulas(init, alpha, adapt) -> None:
    changes = {"init": init, "alpha": alpha, "adapt": adapt}
    for seed in range(5):
        random = Random(seed)
        levels = [random.randint(1, 8) for _ in range(60)]
        outcomes = [outcome(random.randint(0, n), n) for n in levels]
        found = run(controller(**changes), outcomes)
        assert found[:-1] == reference(replace(SETTINGS, **changes), outcomes)


def test_near_the_end_the_tree_is_cut() -> None:
    shape = TreeShape(5, 3, NODES, 7)
    assert shape.within(TOKENS) == shape
    assert shape.within(3) == TreeShape(2, 3, NODES, 2)
    assert shape.within(1) == TreeShape(0, 3, NODES, 0), "the last token needs no draft"
