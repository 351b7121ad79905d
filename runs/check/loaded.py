"""`inspect --run`: whether the loaded model works.

The target reads known pictures, rendered by code, after their captions. Then every lossless method
generates the first rows of the same images, whose tokens have to be equal.
"""

import math
import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from configs.methods import METHODS, MethodSettings
from configs.model import EngineSettings
from configs.targets import TARGETS
from decoding.images import FinishedImage
from decoding.sampling import SamplingDistribution
from drafters.training.agreement import draft_distributions, target_distribution
from drafters.training.losses import DraftLevels
from drafters.training.rows import join_prompts, target_rows
from models.registry import family_of, load_codec
from models.target import TargetModel
from runs.check.report import FAULT, INCONCLUSIVE, OK, SKIPPED, Finding, size
from runs.drawing import image_jobs
from runs.exactness import NEAR_TIE, compare
from runs.measure import BASELINE, Measurement, measure
from runs.methods import sampling_distribution
from runs.prompts import numbered
from runs.samples import sample_captions, sample_pictures
from runs.session import DTYPES, Session, open_session, target_options
from support.border import OUT_OF_MEMORY, ran_out_of_memory
from support.output import first_line

SCENES = (301, 304, 305)  # of the test split: clouds and a plain ground, with large shapes
TOKENS, IMAGES = 64, 2  # that every method generates
LEAST_GUIDANCE = 0.005  # total variation
LEAST_ORDER = 0.6  # chance is 0.5
LEAST_PSNR = 18.0  # dB; public codecs reach 20 and more on photographs, ckpts/tiny's 26 on scenes
LEAST_PSNR_GAIN = 3.0  # dB above pictures of one colour
LEAST_DRAFT_GAIN = 0.01  # total variation
# The largest gap between two tokens' perturbed scores that rounding in bf16 may decide: it rounds
# logits of 16 to 32 to multiples of 0.125, and guidance multiplies the error.
BF16_TIE = 1.0
MIXED = (
    "weights of several models, of an interrupted download or wrongly converted: compare sizes and "
    "checksums of all files with their source"
)


def first_rows(target: TargetModel, tokens: int) -> TargetModel:
    """Return a target whose images end after their first rows; prompts are those of whole images.

    tokens: an image has at least so many, if the whole one does.
    """
    first = copy(target)  # its prompts, which name the size of images, keep the whole grid
    rows = min(math.ceil(tokens / target.grid.columns), target.grid.rows)
    first.grid = replace(target.grid, rows=rows)
    return first


