"""The names that the command line offers are those that the decoding code knows."""

from configs.methods import LOSSLESS_VERIFIERS, TREES, MethodSettings
from decoding.policies.static import NAMED_TREES
from decoding.proposals import PROPOSALS
from decoding.verifiers import VERIFIERS


def test_named_trees():
    assert set(TREES) == set(NAMED_TREES)


def test_proposals():
    assert {MethodSettings(proposal=name).proposal for name in PROPOSALS} == set(PROPOSALS)


def test_lossless_verifiers():
    assert set(LOSSLESS_VERIFIERS) == {name for name, verifier in VERIFIERS.items() if verifier.lossless}
