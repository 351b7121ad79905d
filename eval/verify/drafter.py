"""Check of the drafter: its predictions against the target's, on images just decoded."""

import torch
from torch import Tensor

from configs.targets import TARGETS
from decoding.noise import gumbel
from drafters.training.agreement import Gathered, draft_distributions, target_distribution
from drafters.training.rows import part_of
from eval.verify.lines import Line, judged, skipped
from eval.verify.subject import Subject
from runs.methods import sampling_distribution

LEVELS = 2
LEAST_GAIN = 0.01  # in total variation


@torch.inference_mode()
def check_drafter(subject: Subject) -> Line:
    """Check that a drafter is closer to the target than one that looks at other positions."""
    if subject.session.drafter is None:
        source = TARGETS[subject.settings.model].sources["drafter_path"]
        return skipped(
            "drafter", f"no folder `drafter` in --model_path, no --drafter_path; {source}"
        )
    own, moved = _gather(subject)
    gain = torch.cat(moved.distances[1]) - torch.cat(own.distances[1])  # (positions,)
    mean, error = gain.mean().item(), (gain.std() / len(gain) ** 0.5).item()
    first, second = own.table()
    chance = moved.table()[0]
    hits, by_chance = first["topk"], chance["topk"]
    rates = ", ".join(f"{hits[f'hit_{k}']:.0%}" for k in (1, 4, 10))
    return judged(
        "drafter",
        mean > max(LEAST_GAIN, 3 * error) and hits["hit_10"] > by_chance["hit_10"],
        f"total variation from the target {first['total_variation']:.2f}, of shuffled positions "
        f"{chance['total_variation']:.2f}; its best 1, 4, 10 hold the target's choice in {rates}, "
        f"of shuffled positions the best 10 in {by_chance['hit_10']:.0%}",
        "a drafter of another target, or another layout of its weights; check --drafter_path. If "
        "`codes` has failed too, the target is to blame",
        levels=[first, second],
        shuffled=chance,
    )


def _gather(subject: Subject) -> tuple[Gathered, Gathered]:
    """Return the drafter's figures, and those of its predictions for other positions."""
    target, head = subject.first.target, subject.session.drafter.network
    distribution = sampling_distribution(subject.settings.sampling)
    guidance = distribution.guidance
    images = subject.plain.images
    codes = torch.stack([image.codes for image in images])
    prompts = [image.job.prompt for image in images]
    rows = subject.rows(target, prompts, codes, head.spec.target_layers)
    own, moved = Gathered(), Gathered()
    for number, image in enumerate(images):
        part = part_of(rows, number, guidance)
        log_p = target_distribution(target, part, distribution)[0]  # (tokens - 1, codes)
        positions = torch.arange(1, len(log_p) + 1, device=log_p.device)
        noise = gumbel(image.job.seed, "target", positions, log_p.shape[1]).to(log_p.dtype)
        noise = noise * (not distribution.greedy)
        drafts = draft_distributions(target, head, part, distribution, LEVELS)
        choices = image.codes[1:].to(log_p.device)
        own.add([draft[0] for draft in drafts], choices, noise, log_p)
        moved.add([_shuffled(drafts[0][0])], choices, noise, log_p)
    return own, moved


def _shuffled(log_q: Tensor) -> Tensor:
    """Return predictions (n, codes) half an image away from their positions."""
    return log_q.roll(len(log_q) // 2, 0)