@dataclass(frozen=True)
class Checkpoint:
    """A loaded checkpoint and what several checks share, computed when the first one needs it."""

    settings: EngineSettings

    @cached_property
    def session(self) -> Session:
        with torch.inference_mode(False):  # other commands load without it
            return open_session(self.settings)

    @property
    def target(self) -> TargetModel:
        return self.session.target

    @cached_property
    def distribution(self) -> SamplingDistribution:
        return sampling_distribution(self.settings.sampling)

    @cached_property
    def captions(self) -> list[str]:
        captions = sample_captions("test", max(SCENES) + 1)
        return [captions[index] for index in SCENES]

    @cached_property
    def pictures(self) -> tuple[Tensor, Tensor]:
        """The known pictures, uint8 (pictures, height, width, 3), and codes (pictures, tokens)."""
        options = target_options(self.settings, DTYPES[self.settings.dtype], self.target.device)
        codec = load_codec(self.settings.model, self.settings.model_path, options)
        scenes = map(Image.fromarray, sample_pictures("test", list(SCENES)))
        pixels = np.stack([np.array(codec.fit(scene, codec.size)) for scene in scenes])
        pictures = torch.from_numpy(pixels)
        return pictures, codec.images.encode(pictures)

    @cached_property
    def scores(self) -> tuple[Tensor, Tensor]:
        """The total variation that guidance makes at the known pictures' tokens; `order_rates`."""
        guided, order = list[Tensor](), list[Tensor]()
        for codes, (p, log_p) in zip(self.pictures[1], self.distributions(), strict=True):
            guided.append(_total_variation(p, log_p.exp()))
            order.append(order_rates(log_p, codes.to(log_p.device)))
        return torch.cat(guided), torch.cat(order)

    @cached_property
    def first(self) -> TargetModel:
        """The target for the first rows of images: enough to compare, in little time."""
        return first_rows(self.target, TOKENS)

    @cached_property
    def plain(self) -> list[FinishedImage]:
        """The first rows of some images by plain decoding."""
        return self.by(BASELINE).images

    @cached_property
    def generated(self) -> dict[str, Measurement]:
        """The same by every other method that the checkpoint has parts for."""
        drafted = self.session.drafter is not None
        served = (name for name, m in METHODS.items() if drafted or not m.drafted)
        return {n: self.by(MethodSettings(n)) for n in served if METHODS[n].speculative}

    def by(self, method: MethodSettings) -> Measurement:
        """Generate the first rows of some images by a method."""
        engine = replace(self.session, target=self.first).open_engine(method)
        return measure(engine, image_jobs(numbered(self.captions[:IMAGES]), seed=0))

    def distributions(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield guided p and conditional log p (tokens - 1, codes) after each picture's codes.

        A FloatingPointError if a logit is not finite.
        """
        for text, codes in zip(self.captions, self.pictures[1], strict=True):
            prompt = self.target.prompt(text, self.distribution.guidance)
            rows = target_rows(self.target, prompt, codes[None])
            levels = DraftLevels.of(self.target.grid, 1, rows.ids.device)
            logits = self.target.score(levels.target_features(rows)).float()
            if not logits.isfinite().all():
                raise FloatingPointError("NaN or infinity in the logits of a known picture")
            yield self.distribution.guide(logits)[0].softmax(-1), logits[0].log_softmax(-1)


def _total_variation(p: Tensor, q: Tensor) -> Tensor:
    return (p - q).abs().sum(-1) / 2


def judged(good: bool, text: str, cause: str = "") -> Finding:
    """Return the row of a check that was run; the likely cause is told only if it failed."""
    return Finding("", "", OK if good else FAULT, text, () if good else (f"likely cause: {cause}",))


def skipped(why: str) -> Finding:
    """Return the row of a check that was not run."""
    return Finding("", "", SKIPPED, why)


def run_checks(settings: EngineSettings) -> Iterator[Finding]:
    """Load a checkpoint whose files are right, run all checks and yield a row for each."""
    checkpoint = Checkpoint(settings)
    loaded = _run("load", tell_loaded, checkpoint)
    yield loaded
    if loaded.fits:
        last = {} if settings.quantize is None else {"quantize": tell_distance}
        yield from (_run(name, check, checkpoint) for name, check in (CHECKS | last).items())


def _run(name: str, check: Callable[[Checkpoint], Finding], checkpoint: Checkpoint) -> Finding:
    """Return the row of a check, also of one that cannot finish."""
    try:
        with torch.inference_mode():
            row = check(checkpoint)
    except FloatingPointError as error:
        row = judged(False, str(error), MIXED)
    except RuntimeError as error:
        if not ran_out_of_memory(error):
            raise
        row = judged(False, f"out of memory: {first_line(error)}", OUT_OF_MEMORY)
    return replace(row, part=name)


def tell_loaded(checkpoint: Checkpoint) -> Finding:
    """Load the checkpoint; returns the row of what was loaded."""
    started = time.perf_counter()
    session = checkpoint.session
    seconds = time.perf_counter() - started
    weights = list(session.target.transformer.parameters())
    count, memory = sum(w.numel() for w in weights), sum(w.nbytes for w in weights)
    drafter = "no drafter" if session.drafter is None else "and its drafter"
    text = (
        f"{session.settings.model}, {drafter}: {count:,} weights, {size(memory)} "
        f"in {session.settings.dtype} on {session.target.device}, loaded in {seconds:.0f} s"
    )
    return judged(True, text)


def tell_distance(checkpoint: Checkpoint) -> Finding:
    """Tell how far the quantised target's distributions are from those of the model's weights."""
    settings = checkpoint.settings
    whole = Checkpoint(replace(settings, quantize=None).with_method(BASELINE))
    quantised, exact = (
        torch.cat([guided for guided, _ in one.distributions()]) for one in (checkpoint, whole)
    )
    apart = _total_variation(quantised, exact)
    return judged(
        True,
        f"{settings.quantize} moves the distributions by {apart.mean():.3f} on average, in one of "
        f"20 by more than {apart.quantile(0.95):.3f} (total variation, against {settings.dtype})",
    )


def check_guidance(checkpoint: Checkpoint) -> Finding:
    """Check that guidance changes the distributions."""
    sampling = checkpoint.settings.sampling
    if sampling.guidance == 1:
        return skipped("--cfg 1: no guidance")
    apart = checkpoint.scores[0].mean().item()
    return judged(
        apart > LEAST_GUIDANCE,
        f"scale {sampling.cfg:g} moves the distributions by {apart:.3f} (total variation; at least "
        f"{LEAST_GUIDANCE:g})",
        "the prompt does not reach the model: another model's text tokenizer or text encoder, or "
        f"else {MIXED}",
    )


def check_codec(checkpoint: Checkpoint) -> Finding:
    """Check the peak signal-to-noise ratio of the known pictures after encoding and decoding."""
    if not family_of(checkpoint.settings.model).decoded:
        return skipped("the model's image tokenizer only encodes; diffusers makes the pixels")
    known, codes = checkpoint.pictures
    pictures, decoded = known.double(), checkpoint.target.to_image(codes).double()
    psnr = _psnr(pictures, decoded)
    plain = _psnr(pictures, pictures.mean((1, 2), keepdim=True))
    least = max(LEAST_PSNR, plain + LEAST_PSNR_GAIN)
    height, width = pictures.shape[1:3]
    return judged(
        psnr >= least,
        f"{len(pictures)} rendered pictures of {width} x {height} come back with {psnr:.1f} dB "
        f"(PSNR; at least {least:.1f})",
        "the image tokenizer's encoder, codebook and decoder are not of one model, or its "
        "vqgan.yaml is another's",
    )


def _psnr(pictures: Tensor, others: Tensor) -> float:
    """Return the mean peak signal-to-noise ratio in dB of pictures up to 255."""
    error = (pictures - others).square().flatten(1).mean(1)
    return (10 * torch.log10(255**2 / error)).mean().item()


def check_codes(checkpoint: Checkpoint) -> Finding:
    """Check that the target expects the known pictures' codes where they are."""
    rates = checkpoint.scores[1]
    if len(rates) < 2:
        return skipped("the pictures are too small: fewer than three different codes")
    rate, error = rates.mean().item(), (rates.std() / len(rates) ** 0.5).item()
    return judged(
        rate >= LEAST_ORDER and rate - 0.5 > 3 * error,
        f"in known pictures the code that follows is likelier than a later one in {rate:.0%} "
        f"(± {2 * error:.0%}; chance is 50%, at least {LEAST_ORDER:.0%})",
        "an image tokenizer of another model, or an embedding or lm_head whose rows are in another "
        f"order; else {MIXED}",
    )


def order_rates(log_p: Tensor, codes: Tensor) -> Tensor:
    """Return how often the code that comes next is likelier than one that comes later.

    Only codes that the picture shows for the first time are compared, one rate for each of them but
    the last. So neither copying from the context nor a preference for some codes helps: a model
    that does not know the codes is at 0.5, by chance, however sure it is of itself.

    log_p: (tokens - 1, codes) the predictions of codes 1, 2, ...; codes: (tokens,).
    """
    # Row i: is code i + 1 among codes 0 to i?
    seen = (codes[1:, None] == codes[:-1]).tril().any(1)  # (tokens - 1,)
    new = (~seen).nonzero()[:, 0]  # (m,)
    scores = log_p[new][:, codes[1:][new]]  # (m, m): row: the position, column: whose code
    later = torch.ones_like(scores).triu(1)
    wins = (scores.diagonal()[:, None] > scores).float() * later
    # The last one has no later code: 0 / 0.
    return (wins.sum(1) / later.sum(1))[:-1]


def check_drafter(checkpoint: Checkpoint) -> Finding:
    """Check that the drafter is closer to the target than its predictions of other positions."""
    first, head = checkpoint.first, checkpoint.session.drafter
    if head is None:
        source = TARGETS[checkpoint.settings.model].sources["drafter_path"]
        return skipped(f"no folder `drafter` in --model_path, no --drafter_path; {source}")
    images, distribution = checkpoint.plain, checkpoint.distribution
    prompts = [first.prompt(image.job.prompt, distribution.guidance) for image in images]
    codes = torch.stack([image.codes for image in images])
    rows = target_rows(first, join_prompts(prompts), codes, head.spec.target_layers)
    p = target_distribution(first, rows, distribution).exp()
    (log_q,) = draft_distributions(first, head, rows, distribution, depths=1)
    # Half an image away predictions are as sharp and of as likely codes, but not of this position.
    shuffled = log_q.roll(log_q.shape[1] // 2, 1)
    apart, chance = (_total_variation(p, q.exp()).flatten() for q in (log_q, shuffled))
    gain = chance - apart
    error = (gain.std() / len(gain) ** 0.5).item()
    return judged(
        gain.mean().item() > max(LEAST_DRAFT_GAIN, 3 * error),
        f"total variation from the target {apart.mean():.2f}, of shuffled positions "
        f"{chance.mean():.2f}",
        "a drafter of another target, or another layout of its weights; check --drafter_path. If "
        "`codes` has failed too, the target is to blame",
    )


def check_tokens(checkpoint: Checkpoint) -> Finding:
    """Check that every method's tokens are plain decoding's, up to what rounding decides."""
    dtype, plain, generated = checkpoint.settings.dtype, checkpoint.plain, checkpoint.generated
    tie = BF16_TIE if dtype == "bf16" else NEAR_TIE
    results = {
        name: compare(checkpoint.first, checkpoint.distribution, plain, measured.images, tie)
        for name, measured in generated.items()
    }
    identical = sum(result.identical for result in results.values())
    ties = sum(result.near_ties for result in results.values())
    wrong = sorted(name for name, result in results.items() if result.wrong)
    unclear = [
        f"{name}: {why}, so equal tokens say nothing"
        for name, measured in generated.items()
        if name not in wrong and (why := measured.inconclusive)
    ]
    text = (
        f"{len(results)} methods, the first {len(plain[0].codes)} tokens of {len(plain)} images "
        f"each: {identical} of {len(results) * len(plain)} as by plain decoding"
        f"{f', {ties} until rounding in {dtype} decides' if ties else ''}"
        f"{'; wrong: ' * bool(wrong)}{', '.join(wrong)}"
    )
    cause = (
        "not the files, since drafts only propose. A device or library computes wrongly: try "
        "--device cpu --dtype fp64, other versions of torch, and report it"
    )
    found = judged(not wrong, "; ".join([text, *unclear]), cause)
    return replace(found, state=INCONCLUSIVE) if unclear and not wrong else found


CHECKS: dict[str, Callable[[Checkpoint], Finding]] = {
    "guidance": check_guidance,
    "codec": check_codec,
    "codes": check_codes,
    "drafter": check_drafter,
    "tokens": check_tokens,
}
