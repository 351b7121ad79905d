"""The names that the command line offers are those that the code knows."""

import pytest

import configs.acceptance
from configs.acceptance import NUMBERS, VERIFIERS
from configs.fields import settings_fields
from configs.method_table import METHODS, TREES
from configs.targets import TARGETS
from decoding.policies.static import NAMED_TREES
from decoding.proposals import PROPOSALS
from models import registry
from runs import methods


def test_named_trees():
    assert set(TREES) == set(NAMED_TREES)


def test_proposals():
    assert set(configs.acceptance.PROPOSALS) == set(PROPOSALS)


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
