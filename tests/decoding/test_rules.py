"""Every acceptance rule in the engine, fp64: batches, T = 0; published formulas."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from browser import ALL
from fakes import DictatedStreams, codes, tree_of
from test_engine import JOBS, VOCAB

from configs.schema import AdtSettings, LanternSettings, MethodSettings
from decoding.noise import HostNoise, NoiseShape, stream_key, uniform, uniform_at
from decoding.noise_table import NodeNoise
from decoding.policies.static import StaticTree, rank_paths
from decoding.rules import GsdSettings, PathSettings, VvsSettings
from decoding.rules.block_verification import BlockVerification
from decoding.rules.spectr import selection_ratio
from decoding.rules.traversal import Traversal
from decoding.sampling import SamplingDistribution
from decoding.verifiers.host import trees_on_host
from decoding.verifiers.rejection import Rejection
from decoding.verifiers.sampled import Sampled
from runs.check.loaded import first_rows
from runs.methods import build_engine
from runs.session import Session
from scripts.rules.rounds import Distributions, noise_of, one_round

WARM, GREEDY = SamplingDistribution(top_k=12), SamplingDistribution(temperature=0.0)
TREE = {"method": "eagle2", "depth": 3, "width": 4, "nodes": 10}
MIXED = {"method": "eagle_recall", "nodes": 9}
IDS = 8  # of the rules' own trees
LANTERN = LanternSettings(k=6, delta=0.3)
LOSSLESS = {
    "rejection": MethodSettings(**TREE, proposal="topk", verifier="rejection"),
    "rejection, coupled": MethodSettings("adt", verifier="rejection", own=AdtSettings(d_max=5)),
    "rejection, drawn": MethodSettings(**TREE, proposal="sampled", verifier="rejection"),
    "sampled": MethodSettings("static", proposal="sampled", verifier="sampled"),
    "rejection, mixed": MethodSettings(**MIXED, depth=3, width=3, verifier="rejection"),
    "spectr": MethodSettings("static", proposal="sampled", verifier="spectr"),
    "block_verification": MethodSettings(
        "jacobi", proposal="sampled", verifier="block_verification", window=5
    ),
    # the tree has more nodes than the model has codes, and two parents on a level
    "traversal": MethodSettings("static", proposal="sampled", verifier="traversal"),
    "SJD": MethodSettings("jacobi", proposal="sampled", verifier="sampled", window=5),
}
RELAXED = {
    "lantern": MethodSettings(**TREE, proposal="topk", verifier="lantern", numbers=LANTERN),
    "lantern_coupled": MethodSettings(**TREE, verifier="lantern_coupled", numbers=LANTERN),
    "lantern, mixed": MethodSettings(**MIXED, verifier="lantern", numbers=LANTERN),
    "lantern, drawn": MethodSettings(
        "static", proposal="sampled", verifier="lantern", numbers=LANTERN
    ),
    "sjd_pac": MethodSettings("static", proposal="sampled", verifier="sjd_pac"),
    "cool_sd": MethodSettings("jacobi", proposal="sampled", verifier="cool_sd", window=5),
    "gsd": MethodSettings(
        "jacobi", proposal="sampled", verifier="gsd", window=5, numbers=GsdSettings(reach=2)
    ),
    "vvs": MethodSettings(**TREE, proposal="topk", verifier="vvs", numbers=VvsSettings(2)),
    "path_explore": MethodSettings("static", proposal="sampled", verifier="path_explore"),
    "path_relax": MethodSettings(
        "static", proposal="sampled", verifier="path_relax", numbers=PathSettings(delta=0.3)
    ),
}
METHODS = LOSSLESS | RELAXED | {"plain": MethodSettings("ar")}
METHODS |= {"exact, drawn": MethodSettings("adt", proposal="sampled")}
Made = Callable[[str, SamplingDistribution, int], dict[str, list[int]]]


@pytest.fixture(scope="module")
def made(session: Session) -> Made:
    """The codes that a method decodes in batches of so many images, computed once."""
    target = session.target if ALL else first_rows(session.target, 8)
    generator = torch.Generator().manual_seed(0)
    distances = [torch.randperm(VOCAB - 1, generator=generator) for _ in range(VOCAB)]
    nearest = torch.stack([(code + 1 + far) % VOCAB for code, far in enumerate(distances)]).int()

    @cache
    def decode(name: str, distribution: SamplingDistribution, images: int) -> dict[str, list[int]]:
        parts = target, session.drafter, distribution, METHODS[name], images, nearest
        return codes(build_engine(*parts), JOBS[:4])

    return decode


@pytest.mark.parametrize("name", LOSSLESS | RELAXED)
def test_images_do_not_depend_on_their_batch(name, made) -> None:
    assert made(name, WARM, 3) == made(name, WARM, 1)


@pytest.mark.parametrize("name", LOSSLESS | RELAXED)
def test_temperature_0_is_plain_decoding(name, made) -> None:
    """Or, with rules that replace the likeliest token even then, does not depend on the batch."""
    own = "lantern" in name or name == "vvs"
    assert made(name, GREEDY, 3) == made(name if own else "plain", GREEDY, 1)


def test_drawn_children_leave_the_exact_rule_exact(made) -> None:
    plain = made("plain", WARM, 1)
    assert made("exact, drawn", WARM, 3) == plain
    assert made("rejection", WARM, 3) != plain  # the same distribution, other images


@pytest.mark.parametrize("rule", [Sampled(), Traversal()], ids=["sampled", "traversal"])
def test_a_draft_that_q_hardly_has_is_judged_by_what_it_has(rule) -> None:
    """In fp32 q of the second draft is 0 beside the first; low temperatures make such q."""
    laws = Distributions(vocab=3, length=1)
    laws.log_p = torch.tensor([0.3, 1e-9, 0.7]).log().expand(4, 3)
    laws.log_q = torch.tensor([0.0, -200.0, -400.0]).expand(4, 3)
    noise = noise_of(range(1000), 2, 3)
    _, verdict = one_round(laws, StaticTree(rank_paths("root:2")), "sampled", rule, noise)
    counts = verdict.emitted[:, 0].bincount(minlength=3)
    assert counts[1] == 0 and 230 < counts[0] < 370  # five standard deviations


def test_an_empty_residual_is_an_error() -> None:
    """p holds one token, the number says that it is refused: only rounding can do so."""
    tree = tree_of([0, 2], [0, 0])
    log_p = torch.full((1, 2, IDS), -torch.inf)
    log_p[..., 2] = 0
    with pytest.raises(FloatingPointError, match="--verifier rejection: all children were refused"):
        Rejection()(tree, log_p, DictatedStreams(torch.zeros(1, 2, IDS), number=1.0))


def test_single_numbers_are_those_of_whole_rows() -> None:
    for seed in (0, 7, 2**62 + 5):
        key, positions = stream_key(seed, "accept"), torch.arange(40)
        rows = uniform(key, positions, 30)
        assert [[uniform_at(key, p, c) for c in range(30)] for p in range(40)] == rows.tolist()
        shape = NoiseShape(99, 30, False, torch.float64, torch.device("cpu"))
        assert HostNoise(seed, 5, shape).accept(3, 2) == rows[8, 2]


def test_the_ratio_of_spectr_solves_its_equation() -> None:
    generator = torch.Generator().manual_seed(0)
    pairs = torch.randn(2, 50, 9, generator=generator, dtype=torch.float64).mul(2).softmax(-1)
    for image, (p, q) in enumerate(zip(*pairs.numpy(), strict=True)):
        count = 1 + image % 4
        rho = selection_ratio(p, q, count)
        beta = torch.minimum(torch.tensor(q), torch.tensor(p / rho)).sum()
        assert 1 <= rho <= count
        torch.testing.assert_close(1 - (1 - beta) ** count, rho * beta)


def test_blocks_are_accepted_by_the_published_formula() -> None:
    """p_i and h_i of a chain, computed as the paper writes them, in a tree with other nodes."""
    laws, images, steps = Distributions(IDS, 3), 200, 3
    policy, noise = StaticTree(rank_paths("root:2 0:2 00:1 01:1")), noise_of(range(200), 4, IDS)
    tree, verdict = one_round(laws, policy, "sampled", BlockVerification(), noise)
    root = torch.zeros(images, 1, dtype=torch.long)
    numbers = NodeNoise(noise, tree.depths, root).images()
    for image, one in enumerate(trees_on_host(tree, laws.log_p[laws.rows(tree)])):
        weight, longest, node = 1.0, 0, 0
        for i in range(1, steps + 1):
            p, q = one.p(node), one.q(node)
            node = one.children[node][0]
            weight = min(weight * p[one.tokens[node]] / q[one.tokens[node]], 1.0)
            total = float((weight * one.p(node) - one.q(node)).clip(min=0).sum())
            chance = weight if i == steps else total / (total + 1 - weight)
            if numbers[image].accept(0, node) < chance:
                longest = i
        assert int(verdict.accepted[image]) == longest
