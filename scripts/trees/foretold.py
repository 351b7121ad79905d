"""Run the rounds of lossless methods without the target's forward passes.

Every lossless method generates plain decoding's tokens, so in its rounds the target says nothing
that it has not said in plain decoding's. `ar` runs once, and its hidden states are kept. Then each
method drafts as ever, and its trees are judged by the image's own tokens. The rounds are those of
the engine, in a fraction of the time; recall and `jacobi`, which read what the target says after
other tokens, cannot be had so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from configs.methods import MethodSettings
from decoding.engine import Engine
from decoding.images import ImageState, Job, RoundStats
from decoding.round import AcceptedTokens, Round, RoundInputs, RoundResult, RoundShape
from decoding.verifiers.exact import follow
from runs.measure import BASELINE
from runs.session import Session
from support.constants import arange


@dataclass(frozen=True)
class Foretold:
    """Plain decoding's images; `hidden` and `top1` are what followed each token."""

    rows: dict[str, int]  # job id -> image
    codes: Tensor  # (images, tokens)
    hidden: Tensor  # (images, guidance, tokens, hidden) of the target
    top1: Tensor  # (images, tokens) log of its greatest probability


def foretell(session: Session, jobs: Sequence[Job], batch: int) -> Foretold:
    """Decode images by plain decoding, and keep what a drafter and a trace read of the target."""
    engine = session.open_engine(BASELINE, images=batch)
    engine.reads = () if session.drafter is None else session.drafter.spec.target_layers
    rows = {job.id: image for image, job in enumerate(jobs)}
    read = session.target.grid.tokens - 1  # the last token is not
    hidden = [[torch.empty(0)] * read for _ in jobs]
    top1 = [[torch.empty(0)] * read for _ in jobs]

    def keep(states: Sequence[ImageState | None], result: RoundResult) -> None:
        for row, state in enumerate(states):
            if state is not None:
                image, place = rows[state.job.id], state.decided - 2  # of the token that was read
                hidden[image][place] = result.hidden[row, :, 0].clone()
                top1[image][place] = result.log_p[row, 0].max()

    engine.watcher = keep
    images = {image.job.id: image for step in engine.generate(jobs) for image in step.finished}
    return Foretold(
        rows,
        torch.stack([images[job.id].codes for job in jobs]),
        torch.stack([torch.stack(one, 1) for one in hidden]),
        torch.stack([torch.stack(one) for one in top1]),
    )


class ForetoldEngine(Engine):
    """An engine that looks up what the target says."""

    def __init__(self, engine: Engine, foretold: Foretold):
        """engine: of a method with an EAGLE drafter and the rule `exact`, whose parts it takes."""
        parts = engine.target, engine.distribution, engine.verifier, engine.batch
        super().__init__(*parts, engine.speculation, engine.sources)
        self.foretold = foretold

    def _whole_round(self, shape: RoundShape, table: Tensor) -> tuple[RoundResult, Tensor]:
        round, known = Round(shape, RoundInputs(table), self.images.noise), self.foretold
        tree = self._draft(round)
        states = self.images.states
        rows = torch.tensor([0 if state is None else known.rows[state.job.id] for state in states])
        steps = arange(tree.height + 1, table.device)
        places = (round.inputs.decided - 1 + steps).clamp(max=known.top1.shape[1] - 1)
        choices = known.codes[rows[:, None], places + 1]  # (images, 1 + height), by depth
        verdict = follow(tree, choices.gather(1, tree.depths))
        counts = verdict.accepted[:, None] + 1
        kept = AcceptedTokens(steps.expand_as(places), choices, counts)
        hidden = known.hidden[rows[:, None], :, places].transpose(1, 2)
        top1 = known.top1[rows[:, None], places].gather(1, tree.depths)[..., None]
        result = RoundResult(round, tree, hidden, hidden, top1, verdict, kept)
        assert self.speculation is not None
        self.speculation.drafter.update(result)
        return result, result.summary()


def foretold_rounds(
    session: Session, method: MethodSettings, foretold: Foretold, jobs: Sequence[Job]
) -> Iterator[RoundStats]:
    """Yield the rounds of a method with an EAGLE drafter and the rule `exact`."""
    engine = ForetoldEngine(session.open_engine(method, images=1), foretold)
    for step in engine.generate(jobs):
        yield from step.rounds
