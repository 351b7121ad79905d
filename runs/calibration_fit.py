"""Fit a drafter's calibration factors to images of its target.

The drafter predicts every position of an image at every depth that a tree may have, from the
features that it would have there. The factors are those that make the target's choices likeliest.
"""

import math
import time
from collections.abc import Iterable, Sequence
from contextlib import closing

import torch

from decoding.images import FinishedImage, Job
from decoding.sampling import SamplingDistribution
from drafters.training.agreement import LEVELS, Gathered
from drafters.training.rows import target_rows
from runs.measure import BASELINE
from runs.session import Session

LEAST_POSITIONS = 50  # of all images
_VALUES = 2**22  # of a level, positions x codes, that are kept and fitted to


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
    positions = min(max(_VALUES // session.target.vocab.size, 128), 1024)
    stride = math.ceil(len(images) * tokens / positions)
    depths = min(LEVELS, tokens - 1)
    judged = judged_images(session, engine.distribution, images, depths, stride)
    return tuple(judged.factor(level, "coupled") for level in judged.levels)


@torch.inference_mode()
def judged_images(
    session: Session,
    distribution: SamplingDistribution,
    images: Iterable[FinishedImage],
    depths: int,
    stride: int = 1,
) -> Gathered:
    """Return what the session's drafter predicts after images' tokens, and what the target chose.

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
    return gathered
