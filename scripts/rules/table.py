"""Judge the public rules of acceptance for image tokens: by enumeration and by whole rounds.

`python -m scripts.rules.table --output outputs/rules.json`
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path

import numpy as np
import torch

from configs.rules import LanternSettings
from decoding.policies.static import StaticTree, rank_paths
from decoding.rules import CoolSettings, GsdSettings, PathSettings, VvsSettings
from decoding.rules.block_verification import BlockVerification
from decoding.rules.cool_sd import CoolSd
from decoding.rules.gsd import Gsd
from decoding.rules.path_explore import PathExplore
from decoding.rules.path_relax import PathRelax
from decoding.rules.sjd_pac import SjdPac
from decoding.rules.spectr import SpecTr
from decoding.rules.traversal import Traversal
from decoding.rules.vvs import Vvs
from decoding.verifiers.base import Verifier
from decoding.verifiers.exact import Exact
from decoding.verifiers.host import Array, HostRule
from decoding.verifiers.lantern import Lantern
from decoding.verifiers.rejection import Rejection
from decoding.verifiers.sampled import Sampled
from scripts.rules import processes
from scripts.rules.enumeration import Case, enumerated
from scripts.rules.faults import FAULTS
from scripts.rules.lengths import lengths, step_lengths
from scripts.rules.rounds import Distributions, Unfavourable
from scripts.rules.statistics import rejected
from scripts.rules.whole_rounds import CONTROLS, Cell, Outcome, fast, outcome
from scripts.rules.whole_rounds import TREES as DRAFTED
from support.script import run_script

Where = tuple[str, str | int]  # tree and law
VOCAB = 3
KINDS = ("near", "cut", "sharp", "disjoint", "blind", "true", "ties")
TREES = {
    "chain": "root:1 0:1",
    "siblings": "root:2",
    "cousins": "root:2 0:1 1:1",
    "two levels": "root:2 0:2 1:2",
}
ROUNDING = 1e-13  # a right rule is off by some 1e-16
RATE = 0.01  # most of the rejected hypotheses that are true, on average
SEEDS = 1_000_000  # apart from those of the controls
NEAR = torch.tensor([[1, 2], [0, 2], [0, 1], [2, 1]])  # codes, nearest first


def lantern(**settings: float | str) -> Callable[[], HostRule]:
    """Return what makes LANTERN's rule with one neighbour."""
    numbers = LanternSettings.of(k=1, **settings)
    return lambda: Lantern(numbers, NEAR)


@dataclass(frozen=True)
class Judged:
    """A published rule."""

    name: str
    source: str  # where it was read
    claims: str
    rule: Callable[[], HostRule]
    proposal: str = "sampled"
    trees: tuple[str, ...] = tuple(TREES)
    repaired: str = ""  # the rule that keeps the distribution
    sampled: bool = True  # whether whole rounds are sampled: of rules that are the same, of one


CHAIN = ("chain",)
RULES = (
    Judged("EAGLE-1", "EAGLE cb7e084, LANTERN 3a56e45 without LANTERN", "lossless", Sampled),
    Judged("EAGLE-2", "EAGLE cb7e084", "lossless", Rejection, "topk"),
    Judged("SJD", "b389cfb", "lossless", Sampled, trees=CHAIN, sampled=False),
    Judged(
        "vLLM, p / q", "vllm/v1/sample/rejection_sampler.py", "lossless",
        Sampled, trees=CHAIN, sampled=False,
    ),
    Judged("block verification", "arXiv 2403.10444", "lossless", BlockVerification),
    Judged("traversal", "arXiv 2505.12398", "lossless", Traversal),
    Judged("SpecTr, k-sequential", "arXiv 2310.15141", "lossless", SpecTr),
    Judged("SJD-PAC, longest path", "4fbc099", "lossless", SjdPac, repaired="EAGLE-1"),
    Judged("PathExplore", "PathSpec 8a3df48", "lossless", PathExplore, repaired="EAGLE-1"),
    Judged(
        "PathRelax, delta 0.01", "PathSpec 8a3df48", "relaxed",
        lambda: PathRelax(PathSettings()), repaired="EAGLE-1",
    ),
    Judged(
        "GSD, reach 2", "GSD 4216c7c", "relaxed",
        lambda: Gsd(GsdSettings(reach=2, gap=0.3)), repaired="SJD",
    ),
    Judged(
        "LANTERN, delta 0.1", "LANTERN 3a56e45", "relaxed",
        lantern(delta=0.1, budget="per_candidate", residual="reference"), "topk",
        repaired="EAGLE-2",
    ),
    Judged(
        "LANTERN, delta 0.1, shared and exact", "this repository", "relaxed, 0.1 a token",
        lantern(delta=0.1), "topk", repaired="EAGLE-2",
    ),
    Judged(
        "LANTERN++, lambda 5", "LANTERN 3a56e45", "relaxed",
        lantern(delta=5.0, residual="reference"), repaired="EAGLE-1",
    ),
    Judged(
        "COOL-SD, delta 1.1", "arXiv 2601.09212, no code", "relaxed",
        lambda: CoolSd(CoolSettings()), repaired="EAGLE-1",
    ),
    Judged(
        "COOL-SD, delta 2", "arXiv 2601.09212, no code", "relaxed",
        lambda: CoolSd(CoolSettings(2.0)), repaired="EAGLE-1", sampled=False,
    ),
    Judged(
        "VVS, a skipped round", "VVS 7790173", "relaxed",
        lambda: Vvs(VvsSettings(1)), "topk", repaired="EAGLE-2", sampled=False,
    ),
    Judged(
        "VVS, one round in five", "VVS 7790173", "relaxed",
        lambda: Vvs(VvsSettings()), "topk", repaired="EAGLE-2",
    ),
)  # fmt: skip
ITERATED: dict[str, tuple[str, Callable[[], processes.Redraw], str]] = {
    "SJD, whole iterations": ("b389cfb", lambda: processes.drawn_anew, ""),
    "SCD, Gumbel coupling": ("7322379, lumina1", processes.OneNumber, ""),
    "SCD, maximal coupling": ("7322379, cosmos", lambda: processes.kept_if_accepted, ""),
    "SCD, maximal coupling (Lumina)": (
        "7322379, lumina1", lambda: processes.kept_with_its_q, "SCD, maximal coupling",
    ),
}  # fmt: skip


