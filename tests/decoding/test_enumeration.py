"""Every host rule over all outcomes of a round, on small trees: right ones are off by rounding."""

from collections.abc import Iterator
from functools import cache

import pytest
import torch
from browser import ALL, only_in_all

from configs.rules import RULES, LanternSettings, loaded
from decoding.noise_table import NodeNoise
from decoding.policies.base import TreePolicy
from decoding.policies.static import StaticTree
from decoding.rules import CoolSettings, GsdSettings, PathSettings
from decoding.rules.cool_sd import CoolSd
from decoding.rules.gsd import Gsd
from decoding.rules.path_explore import PathExplore
from decoding.rules.path_relax import PathRelax
from decoding.rules.sjd_pac import SjdPac
from decoding.sampling import choose
from decoding.verifiers.exact import Exact
from decoding.verifiers.lantern import Lantern
from scripts.rules.enumeration import Case, Chance, Uniform, enumerated, runs
from scripts.rules.faults import FAULTS
from scripts.rules.rounds import Unfavourable, noise_of
from scripts.rules.whole_rounds import TREES, fast

VOCAB = 3
KINDS = ("near", "cut", "sharp", "disjoint", "blind", "true", "ties")
ROUNDING = 1e-13


def kinds(tree: str) -> tuple[str, ...]:
    """Of the largest tree, which takes most of the time, one in `make test`."""
    return KINDS if ALL or tree != "three levels" else KINDS[:1]


@cache
def case(tree: str, q: str, proposal: str = "sampled") -> Case:
    policy: TreePolicy = TREES[tree]
    return Case(Unfavourable(q, VOCAB, policy.largest.reach), policy, proposal)


def lossless() -> Iterator[tuple[str, str, str]]:
    """Every rule, tree and proposal that the settings allow."""
    for name, rule in RULES.items():
        if name == "exact":  # it draws nothing
            continue
        for tree, policy in TREES.items():
            method = "static" if isinstance(policy, StaticTree) else "eagle2"
            for proposal in ("topk", "sampled"):
                doubled = tree == "doubled" and loaded(rule.code).reads_distributions
                # siblings that are drawn differ
                if rule.lossless and rule.fits(method, proposal) and not doubled:
                    yield name, tree, proposal


@pytest.fixture(scope="module", autouse=True)
def cached_distributions() -> Iterator[None]:
    with fast():
        yield


@pytest.mark.parametrize(("name", "tree", "proposal"), [*lossless()])
def test_lossless_rules_have_the_targets_distribution(name, tree, proposal) -> None:
    for q in kinds(tree):
        found = enumerated(loaded(RULES[name].code)(), case(tree, q, proposal))
        assert found.distance < ROUNDING and found.accepted > 0, q


NEAREST = torch.tensor([[1, 2], [2, 0], [0, 1]])
LIMITS = {
    "lantern of delta 0": (Lantern(LanternSettings(k=2, delta=0.0), NEAREST), "cousins"),
    "cool_sd of delta 1": (CoolSd(CoolSettings(1.0)), "cousins"),
    "gsd of reach 0": (Gsd(GsdSettings(reach=0)), "cousins"),
    "gsd of gap 0": (Gsd(GsdSettings(gap=0.0)), "cousins"),
    "sjd_pac": (SjdPac(), "chain"),
    "path_explore": (PathExplore(), "chain"),
    "path_relax": (PathRelax(PathSettings(delta=0.4)), "chain"),
}


@pytest.mark.parametrize("name", LIMITS)
def test_relaxed_rules_have_lossless_limits(name) -> None:
    rule, tree = LIMITS[name]
    for q in KINDS:
        assert enumerated(rule, case(tree, q)).distance < ROUNDING, q


@pytest.mark.parametrize("tree", TREES)
def test_the_exact_rule_gives_the_tokens_of_plain_decoding_on_every_tree(tree) -> None:
    for q in kinds(tree):
        here = case(tree, q)
        drafts = here.every[0]
        log_p = here.laws.log_p[here.laws.rows(drafts)]
        for seed in range(4):
            noise = noise_of([seed] * len(log_p), here.tokens, VOCAB)
            depths, decided = drafts.depths, torch.zeros(len(log_p), 1, dtype=torch.long)
            verdict = Exact()(drafts, log_p, NodeNoise(noise, depths, decided))
            rows, plain = torch.zeros(len(log_p), dtype=torch.long), []
            for position in range(here.tokens):
                plain.append(choose(here.laws.log_p[rows], noise.table[:, position]))
                rows = rows * VOCAB + 1 + plain[-1]
            emitted, made = verdict.emitted[:, : here.tokens], torch.stack(plain, 1)
            within = torch.arange(emitted.shape[1]) <= verdict.accepted[:, None]
            assert torch.equal(emitted[within], made[:, : emitted.shape[1]][within])
            assert len(emitted) > 1


@pytest.mark.parametrize(
    "fault",
    [pytest.param(f, marks=only_in_all if "same in" in f.name else ()) for f in FAULTS],
    ids=lambda fault: fault.name,
)
def test_faults_are_seen(fault) -> None:
    """The least of them, one node in a thousand, moves the distribution by 1e-4."""
    with fault.broken():
        found = enumerated(fault.rule, case(fault.tree, "near", fault.proposal))
    assert found.distance > 5e-5


def test_all_outcomes_together_are_certain() -> None:
    for tree in TREES:
        for q in kinds(tree):
            assert abs(sum(drawn.weight for drawn in case(tree, q).trees) - 1) < ROUNDING


def test_a_number_is_narrowed_by_every_comparison() -> None:
    """u < 1/2, then 2 u < 3/2, then u - 1/8 < 1/8: six of seven intervals are ruled out."""

    def program(chance: Chance) -> tuple[bool, ...]:
        number = Uniform(chance, [0.0, 1.0])
        return number < 0.5, number * 2 < 1.5, number - 0.125 < 0.125

    found = dict(runs(program))
    assert found == {
        (True, True, True): 0.25, (True, True, False): 0.25,
        (False, True, False): 0.25, (False, False, False): 0.25,
    }  # fmt: skip
