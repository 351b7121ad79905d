"""Drafts of a window of candidates, read level by level as trees grow."""

from dataclasses import replace

import pytest
import torch
from fakes import round_of
from torch import Tensor

from decoding.drafter import Draft
from decoding.policies.dynamic import DynamicTree
from decoding.proposals import Coupled, Sampled, TopK
from decoding.round import Round, TreeShape
from decoding.tree import GrowingTree
from drafters.window import WindowDrafts

STEPS, CANDIDATES, VOCAB = 4, 3, 8
SHAPE = TreeShape(STEPS, 3, 20)
GENERATOR = torch.Generator().manual_seed(0)


def random(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=GENERATOR, dtype=torch.float64)


def window(proposal: object = Coupled()) -> tuple[WindowDrafts, Tensor]:
    """Drafts of two images, and the noise after their steps."""
    orders = random(2, STEPS, VOCAB).argsort(-1)[..., :CANDIDATES]
    codes = torch.cat([orders[:, :1, :1].expand(-1, -1, CANDIDATES), orders[:, 1:]], 1)
    draft = Draft(
        random(2, STEPS, CANDIDATES, VOCAB).log_softmax(-1), random(2, STEPS, CANDIDATES).exp()
    )
    noise = random(2, STEPS, VOCAB)
    round = round_of([SHAPE] * 2)
    return WindowDrafts(round, codes, draft, proposal, noise), noise


class Reading:
    """A drafter of a window's drafts that checks each level."""

    dtype = torch.float64

    def __init__(self, drafts: WindowDrafts, noise: Tensor, followed: bool):
        self.drafts, self.noise, self.followed, self.levels = drafts, noise, followed, 0

    def expand(self, tree: GrowingTree, picked: Tensor, round: Round) -> Draft:
        if not self.followed:
            self.drafts.following = None
        read, step = self.drafts.expand(tree, picked), tree.height
        drafts, tokens = self.drafts, tree.newest.tokens.gather(1, picked)
        for image, row in enumerate(tokens.tolist()):
            codes = drafts.codes[image, step].tolist()
            for node, token in enumerate(row):
                candidate = codes.index(token) if token in codes else 0
                trust = drafts.draft.trust[image, step, candidate]
                values = drafts.draft.log_q[image, step, candidate] + self.noise[image, step]
                values, best = (trust * values).topk(SHAPE.width)
                hits = values - values[:3].logsumexp(0)
                assert read.children[0][image, node].tolist() == best.tolist()
                torch.testing.assert_close(read.children[1][image, node], hits)
        self.levels += 1
        return read


@pytest.mark.parametrize("followed", [True, False])
def test_nodes_have_the_best_tokens_after_their_candidate(followed) -> None:
    """Also where another drafter has grown the level, so that its tokens have to be looked up."""
    drafts, noise = window()
    drafter = Reading(drafts, noise, followed)
    DynamicTree(SHAPE).grow(replace(drafts.round), drafter, Coupled())
    assert drafter.levels == STEPS


@pytest.mark.parametrize("proposal", [TopK(), Sampled()])
def test_other_proposals_take_children_from_the_distributions(proposal) -> None:
    drafts, _ = window(proposal)
    root = GrowingTree.root(drafts.codes[:, 0, 0], torch.float64)
    draft = drafts.expand(root, torch.zeros(2, 1, dtype=torch.long))
    assert draft.children is None
    torch.testing.assert_close(draft.log_q, drafts.draft.log_q[:, 0, :1])
