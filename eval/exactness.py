"""Is a lossless method's image the baseline's? Exactly in fp64; in fp32 up to near-ties, which are found and counted
here."""

from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.cache import CacheShape, KVCache, chain
from decoding.flight import FinishedImage, Job
from decoding.noise import gumbel
from decoding.sampling import SamplingLaw
from models.base import TargetModel

NEAR_TIE = 1e-3  # largest gap that rounding in fp32 may decide


@dataclass(frozen=True)
class Agreement:
    """Images compared with the baseline. wrong: ids of images that differ where no near-tie explains it."""

    images: int
    identical: int
    near_ties: int
    wrong: tuple[str, ...]


def compare(
    target: TargetModel, law: SamplingLaw, baseline: list[FinishedImage], other: list[FinishedImage]
) -> Agreement:
    """Compare images of the same jobs. In fp64 no difference counts as a near-tie."""
    theirs = {image.job.id: image.codes for image in other}
    identical, near, wrong = 0, 0, []
    for image in baseline:
        differs = (theirs[image.job.id] != image.codes).nonzero()
        if not len(differs):
            identical += 1
        elif target.dtype != torch.float64 and gap(target, law, image, int(differs[0])) <= NEAR_TIE:
            near += 1
        else:
            wrong.append(image.job.id)
    return Agreement(len(baseline), identical, near, tuple(wrong))


@torch.inference_mode()
def gap(target: TargetModel, law: SamplingLaw, image: FinishedImage, position: int) -> float:
    """How close the choice at an image position was, after the image's own tokens before it.

    The least of: the gap between the two best perturbed log-probabilities; the gap of guided logits / T across the
    top-k boundary; the distance of the kept mass from top_p at its boundary.
    """
    scores = law._guide(_logits(target, law, image.job, image.codes[:position]).float())[0, 0]
    noise = gumbel(image.job.seed, "target", torch.tensor([position], device=scores.device), len(scores))[0]
    if law.greedy:
        best = scores.topk(2).values
        return float(best[0] - best[1])
    log_p = law._top_p(law._top_k(scores / law.temperature)).log_softmax(-1)
    best = (log_p + noise).topk(2).values
    return min(float(best[0] - best[1]), *_boundaries(law, scores / law.temperature))


def _boundaries(law: SamplingLaw, scores: Tensor) -> list[float]:
    """Distances from the top-k and the top-p boundary, where the law has them."""
    gaps, ordered = [torch.inf], scores.sort(descending=True).values
    if 0 < law.top_k < len(scores):
        gaps.append(float(ordered[law.top_k - 1] - ordered[law.top_k]))
        ordered = ordered[: law.top_k]
    if law.top_p < 1:
        gaps.append(float((ordered.softmax(-1).cumsum(-1) - law.top_p).abs().min()))
    return gaps


def _logits(target: TargetModel, law: SamplingLaw, job: Job, codes: Tensor) -> Tensor:
    """Logits (guidance, 1, vocab) behind the prompt and these codes, in one forward pass."""
    prompt = target.prompt(job.prompt, law.guidance)
    image = (codes.to(target.device) + target.vocab.first_id).expand(law.guidance, -1)
    ids = torch.cat([prompt.ids, image], 1)
    cache = KVCache(target.spec, CacheShape(1, law.guidance, ids.shape[1]), target.dtype, target.device)
    cache.reset(prompt.starts)
    features = target.features(ids, cache.open(*chain(1, ids.shape[1], target.device)))
    return target.score(features[:, -1:])
