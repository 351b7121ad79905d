"""The names that the command line offers are those that the decoding code knows."""

from configs.methods import TREES, MethodSettings
from decoding.policies.static import NAMED_TREES
from decoding.proposals import PROPOSALS


def test_named_trees():
    assert set(TREES) == set(NAMED_TREES)


def test_proposals():
    assert {MethodSettings(proposal=name).proposal for name in PROPOSALS} == set(PROPOSALS)
