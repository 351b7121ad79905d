"""Is a lossless method's image the baseline's?

In fp64 exactly; in fp32 up to near-ties, which are found and counted here.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from decoding.images import FinishedImage
from decoding.noise import gumbel
from decoding.sampling import SamplingDistribution, top_k
from drafters.training.rows import target_rows
from models.target import TargetModel

NEAR_TIE = 1e-3  # largest gap that rounding in fp32 may decide


@dataclass(frozen=True)
class Comparison:
    """How many images of a method are the baseline's."""

    images: int
    identical: int
    near_ties: int  # images that first differ where rounding decides
    wrong: tuple[str, ...]  # ids of images that differ and no near-tie explains it


def compare(
    target: TargetModel,
    distribution: SamplingDistribution,
    baseline: list[FinishedImage],
    other: list[FinishedImage],
    near_tie: float = NEAR_TIE,  # the largest gap that rounding may decide in types but fp64
) -> Comparison:
    """Compare images of the same jobs; in fp64 no difference counts as a near-tie."""
    theirs = {image.job.id: image.codes for image in other}
    gaps: dict[str, float] = {}  # of the first token that differs from the baseline's, by image
    for image in baseline:
        codes = theirs[image.job.id]
        if len(differing := (image.codes != codes).nonzero()):
            first = codes[: int(differing[0]) + 1]
            gaps[image.job.id] = gap(target, distribution, image, first)
    # In fp64 even a gap of 0 is wrong, so -1 lets none pass.
    largest = -1.0 if target.dtype == torch.float64 else near_tie
    # `not <=` instead of `>`: a gap that is NaN is also wrong.
    wrong = tuple(name for name, apart in gaps.items() if not apart <= largest)
    return Comparison(len(baseline), len(baseline) - len(gaps), len(gaps) - len(wrong), wrong)


@torch.inference_mode()
def gap(
    target: TargetModel, distribution: SamplingDistribution, image: FinishedImage, codes: Tensor
) -> float:
    """Return how much rounding it takes to emit the last of `codes` instead of the image's token.

    This is the gap between the two tokens' perturbed values; or, if one of them is at the boundary
    of top-k or top-p, its distance from there (of the logit from the k-th, of the mass before it
    from top_p), whichever is less.

    codes: (position + 1,) of the other image, up to the first difference.
    """
    position = len(codes) - 1
    tokens = torch.stack([image.codes[position], codes[position]]).to(target.device)
    # The images are equal up to `position`, so one pass gives the logits of both tokens.
    logits = uncached_logits(target, distribution.guidance, image, position)
    noise = gumbel(
        image.job.seed, "target", torch.tensor([position], device=target.device), logits.shape[-1]
    )[0]
    scores = distribution.guide(logits)[0, 0].double()
    if distribution.greedy:
        return float(scores[tokens].diff().abs())
    scores = scores / distribution.temperature
    perturbed = (scores + noise)[tokens].diff().abs()
    return float(torch.cat([perturbed, _cut_distance(distribution, scores, tokens)]).min())


def _cut_distance(distribution: SamplingDistribution, scores: Tensor, tokens: Tensor) -> Tensor:
    """Return how close tokens (n,) are to the cuts of top-k and top-p: (m,), m <= 2 n.

    Distances are in logits / T for top-k, in probability for top-p.

    scores: (vocab,) guided logits / T of one position, finite.
    """
    k, p = distribution.top_k, distribution.top_p
    distances = [scores.new_zeros(0)]
    # Stable, as in decoding/sampling.py: equal logits have the same rank in both.
    ordered, index = scores.sort(descending=True, stable=True)
    if 0 < k < len(scores):
        # How far a kept token is from the first cut logit, and a cut token from the last kept one.
        values, last, first_cut = scores[tokens], ordered[k - 1], ordered[k]
        distances.append(torch.where(values >= last, values - first_cut, last - values))
    if p < 1:
        mass = top_k(ordered, k).softmax(-1)
        before = mass.cumsum(-1) - mass
        distances.append((before[index.argsort()[tokens]] - p).abs())
    return torch.cat(distances)


def uncached_logits(
    target: TargetModel, guidance: int, image: FinishedImage, position: int
) -> Tensor:
    """Return the logits (guidance, 1, vocab) of an image's token, by one pass over all of it."""
    rows = target_rows(target, target.prompt(image.job.prompt, guidance), image.codes[None])
    return target.score(rows.features[:, [rows.prompt + target.grid.slots(position) - 1]])
