"""Acceptance rules: what they go with, their numbers; entries that name code that is there."""

import itertools

import pytest

from configs.fields import SettingsError, flags_in
from configs.methods import METHODS, MethodSettings
from configs.rules import PROPOSALS, RULES, LanternSettings, loaded
from configs.targets import TARGETS
from models.registry import family_of
from models.targets.family import Family

RELAXED = (
    "lantern", "lantern_coupled", "gsd", "path_explore", "path_relax", "sjd_pac", "cool_sd", "vvs",
)  # fmt: skip
# of trees of fixed shape
FIXED = ("sampled", "block_verification", "traversal", "gsd", "cool_sd")


def test_every_combination_is_allowed_or_refused_by_name() -> None:
    drafted = [method for method in METHODS if "proposal" in METHODS[method].defaults]
    pairs = [("ar", None), *itertools.product(drafted, PROPOSALS)]
    for (method, proposal), verifier in itertools.product(pairs, RULES):
        if verifier in ("spectr", "path_explore", "path_relax", "sjd_pac"):
            allowed = method == "static" and proposal == "sampled"
        elif verifier in FIXED:
            allowed = method in ("static", "jacobi") and proposal == "sampled"
        elif verifier == "lantern":
            drawn = proposal == "sampled"
            allowed = proposal is not None and (not drawn or method in ("static", "jacobi"))
        elif verifier == "vvs":
            allowed = proposal == "topk"
        elif verifier == "lantern_coupled":
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
        for name, rule in RULES.items()
    }
    assert [name for name, method in methods.items() if method.same_tokens(1.0)] == ["exact"]
    same = {name for name, method in methods.items() if method.same_tokens(0.0)}
    assert same == RULES.keys() - set(RELAXED)


def test_numbers_of_relaxed_acceptance() -> None:
    usual = LanternSettings(1000, 0.1, "exact", "shared")
    assert MethodSettings(verifier="lantern").lantern == usual
    assert LanternSettings(delta=2.0).budget is None
    assert MethodSettings().lantern is None


def test_entries_name_code_that_agrees_with_them() -> None:
    for name, code in PROPOSALS.items():
        assert loaded(code).name == name
    for method in METHODS.values():
        assert not method.speculative or (
            callable(loaded(method.policy)) and loaded(method.drafter)
        )
    for name, rule in RULES.items():
        verifier = loaded(rule.code)
        assert (verifier.name, verifier.lossless) == (name, rule.lossless)
        assert rule.settings is None or not rule.lossless
        assert set(rule.without) <= set(flags_in(rule.settings) if rule.settings else ())
    for name, entry in TARGETS.items():
        assert isinstance(family_of(name), Family)
        assert {"model_path", "drafter_path", *entry.parts} <= entry.sources.keys()
        assert set(entry.parts) <= set(entry.flags)


def test_numbers_of_rules_have_flags_of_their_own() -> None:
    prefixes = [owner.prefix for owner in {rule.settings for rule in RULES.values()} - {None}]
    assert all(prefixes) and len(set(prefixes)) == len(prefixes)
