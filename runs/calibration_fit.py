"""Fit a drafter's calibration factors to images of its target.

The drafter predicts every position of an image at every depth that a tree may have, from the
features that it would have there. The factors are those that make the target's choices likeliest.
"""

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any

import torch

from decoding.images import FinishedImage, Job
from decoding.sampling import SamplingDistribution
from drafters.training.agreement import Gathered, factors
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
    levels = judged_levels(session, engine.distribution, images, depths, stride)
    return tuple(factors(levels)["coupled"])


@torch.inference_mode()
def judged_levels(
    session: Session,
    distribution: SamplingDistribution,
    images: Iterable[FinishedImage],
    depths: int,
    stride: int = 1,
) -> list[dict[str, Any]]:
    """Return the figures of the session's drafter by level, as `Gathered.table`.

    Args:
        session: with a drafter that has a network.
        distribution: that the images were sampled from.
        images: of the session's target.
        depths: levels.
        stride: 1 for all positions of an image. Each that is kept takes depths x codes x 8 bytes.
    """
    target, head, gathered = session.target, session.drafter.network, Gathered()
    for image in images:
        prompt = target.prompt(image.job.prompt, distribution.guidance)
        rows = target_rows(target, prompt, image.codes[None], head.spec.target_layers)
        gathered.judge(target, head, rows, distribution, depths, image.job.seed, stride)
    return gathered.table()
