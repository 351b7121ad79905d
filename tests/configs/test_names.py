"""The names that the command line offers are those that the decoding code knows."""

import configs.methods
from configs.methods import TREES
from decoding.policies.static import NAMED_TREES
from decoding.proposals import PROPOSALS
from runs.building import RELAXED, VERIFIERS


def test_named_trees():
    assert set(TREES) == set(NAMED_TREES)


def test_proposals():
    assert set(configs.methods.PROPOSALS) == set(PROPOSALS)


def test_verifiers():
    known = {
        verifier.name: verifier.lossless for verifier in (*VERIFIERS.values(), *RELAXED.values())
    }
    assert known == {name: rule.lossless for name, rule in configs.methods.VERIFIERS.items()}
    assert set(RELAXED) == set(configs.methods.RELAXED)
