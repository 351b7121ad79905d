"""Drafts of a window of candidates, from which trees take children level by level."""

import pytest
import torch
from fakes import round_of
from torch import Tensor

from decoding.policies.dynamic import DynamicTree
from decoding.proposals import Coupled, Predictions, Proposal, TopK, WithoutReplacement
from decoding.round import Round, TreeShape
from decoding.tree import GrowingTree
from drafters.window import DraftedWindow, WindowDrafter, WindowPass

AHEAD, CANDIDATES, VOCAB = 4, 3, 8
SHAPE = TreeShape(AHEAD, 3, 20)
GENERATOR = torch.Generator().manual_seed(0)
NOISE = torch.randn(2, AHEAD + 1, VOCAB, generator=GENERATOR, dtype=torch.float64)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


class Reading(WindowDrafter):
    """A drafter of a random window of two images that checks each level."""

    dtype = torch.float64

    def __init__(self, proposal: Proposal, follows: bool = True):
        orders = random(2, AHEAD, VOCAB).argsort(-1)[..., :CANDIDATES]
        codes = torch.cat([orders[:, :1, :1].expand(-1, -1, CANDIDATES), orders[:, 1:]], 1)
        size = 2, AHEAD, CANDIDATES
        log_q = random(*size, VOCAB).log_softmax(-1)
        self.result = WindowPass(codes, log_q, torch.ones(size), random(*size).exp())
        self.round = round_of([SHAPE] * 2, noise=lambda positions: NOISE)
        self.drafted = DraftedWindow(self.round, proposal, self.result)
        self.follows, self.levels = follows, 0

    def children(
        self, tree: GrowingTree, picked: Tensor, round: Round, proposal: Proposal
    ) -> tuple:
        if not self.follows:
            self.window.newest = None
        ahead, children = tree.height, super().children(tree, picked, round, proposal)
        for image, row in enumerate(tree.newest.tokens.gather(1, picked).tolist()):
            codes = self.result.codes[image, ahead].tolist()
            for node, token in enumerate(row):
                candidate = codes.index(token) if token in codes else 0
                log_q = self.result.log_q[image, ahead, candidate]
                if isinstance(proposal, Coupled):
                    values = log_q + NOISE[image, ahead]
                    values = self.result.sharpness[image, ahead, candidate] * values
                    hits, best = values.topk(SHAPE.width)
                    hits = hits - hits[:3].logsumexp(0)
                else:
                    hits, best = log_q.topk(SHAPE.width)
                assert children.tokens[image, node].tolist() == best.tolist()
                torch.testing.assert_close(children.log_hits[image, node], hits)
        self.levels += 1
        return children


@pytest.mark.parametrize("proposal", [Coupled(), TopK()])
@pytest.mark.parametrize("follows", [True, False])
def test_nodes_have_the_best_tokens_after_their_candidate(follows, proposal) -> None:
    """Also where another drafter has grown the level, so that its tokens have to be looked up."""
    drafter = Reading(proposal, follows)
    DynamicTree(SHAPE).grow(drafter.round, drafter, proposal)
    assert drafter.levels == AHEAD


def test_drawn_children_have_noise_of_their_parents_own() -> None:
    drafter = Reading(WithoutReplacement())
    root = GrowingTree.root(drafter.result.codes[:, 0, 0], torch.float64)
    predictions = drafter.expand(root, torch.zeros(2, 1, dtype=torch.long), drafter.round)
    assert isinstance(predictions, Predictions)
    torch.testing.assert_close(predictions.log_q, drafter.result.log_q[:, 0, :1])
    assert "_children" not in vars(drafter.window)