@cache
def case(tree: str, law: str | int, proposal: str) -> Case:
    """Return trees and distributions; law: a kind, or the seed of random ones."""
    policy = StaticTree(rank_paths(TREES[tree]))
    return Case(laws_of(law, policy.largest.reach), policy, proposal)


def laws_of(law: str | int, length: int) -> Distributions:
    """Return target and drafter after prefixes of up to so many tokens."""
    if isinstance(law, str):
        return Unfavourable(law, VOCAB, length)
    return Distributions(VOCAB, length, spread=1.3, seed=law)


@dataclass(frozen=True)
class Distance:
    """How far a rule's first tokens are from the target's distribution, in total variation."""

    worst: float
    where: str
    mean: float  # over random distributions

    @staticmethod
    def of(found: dict[Where, float]) -> "Distance":
        """found: by tree and law."""
        tree, law = max(found, key=found.__getitem__)
        where = f"{tree}, {law if isinstance(law, str) else f'random {law}'}"
        random = [distance for (_, law), distance in found.items() if not isinstance(law, str)]
        return Distance(found[tree, law], where, float(np.mean(random)))

    @property
    def exact(self) -> bool:
        """Whether the rule is off by rounding alone."""
        return self.worst < ROUNDING


def enumerate_rules(laws: int) -> Iterator[dict]:
    """Yield a row per rule; laws: random pairs of target and drafter, beside the named ones."""
    for entry in RULES:
        rule, found, lengths = entry.rule(), {}, []
        for tree in entry.trees:
            for law in (*KINDS, *range(1, laws + 1)):
                result = enumerated(rule, case(tree, law, entry.proposal))
                found[tree, law] = result.distance
                lengths.append(result.accepted)
        yield judged(entry.name, entry.source, entry.claims, Distance.of(found), entry.repaired)
    for name, (source, redraw, repaired) in ITERATED.items():
        found = {
            ("window 3", law): processes.iterated(laws_of(law, 3), 3, 3, redraw)[0]
            for law in (*KINDS, *range(1, laws + 1))
        }
        yield judged(name, source, "lossless", Distance.of(found), repaired)
    yield from closed_forms(laws)


def closed_forms(laws: int) -> Iterator[dict]:
    """Yield the rows of what one position shows: three distributions a law."""
    triples: dict[Where, Array] = {
        ("one position", law): laws_of(law, 2).log_p.exp().numpy()[:3] for law in range(1, laws + 1)
    }
    for published in (True, False):
        found = {
            where: processes.proactive_siblings(p[0], p[1], p[2], published)
            for where, p in triples.items()
        }
        name = "SJD-PAC, siblings as published" if published else "SJD-PAC, siblings drawn from p"
        repaired = "SJD-PAC, siblings drawn from p" if published else ""
        yield judged(name, "4fbc099", "lossless", Distance.of(found), repaired)
    found = {
        where: float(np.abs(processes.recovered_with_the_drafts_noise(p, q) - p).sum() / 2)
        for where, (p, q, _) in triples.items()
    }
    source = "vllm before #54282 (2026-08-28)"
    yield judged("vLLM, shared noise", source, "lossless", Distance.of(found), "vLLM, p / q")


def planted_faults() -> Iterator[dict]:
    """Yield how far every planted fault moves the distribution."""
    for fault in FAULTS:
        policy = DRAFTED[fault.tree]
        with fault.broken():
            trees = Case(laws_of("near", policy.largest.reach), policy, fault.proposal)
            found = enumerated(fault.rule, trees)
        yield {"fault": fault.name, "tree": fault.tree, "distance": found.distance}


