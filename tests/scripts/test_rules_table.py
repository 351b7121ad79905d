"""The table of published rules: few distributions, all of its rows; many tests at once."""

import json
from dataclasses import replace

import numpy as np
import pytest
from browser import ALL, thinned

from configs.schema import ROOT
from scripts.rules.faults import FAULTS
from scripts.rules.processes import recovered_with_the_drafts_noise
from scripts.rules.statistics import rejected
from scripts.rules.table import ROUNDING, RULES, table

EXACT = {
    "EAGLE-1", "EAGLE-2", "SJD", "vLLM, p / q", "block verification", "traversal",
    "SpecTr, k-sequential", "SJD, whole iterations", "SCD, Gumbel coupling",
    "SCD, maximal coupling", "SJD-PAC, siblings drawn from p",
}  # fmt: skip


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    """The table; in `make test` without the trees of two levels."""
    path = tmp_path_factory.mktemp("rules") / "rules.json"
    smaller = [replace(rule, trees=rule.trees if ALL else rule.trees[:3]) for rule in RULES]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("scripts.rules.table.RULES", tuple(smaller))
        patch.setattr("scripts.rules.table.FAULTS", thinned(FAULTS))
        table(str(path), laws=3, images=0, runs=20)
    return json.loads(path.read_text())


def test_right_rules_are_off_by_rounding_and_wrong_ones_are_not(found) -> None:
    assert {row["rule"] for row in found["rules"] if row["exact"]} == EXACT
    for row in found["rules"]:
        assert row["worst"] < 1e-15 or row["worst"] > 0.005, row
        assert bool(row["repaired"]) != row["exact"]


def test_repaired_rules_are_exact(found) -> None:
    assert {row["repaired"] for row in found["rules"] if row["repaired"]} <= EXACT


def test_right_rules_are_not_accused_and_faults_are(found) -> None:
    alarms = found["right rules"]
    assert alarms["runs"] == 20 and alarms["worst distance"] < 1e-15
    assert not alarms["accused by enumeration"] and not alarms["accused by sampling"]
    assert all(fault["distance"] > ROUNDING for fault in found["planted faults"])


def test_the_stored_figures_have_every_rule(found) -> None:
    stored = json.loads((ROOT / "docs/results/data/rules.json").read_text())
    names = [[row["rule"] for row in part["rules"]] for part in (stored, found)]
    assert names[0] == names[1]
    assert all(row["refused"] for row in stored["whole rounds"] if row["planted"])


def test_shared_noise_as_drawn() -> None:
    """Drafts and recovered tokens by one Gumbel vector, 200,000 times."""
    p, q = np.array([0.1, 0.45, 0.25, 0.2]), np.array([0.5, 0.3, 0.15, 0.05])
    generator = np.random.default_rng(0)
    noise = generator.gumbel(size=(200_000, 4))
    draft = (np.log(q) + noise).argmax(1)
    accepted = generator.random(len(draft)) * q[draft] < p[draft]
    with np.errstate(divide="ignore"):
        again = (np.log(np.maximum(p - q, 0)) + noise).argmax(1)
    rates = np.bincount(np.where(accepted, draft, again)) / len(draft)
    assert np.abs(rates - recovered_with_the_drafts_noise(p, q)).max() < 0.005
    assert np.abs(rates - p).max() > 0.02


def test_of_many_tests_few_right_ones_are_rejected() -> None:
    """Benjamini and Hochberg's example: 4 of 15 at a rate of 0.05."""
    p_values = [
        0.0001, 0.0004, 0.0019, 0.0095, 0.0201, 0.0278, 0.0298, 0.0344, 0.0459, 0.3240, 0.4262,
        0.5719, 0.6528, 0.7590, 1.0,
    ]  # fmt: skip
    assert sum(rejected(p_values, 0.05)) == 4
    assert not any(rejected([0.2, 0.9], 0.05))
