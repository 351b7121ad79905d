"""SCD's maximal coupling (arXiv 2510.24211; code 7322379): `--plugin scripts.rules.scd`.

SJD samples all undecided positions again in every round. Here the draft of a position is kept with
probability min(1, p / q), where q is the distribution that it came from and p the newest
prediction, else drawn from norm(max(p - q, 0)): so it has the distribution p, and stays as often as
a sample of p can. `--method scd --verifier scd` judges it by p, as the code for Cosmos does; with
`--method scd_lumina` a kept draft is judged by q, as in the code for Lumina-mGPT.
"""

from dataclasses import replace
from typing import cast

import torch
from torch import Tensor

from configs.fields import settled
from configs.methods import Method, MethodSettings, register_method
from configs.rules import Rule, register_rule
from decoding.drafter import ChainDrafter
from decoding.noise import uniform
from decoding.policies.chain import ChainTree
from decoding.proposals import Predictions, Proposal
from decoding.round import Round, RoundResult
from decoding.stopwatch import Stopwatch
from decoding.tree import DraftTree
from drafters.drafting import Drafting
from drafters.jacobi import JacobiDrafter
from models.base import ImageGrid, PromptRows
from support.constants import arange

_APART = 1 << 16  # numbers of positions that draw no token


class CoupledDrafter(JacobiDrafter):
    """Remembers the draft of every undecided position as well, and what it was drawn from."""

    def open(self, images: int, slots: int, watch: Stopwatch) -> None:
        super().open(images, slots, watch)
        self.log_q = torch.zeros_like(self.log_p)
        # (images, rows) -1: none
        self.drafts = self.log_p.new_full(self.log_p.shape[:2], -1, dtype=torch.long)

    def prefill(self, image: int, prompt: PromptRows, hidden: Tensor, code: Tensor) -> None:
        super().prefill(image, prompt, hidden, code)
        self.drafts[image] = -1

    def update(self, result: RoundResult) -> None:
        self.drafts.fill_(-1)
        # without it there is no tree, or a rule that reads no distributions: nothing to couple to
        if (log_q := result.tree.log_q) is not None:
            drafts, present = result.tree.tokens[:, 1:], result.tree.present[:, 1:]
            position = result.round.position(arange(drafts.shape[1], self.device))
            rows = torch.where(present, (position - 1) % self.rows, self.rows)
            images = arange(len(rows), self.device)[:, None]
            self.drafts[images, rows], self.log_q[images, rows] = drafts, log_q[:, :-1]
        super().update(result)

    def coupled(self, round: Round) -> tuple[Tensor, Tensor, Tensor]:
        """Return what drafts are drawn from, which are kept, and what those came from.

        Returns:
            Logarithms (images, window, vocab) of weights, (images, window) bool, and log q.
        """
        position = round.position(arange(round.shape.window, self.device))
        images, rows = arange(len(position), self.device)[:, None], (position - 1) % self.rows
        draft, log_q = self.drafts[images, rows], self.log_q[images, rows]
        log_p = self.predict_ahead(round).log_q
        p, q, there = log_p.exp(), log_q.exp(), draft >= 0
        token = draft.clamp(min=0)[..., None]
        u = uniform(round.inputs.stream[..., None], position + _APART, 1)
        kept = (u * q.gather(2, token) < p.gather(2, token))[..., 0] & there
        certain = torch.full_like(log_p, -torch.inf).scatter(2, token, 0.0)
        weights = torch.where(there[..., None], (p - q).clamp(min=0).log(), log_p)
        return torch.where(kept[..., None], certain, weights), kept, log_q


class CoupledChain(ChainTree):
    """A chain of coupled drafts; `judged_by_q`: kept ones are judged by what they came from."""

    def __init__(self, window: int, judged_by_q: bool = False):
        super().__init__(window)
        self.judged_by_q = judged_by_q

    def grow(self, round: Round, drafter: ChainDrafter, proposal: Proposal) -> DraftTree:
        tree, window = super().grow(round, drafter, proposal), round.shape.window
        weights, kept, log_q = cast(CoupledDrafter, drafter).coupled(round)
        noise = proposal.noise(round, slice(0, window), 1)
        drafts = proposal.children(Predictions(weights), noise, 1)[0][..., 0]
        judged = tree.log_q
        if self.judged_by_q and judged is not None:
            judged = judged.clone()
            judged[:, :-1] = torch.where(kept[..., None], log_q, judged[:, :-1])
        return replace(tree, tokens=torch.cat([tree.tokens[:, :1], drafts], 1), log_q=judged)


def coupled_drafter(parts: Drafting) -> CoupledDrafter:
    """Build the drafter of coupled chains."""
    return CoupledDrafter(parts.target, settled(parts.method.guess), parts.largest)


def coupled_chain(method: MethodSettings, grid: ImageGrid) -> CoupledChain:
    """Build the policy of --window positions, with the rule as for Cosmos or for Lumina-mGPT."""
    return CoupledChain(settled(method.window), method.method == "scd_lumina")


_DEFAULTS = {"proposal": "sampled", "window": 16, "guess": "above"}
for _name, _summary in (
    ("scd", "a chain of earlier drafts, kept where they would be accepted (SCD)"),
    ("scd_lumina", "the same, where kept drafts are judged as in the code for Lumina-mGPT"),
):
    register_method(_name, Method(_summary, coupled_chain, coupled_drafter, _DEFAULTS))
    register_rule(
        _name,
        Rule(
            "the rule `sampled` for coupled chains",
            "decoding.verifiers.sampled:Sampled",
            ("sampled",),
            (_name,),
            lossless=_name == "scd",
        ),
    )