def judged(name: str, source: str, claims: str, distance: Distance, repaired: str) -> dict:
    """Return the row of a rule."""
    return {
        "rule": name, "source": source, "claims": claims, "exact": distance.exact,
        "worst": distance.worst, "where": "" if distance.exact else distance.where,
        "mean": distance.mean, "repaired": repaired,
    }  # fmt: skip


def sampled_cells() -> Iterator[Cell]:
    """Whole rounds of every rule, lossless or not."""
    rules: list[tuple[str, str, Verifier]] = [
        *(("the target's own sample", proposal, Exact()) for proposal in ("topk", "coupled")),
        *((entry.name, entry.proposal, entry.rule()) for entry in RULES if entry.sampled),
    ]
    for tree, q in product(("chain", "three levels"), ("near", "blind")):
        for name, proposal, rule in rules:
            yield Cell(name, proposal, tree, q, rule)


def sample_rules(images: int) -> Iterator[dict]:
    """Yield a row per cell and control: p-values, and whether they are rejected among all."""
    cells = list(sampled_cells())
    found = [outcome(cell, images) for cell in (*cells, *CONTROLS)]
    p_values = [least_p(result) for result in found]
    wrong = rejected(p_values, RATE)
    for cell, result, p, refused in zip((*cells, *CONTROLS), found, p_values, wrong, strict=True):
        yield {
            "rule": cell.rule, "children": cell.proposal, "tree": cell.tree, "drafter": cell.q,
            "planted": cell in CONTROLS, "p": p, "refused": refused,
            "distance": result.distance, "scatter": result.scatter,
        }  # fmt: skip


def least_p(result: Outcome) -> float:
    """Return the p-value of a cell, the smaller of its two, doubled because there are two."""
    return min(1.0, 2 * result.p_value, 2 * result.after_refusal)


def false_alarms(runs: int, controlled: int, images: int = 200) -> dict:
    """Return how often right rules are accused: by enumeration and by sampled rounds.

    All sampled runs and planted faults are tested together, by Benjamini and Hochberg's procedure.

    controlled: images of each planted fault; 0: none of them.
    """
    right = Sampled(), Rejection(), SpecTr(), BlockVerification(), Traversal()
    proposed = [(rule, "sampled" if rule.reads_distributions else "topk") for rule in right]
    worst = 0.0
    for law in range(1, runs // len(right) + 1):
        for rule, proposal in proposed:
            worst = max(worst, enumerated(rule, case("cousins", 10_000 + law, proposal)).distance)
    tried: list[tuple[Verifier, str]] = [(Exact(), "topk"), (Exact(), "coupled"), *proposed]
    cells = [
        Cell(rule.name, proposal, tree, q, rule)
        for rule, proposal in tried
        for tree in ("chain", "cousins", "three levels")
        for q in ("near", "cut", "blind")
    ]
    found = [outcome(cells[run % len(cells)], images, SEEDS + run * images) for run in range(runs)]
    p_values = [least_p(result) for result in found]
    planted = [least_p(outcome(cell, controlled)) for cell in CONTROLS] if controlled else []
    wrong = rejected([*p_values, *planted], RATE)
    return {
        "runs": runs,
        "worst distance": worst,
        "accused by enumeration": int(worst > ROUNDING),
        "planted": len(planted),
        "rate": RATE,
        "accused by sampling": sum(wrong[:runs]),
        "planted and accused": sum(wrong[runs:]),
        "least p": min(p_values),
        "p below 0.01": sum(p < 0.01 for p in p_values),
    }


def table(
    output: str, laws: int = 60, images: int = 4000, runs: int = 1000, model_images: int = 0
) -> None:
    """Judge every rule, write the figures and print them.

    Args:
        output: JSON file.
        laws: random pairs of target and drafter that rules are enumerated with.
        images: whole rounds per cell; 0: none.
        runs: of right rules, none of which may be accused.
        model_images: of the included model, for tau at 25 nodes; 0: no tau.
    """
    torch.set_num_threads(1)
    with fast():
        parts: dict[str, Sequence | dict] = {"rules": shown(enumerate_rules(laws))}
        if images:
            parts["whole rounds"] = shown(sample_rules(images))
        parts["planted faults"] = shown(planted_faults())
        parts["right rules"] = false_alarms(runs, images)
    if model_images:
        parts["lengths"] = shown(lengths(model_images))
        parts["accepted per step"] = shown(step_lengths(model_images))
    path = Path(output)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = partial(json.dumps, ensure_ascii=False)
    text = ",\n".join(
        f'"{name}": ' + (lines(part) if isinstance(part, dict) else _listed(map(lines, part)))
        for name, part in parts.items()
    )
    path.write_text(f"{{\n{text}\n}}\n", encoding="utf-8")
    print(f"{path}: {len(parts['rules'])} rules; {parts['right rules']}")


def shown(rows: Iterator[dict]) -> list[dict]:
    """Print rows as they are found, and return them."""
    found = []
    for row in rows:
        print(row, flush=True)
        found.append(row)
    return found


def _listed(lines: Iterator[str]) -> str:
    return "[\n" + ",\n".join(lines) + "\n]"


if __name__ == "__main__":
    run_script(table)
