"""One image in flight: what the engine keeps of it on the host, and the lines it reports."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from decoding.figures import RoundFigures
from decoding.policies.base import Controller, Outcome, Shape


@dataclass(frozen=True)
class Job:
    """An image to make: its id, its prompt and its own 63-bit seed."""

    id: str
    prompt: str
    seed: int


@dataclass(frozen=True)
class RoundStats:
    """A round of one image.

    position: of the first token that it decided. depth, width: of the planned tree. nodes: of the
    verified tree. accepted: accepted length. top1: the target's greatest probability at every
    position that the round decided.
    """

    id: str
    round: int
    position: int
    depth: int
    width: int
    nodes: int
    accepted: int
    top1: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class ImageCost:
    """What an image took.

    mean_depth, mean_nodes: of the verified trees. seconds: the image's share of its batch's rounds,
    and what its own prefill took; the VQ decoder is not in it. seconds_draft, seconds_verify: 0
    for rounds that were replayed, which are timed as a whole.
    """

    mean_depth: float
    mean_nodes: float
    seconds: float
    seconds_prefill: float
    seconds_draft: float
    seconds_verify: float


@dataclass(frozen=True)
class FinishedImage(ImageCost):
    """An image's codes (tokens,) on the CPU, and what they cost.

    tau: tokens decided per round, bonus tokens included; the token that the prefill decides is not
    counted. target_forwards: its rounds, and one for the prefill, which images of one prompt share.
    """

    job: Job
    codes: Tensor
    target_forwards: int
    tau: float


@dataclass
class Flight:
    """The state of an image between rounds.

    tokens: of the whole image. first: the code that the prefill decided. controller: the policy's
    memory of the image, None in plain decoding.
    """

    job: Job
    tokens: int
    first: int
    controller: Controller | None
    seconds_prefill: float
    codes: list[int] = field(init=False)
    decided: int = 1
    rounds: int = 0
    levels: int = 0
    nodes: int = 0
    seconds: float = 0.0
    seconds_draft: float = 0.0
    seconds_verify: float = 0.0
    planned: Shape = Shape(0, 0, 0)

    def __post_init__(self) -> None:
        self.codes = [self.first]

    @property
    def remaining(self) -> int:
        """Image tokens still to decide."""
        return self.tokens - self.decided

    def shape(self) -> Shape:
        """Return the next tree's shape."""
        self.planned = self.controller.shape(self.decided, self.remaining)
        return self.planned

    def observe(self, figures: RoundFigures, milliseconds: float) -> RoundStats:
        """Count a round and let the controller learn from it; returns the round's line."""
        stats = RoundStats(
            id=self.job.id,
            round=self.rounds,
            position=self.decided,
            depth=self.planned.reach,
            width=self.planned.width,
            nodes=figures.nodes,
            accepted=figures.accepted,
            top1=figures.top1,
        )
        if self.controller is not None:
            self.controller.observe(self._outcome(figures, milliseconds))
        self.codes += figures.codes
        self.decided += figures.decided
        self.rounds += 1
        self.levels += figures.levels
        self.nodes += figures.nodes
        return stats

    def _outcome(self, figures: RoundFigures, milliseconds: float) -> Outcome:
        return Outcome(
            position=self.decided,
            accepted=figures.accepted,
            levels=figures.levels,
            confidence=figures.confidence,
            expected=figures.expected,
            nodes=figures.nodes,
            drafted=figures.drafted,
            milliseconds=milliseconds,
        )

    def spend(self, draft: float, verify: float, total: float) -> None:
        """Add this image's share of a round's seconds."""
        self.seconds_draft += draft
        self.seconds_verify += verify
        self.seconds += total

    def finish(self) -> FinishedImage:
        """Return the image with its figures."""
        rounds = max(self.rounds, 1)
        return FinishedImage(
            job=self.job,
            codes=torch.tensor(self.codes),
            target_forwards=self.rounds + 1,
            tau=(self.decided - 1) / rounds,
            mean_depth=self.levels / rounds,
            mean_nodes=self.nodes / rounds,
            seconds=self.seconds + self.seconds_prefill,
            seconds_prefill=self.seconds_prefill,
            seconds_draft=self.seconds_draft,
            seconds_verify=self.seconds_verify,
        )
