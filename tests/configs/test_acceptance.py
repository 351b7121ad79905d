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
    pairs = [("ar", None), *itertools.product(drafted, PROPOSALS)]
    for (method, proposal), verifier in itertools.product(pairs, VERIFIERS):
        if verifier in ("spectr", "path_explore", "path_relax"):
            allowed = method == "static" and proposal == "sampled"
        elif verifier in ("sampled", "block_verification", "traversal", "gsd"):
            allowed = method in ("static", "jacobi") and proposal == "sampled"
        elif verifier in ("lantern", "lantern_coupled"):
            allowed = proposal not in (None, "sampled")
        else:
            allowed = method != "ar" or verifier == "exact"
        if allowed:
            found = MethodSettings(method, proposal, verifier=verifier)
            assert found.lossless == (verifier not in RELAXED)
            continue
        own = f"--method {method}" + (f" and --proposal {proposal}" if proposal else "")
        message = f"--verifier: expected exact.* with {own}, got '{verifier}'. {verifier} needs "
        with pytest.raises(SettingsError, match=message + ("--proposal " if proposal else "--")):
            MethodSettings(method, proposal, verifier=verifier)


def test_which_rules_draw_the_images_of_plain_decoding() -> None:
    methods = {
        name: MethodSettings("static", rule.proposals[-1], verifier=name)
        for name, rule in VERIFIERS.items()
    }
    assert [name for name, method in methods.items() if method.same_tokens(1.0)] == ["exact"]
    same = {name for name, method in methods.items() if method.same_tokens(0.0)}
    assert same == VERIFIERS.keys() - set(RELAXED)


def test_numbers_of_relaxed_acceptance() -> None:
    usual = LanternSettings(1000, 0.1, "exact", "shared")
    assert MethodSettings(verifier="lantern").lantern == usual
    assert LanternSettings(delta=2.0).budget is None
    assert MethodSettings().lantern is None


def test_the_settings_name_the_programs_proposals_rules_methods_and_models() -> None:
    assert set(PROPOSALS) == set(proposals.PROPOSALS)
    speculative = {name for name, traits in METHODS.items() if traits.speculative}
    assert methods.METHODS.keys() == speculative and registry.FAMILIES.keys() == TARGETS.keys()
    for name, rule in VERIFIERS.items():
        assert methods.VERIFIERS[name].lossless == rule.lossless
        assert rule.numbers is None or not rule.lossless
        assert set(rule.without) <= set(settings_fields(rule.numbers) if rule.numbers else ())
    for entry in TARGETS.values():
        assert {"model_path", "drafter_path", *entry.parts} <= entry.sources.keys()
        assert set(entry.parts) <= set(entry.flags)


def test_numbers_of_rules_have_flags_of_their_own() -> None:
    prefixes = [owner.prefix for owner in NUMBERS]
    assert all(prefixes) and len(set(prefixes)) == len(prefixes)
