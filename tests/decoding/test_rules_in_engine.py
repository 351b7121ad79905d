"""Every acceptance rule in the engine, fp64: streams by image and position, batches, T = 0."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch
from fakes import codes
from test_engine import JOBS, VOCAB

from configs.acceptance import GsdSettings, PathSettings
from configs.schema import AdtSettings, LanternSettings, MethodSettings
from decoding.noise import NoiseShape, PositionalNoise, stream_key
from decoding.sampling import SamplingDistribution
from runs.methods import build_engine
from runs.session import Session

WARM, GREEDY = SamplingDistribution(top_k=12), SamplingDistribution(temperature=0.0)
TREE = {"method": "eagle2", "depth": 3, "width": 4, "nodes": 10}
GRAFTED = {"method": "eagle_recall", "nodes": 9, "window": 6}
LANTERN = LanternSettings(k=6, delta=0.3)
LOSSLESS = {
    "rejection": MethodSettings(**TREE, proposal="topk", verifier="rejection"),
    "rejection, coupled": MethodSettings("adt", verifier="rejection", adt=AdtSettings(d_max=5)),
    "rejection, drawn": MethodSettings(**TREE, proposal="sampled", verifier="rejection"),
    "sampled": MethodSettings("static", proposal="sampled", verifier="sampled"),
    "rejection, grafted": MethodSettings(**GRAFTED, depth=3, width=3, verifier="rejection"),
    "spectr": MethodSettings("static", proposal="sampled", verifier="spectr"),
    "block": MethodSettings("jacobi", proposal="sampled", verifier="block", window=5),
    # the tree has more nodes than the model has codes, and two parents on a level
    "traversal": MethodSettings("static", proposal="sampled", verifier="traversal"),
    "SJD": MethodSettings("jacobi", proposal="sampled", verifier="sampled", window=5),
}
RELAXED = {
    "lantern": MethodSettings(**TREE, proposal="topk", verifier="lantern", relaxed=LANTERN),
    "lantern_coupled": MethodSettings(**TREE, verifier="lantern_coupled", relaxed=LANTERN),
    "lantern, grafted": MethodSettings(**GRAFTED, verifier="lantern", relaxed=LANTERN),
    "gsd": MethodSettings(
        "jacobi", proposal="sampled", verifier="gsd", window=5, relaxed=GsdSettings(reach=2)
    ),
    "path_explore": MethodSettings("static", proposal="sampled", verifier="path_explore"),
    "path_relax": MethodSettings(
        "static", proposal="sampled", verifier="path_relax", relaxed=PathSettings(delta=0.3)
    ),
}
OTHERS = {
    "plain": MethodSettings("ar"),
    "exact, drawn": MethodSettings("adt", proposal="sampled"),
}
METHODS = LOSSLESS | RELAXED | OTHERS
Made = Callable[[str, SamplingDistribution, int], dict[str, list[int]]]


@pytest.fixture(scope="module")
def made(session: Session) -> Made:
    """The codes that a method decodes in batches of so many images, computed once."""
    generator = torch.Generator().manual_seed(0)
    distances = [torch.randperm(VOCAB - 1, generator=generator) for _ in range(VOCAB)]
    nearest = torch.stack([(code + 1 + far) % VOCAB for code, far in enumerate(distances)]).int()

    @cache
    def decode(name: str, distribution: SamplingDistribution, images: int) -> dict[str, list[int]]:
        parts = session.target, session.drafter, distribution, METHODS[name], images, nearest
        return codes(build_engine(*parts), JOBS[:4])

    return decode


@pytest.mark.parametrize("distribution", [WARM, GREEDY], ids=["T=1", "T=0"])
@pytest.mark.parametrize("name", LOSSLESS | RELAXED)
def test_images_do_not_depend_on_their_batch(name, distribution, made) -> None:
    assert made(name, distribution, 3) == made(name, distribution, 1)


@pytest.mark.parametrize("name", LOSSLESS)
def test_temperature_0_is_plain_decoding(name, made) -> None:
    assert made(name, GREEDY, 3) == made("plain", GREEDY, 1)


def test_drawn_children_leave_the_exact_rule_exact(made) -> None:
    plain = made("plain", WARM, 1)
    assert made("exact, drawn", WARM, 3) == plain
    assert made("rejection", WARM, 3) != plain  # the same distribution, other images


def test_relaxed_images_are_others(made) -> None:
    assert made("lantern_coupled", WARM, 1) != made("plain", WARM, 1)


def test_draws_differ_by_round_and_by_parent() -> None:
    noise = PositionalNoise(NoiseShape(6, 4, False, torch.float64, torch.device("cpu")), 2)
    keys = torch.tensor([[stream_key(7, "draft 0")], [stream_key(8, "draft 3")]])
    position, parents = torch.tensor([[0], [2]]), torch.arange(3)
    draws = noise.draft(keys, position, parents)
    assert draws.shape == (2, 3, 4) and draws.unique().numel() == draws.numel()
    assert not torch.isin(noise.draft(keys, position + 1, parents), draws).any()
    keys[0] = stream_key(7, "draft 1")
    later = noise.draft(keys, position, parents)
    assert not torch.isin(later[0], draws[0]).any() and torch.equal(later[1], draws[1])


def test_greedy_draws_hold_no_noise() -> None:
    noise = PositionalNoise(NoiseShape(6, 4, True, torch.float64, torch.device("cpu")), 2)
    draws = noise.draft(torch.tensor([[7], [8]]), torch.tensor([[0], [2]]), torch.arange(3))
    assert draws.shape == (2, 3, 1) and not draws.any()
