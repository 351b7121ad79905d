"""Checks of the target's forward passes, on pictures that are drawn by code and known captions."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from drafters.training.losses import Levels
from eval.verify.lines import Line, judged, skipped
from eval.verify.subject import Subject

LEAST_ENTROPY, MOST_ENTROPY = 0.01, 0.97  # of that of the uniform distribution
LEAST_GUIDANCE = 0.005  # total variation
LEAST_ORDER = 0.6  # chance is 0.5
MIXED = (
    "weights of several models, of an interrupted download or wrongly converted: compare sizes and "
    "checksums of all files with their source"
)


@dataclass(frozen=True)
class Reading:
    """What the target predicts while it reads a known picture.

    finite: whether all logits are. entropy: (n,) of the prompted row's distributions, in nats.
    guided: (n,) total variation between these and the distributions with guidance; None without
    guidance. order: (m,) see `order_rates`.
    """

    finite: bool
    entropy: Tensor
    guided: Tensor | None
    order: Tensor


@torch.inference_mode()
def read_pictures(subject: Subject) -> list[Reading]:
    """Let the target read every known picture after its caption, in one pass each."""
    readings = []
    for caption, codes in zip(subject.captions, subject.codes, strict=True):
        target = subject.target
        rows = subject.rows(target, [caption], codes[None])
        levels = Levels.of(target.grid, 1, rows.ids.device)
        logits = target.score(levels.wanted(rows)).float()  # (guidance, tokens - 1, codes)
        log_p = logits[0].log_softmax(-1)
        guided = None
        if len(logits) > 1:
            cfg = subject.settings.sampling.cfg
            mixed = (logits[1] + cfg * (logits[0] - logits[1])).softmax(-1)
            guided = (mixed - log_p.exp()).abs().sum(-1) / 2
        entropy = torch.special.entr(log_p.exp()).sum(-1)
        order = order_rates(log_p, codes.to(log_p.device))
        readings.append(Reading(bool(logits.isfinite().all()), entropy, guided, order))
    return readings


def order_rates(log_p: Tensor, codes: Tensor) -> Tensor:
    """Return how often the code that comes next is likelier than one that comes later.

    Only codes that the picture shows for the first time are compared, one rate for each of them but
    the last. So neither copying from the context nor a preference for some codes helps: a model
    that does not know the codes is at 0.5, by chance, however sure it is of itself.

    log_p: (tokens - 1, codes) the predictions of codes 1, 2, ...; codes: (tokens,).
    """
    seen = (codes[1:, None] == codes[:-1]).tril().any(1)  # (tokens - 1,)
    places = (~seen).nonzero()[:, 0]
    scores = log_p[places][:, codes[1:][places]]  # (m, m): row: the place, column: whose code
    later = torch.ones_like(scores).triu(1)
    wins = (scores.diagonal()[:, None] > scores).float() * later
    return (wins.sum(1) / later.sum(1))[:-1]


def check_logits(subject: Subject, readings: list[Reading]) -> Line:
    """Check that logits are finite, and their distributions neither uniform nor point masses."""
    most = math.log(subject.target.vocab.size)
    entropy = torch.cat([reading.entropy for reading in readings]).mean().item()
    finite = all(reading.finite for reading in readings)
    text = f"{len(readings)} prompts: " + (
        f"finite, entropy {entropy:.2f} nats of at most {most:.2f}" if finite else "NaN or infinity"
    )
    good = finite and LEAST_ENTROPY < entropy / most < MOST_ENTROPY
    shown = entropy if finite else None  # JSON has no NaN
    return judged("logits", good, text, MIXED, entropy=shown, uniform=most, finite=finite)


def check_guidance(subject: Subject, readings: list[Reading]) -> Line:
    """Check that guidance changes the distributions."""
    if subject.settings.sampling.guidance == 1:
        return skipped("guidance", "--cfg 1 switches it off")
    apart = torch.cat([reading.guided for reading in readings]).mean().item()
    scale = subject.settings.sampling.cfg
    return judged(
        "guidance",
        apart > LEAST_GUIDANCE,
        f"scale {scale:g} moves the distributions by {apart:.3f} (total variation; at least "
        f"{LEAST_GUIDANCE:g})",
        "the prompt does not reach the model: another model's text tokenizer or text encoder, or "
        f"else {MIXED}",
        total_variation=apart,
    )


def check_picture(subject: Subject, readings: list[Reading]) -> Line:
    """Check that the target expects the known pictures' codes where they stand."""
    rates = torch.cat([reading.order for reading in readings])
    if len(rates) < 2:
        return skipped("codes", "the pictures are too small: fewer than three different codes")
    rate = rates.mean().item()
    error = (rates.std() / len(rates) ** 0.5).item()
    return judged(
        "codes",
        rate >= LEAST_ORDER and rate - 0.5 > 3 * error,
        f"in known pictures the code that follows is likelier than a later one in {rate:.0%} "
        f"(± {2 * error:.0%}; chance is 50%, at least {LEAST_ORDER:.0%})",
        "an image tokenizer of another model, or an embedding or lm_head whose rows are in another "
        f"order; else {MIXED}",
        rate=rate,
        standard_error=error,
    )
