"""Fit a drafter's calibration factors to images of its target.

The drafter predicts every position of an image at every depth that a tree may have, from the
features that it would have there. The factors are those that make the target's choices likeliest.
"""

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import closing

import torch
from torch import Tensor

from decoding.images import FinishedImage, Job
from decoding.noise import gumbel
from decoding.sampling import SamplingDistribution
from drafters.training.agreement import Gathered, draft_distributions, factors
from drafters.training.rows import target_rows
from runs.measure import BASELINE
from runs.session import Session

LEVELS = 8  # that have a factor of their own
LEAST_POSITIONS, POSITIONS = 50, 1024  # of all images, that a level's factor is fitted to


def fit_calibration(
    session: Session, jobs: Sequence[Job], seconds: float
) -> tuple[float, ...] | None:
    """Return the factors of `coupled` drafts by level, for the session's drafter and sampling.

    They are fitted to the images that plain decoding generates in so many seconds; None if these
    are too few.
    """
    engine, end = session.open_engine(BASELINE, images=1), time.monotonic() + seconds
    images: list[FinishedImage] = []
    with closing(engine.generate(jobs)) as rounds:
        for step in rounds:
            images += step.finished
            if time.monotonic() > end:
                break
    tokens = session.target.grid.tokens
    if len(images) * tokens < LEAST_POSITIONS:
        return None
    stride = math.ceil(len(images) * tokens / POSITIONS)
    depths = min(LEVELS, tokens - 1)
    table = gather(session, engine.distribution, images, depths, stride).table()
    return tuple(factors(table)["coupled"])


@torch.inference_mode()
def gather(
    session: Session,
    distribution: SamplingDistribution,
    images: Iterable[FinishedImage],
    depths: int,
    stride: int = 1,
) -> Gathered:
    """Return what the session's drafter predicts, and what the target chose, by level.

    Args:
        session: with a drafter that has a network.
        distribution: that the images were sampled from.
        images: of the session's target.
        depths: levels.
        stride: 1 for all positions of an image. Each that is kept takes depths x codes x 8 bytes.
    """
    gathered = Gathered()
    for image in images:
        levels = distributions_of(session, distribution, image, depths)
        # at temperature 0 the target chooses without noise
        noise = noise_of(image, levels[0]) * (not distribution.greedy)
        gathered.add_image(levels, image.codes[1:].to(noise.device), noise, stride=stride)
    return gathered


def distributions_of(
    session: Session, distribution: SamplingDistribution, image: FinishedImage, depths: int
) -> list[Tensor]:
    """Return log q (tokens - k, vocab) of a decoded image for each tree level k."""
    prompt = session.target.prompt(image.job.prompt, distribution.guidance)
    head, codes = session.drafter.network, image.codes[None].to(session.target.device)
    rows = target_rows(session.target, prompt, codes, head.spec.target_layers)
    levels = draft_distributions(session.target, head, rows, distribution, depths)
    return [log_q[0] for log_q in levels]


def noise_of(image: FinishedImage, like: Tensor) -> Tensor:
    """Return the image's noise (tokens - 1, vocab) from its second token on."""
    positions = torch.arange(1, len(image.codes), device=like.device)
    return gumbel(image.job.seed, "target", positions, like.shape[-1]).to(like.dtype)
