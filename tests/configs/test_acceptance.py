"""Acceptance rules: what they go with, their numbers; the names of rules, methods and models."""

import itertools

import pytest

from configs.acceptance import NUMBERS, PROPOSALS, VERIFIERS
from configs.fields import SettingsError, settings_fields
from configs.method_table import METHODS
from configs.schema import LanternSettings, MethodSettings
from configs.targets import TARGETS
from decoding import proposals
from models import registry
from runs import methods

RELAXED = ("lantern", "lantern_coupled", "gsd", "path_explore", "path_relax")


def test_every_combination_is_allowed_or_refused_by_name() -> None:
    drafted = [method for method in METHODS if "proposal" in METHODS[method].defaults]
    for method, proposal, verifier in itertools.product(drafted, PROPOSALS, VERIFIERS):
        allowed = {
            "exact": True,
            "rejection": True,
            "sampled": method in ("static", "jacobi") and proposal == "sampled",
            "spectr": method == "static" and proposal == "sampled",
            "block": method in ("static", "jacobi") and proposal == "sampled",
            "traversal": method in ("static", "jacobi") and proposal == "sampled",
            "gsd": method in ("static", "jacobi") and proposal == "sampled",
            "path_explore": method == "static" and proposal == "sampled",
            "path_relax": method == "static" and proposal == "sampled",
            "lantern": proposal != "sampled",
            "lantern_coupled": proposal != "sampled",
        }[verifier]
        if allowed:
            assert MethodSettings(method, proposal, verifier=verifier).lossless == (
                verifier not in RELAXED
            )
            continue
        own = f"--method {method} and --proposal {proposal}"
        message = rf"--verifier: expected exact.* with {own}, got '{verifier}'"
        with pytest.raises(SettingsError, match=message + f". {verifier} needs --proposal "):
            MethodSettings(method, proposal, verifier=verifier)


@pytest.mark.parametrize("verifier", [name for name in VERIFIERS if name != "exact"])
def test_plain_decoding_has_its_own_rule(verifier) -> None:
    with pytest.raises(
        SettingsError, match=f"expected exact with --method ar, got '{verifier}'. {verifier} needs"
    ):
        MethodSettings("ar", verifier=verifier)


def test_which_rules_draw_the_images_of_plain_decoding() -> None:
    methods = {
        name: MethodSettings("static", rule.proposals[-1], verifier=name)
        for name, rule in VERIFIERS.items()
    }
    lossless = [name for name, method in methods.items() if method.lossless]
    assert lossless == ["exact", "rejection", "sampled", "spectr", "block", "traversal"]
    assert [name for name, method in methods.items() if method.same_tokens(1.0)] == ["exact"]
    assert [name for name, method in methods.items() if method.same_tokens(0.0)] == lossless


def test_numbers_of_relaxed_acceptance() -> None:
    assert MethodSettings(verifier="lantern").lantern == LanternSettings(
        1000, 0.1, "exact", "shared"
    )
    assert LanternSettings(delta=2.0).budget is None
    assert MethodSettings().lantern is None
    assert MethodSettings(proposal="sampled").calibration == "none"


def test_proposals():
    assert set(PROPOSALS) == set(proposals.PROPOSALS)


@pytest.mark.parametrize("name", VERIFIERS)
def test_verifiers(name):
    rule = VERIFIERS[name]
    assert methods.VERIFIERS[name].lossless == rule.lossless
    assert rule.numbers is None or not rule.lossless


def test_methods():
    assert methods.METHODS.keys() == {
        name for name, traits in METHODS.items() if traits.speculative
    }


def test_targets():
    assert registry.FAMILIES.keys() == TARGETS.keys()
    for entry in TARGETS.values():
        assert {"model_path", "drafter_path", *entry.parts} <= entry.sources.keys()
        assert set(entry.parts) <= set(entry.flags)


def test_numbers_of_rules_have_flags_of_their_own():
    assert all(owner.prefix for owner in NUMBERS)
    assert len({owner.prefix for owner in NUMBERS}) == len(NUMBERS)
    for rule in VERIFIERS.values():
        assert set(rule.without) <= set(settings_fields(rule.numbers) if rule.numbers else ())
