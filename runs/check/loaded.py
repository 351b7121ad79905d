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
from decoding.images import Job
from drafters.training.agreement import draft_distributions, target_distribution
from drafters.training.losses import DraftLevels
from drafters.training.rows import join_prompts, target_rows
from models.codecs.codec import Codec
from models.registry import family_of, load_codec
from models.target import TargetModel
from runs.check.report import INCONCLUSIVE, Finding, judged, size, skipped
from runs.drawing import image_jobs
from runs.exactness import NEAR_TIE, compare
from runs.measure import BASELINE, Measurement, measure
from runs.methods import sampling_distribution
from runs.prompts import numbered
from runs.samples import sample_captions, sample_pictures
from runs.session import DTYPES, Session, open_session, target_options
from support.border import OUT_OF_MEMORY, ran_out_of_memory

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
    """A loaded checkpoint and what several checks share: pictures, their scores, generated images.

    Everything is computed when a check first needs it.
    """

    settings: EngineSettings

    @cached_property
    def session(self) -> Session:
        with torch.inference_mode(False):  # other commands load without it
            return open_session(self.settings)

    @property
    def target(self) -> TargetModel:
        return self.session.target

    @cached_property
    def captions(self) -> list[str]:
        captions = sample_captions("test", max(SCENES) + 1)
        return [captions[index] for index in SCENES]

    @cached_property
    def pictures(self) -> Tensor:
        """The known pictures at the model's size, uint8 (pictures, height, width, 3)."""
        return torch.stack([self._picture(index) for index in SCENES])

    @cached_property
    def codes(self) -> Tensor:
        """The codes of the known pictures, (pictures, tokens)."""
        return self._codec.images.encode(self.pictures)

    @cached_property
    def scores(self) -> tuple[Tensor, Tensor]:
        """The total variation that guidance makes at the known pictures' tokens; `order_rates`."""
        guided, order = zip(*map(self._score, self.captions, self.codes), strict=True)
        return torch.cat(guided), torch.cat(order)

    @cached_property
    def first_rows(self) -> Session:
        """The same model, for the first rows of images: enough to compare, in little time."""
        return replace(self.session, target=first_rows(self.target, TOKENS))

    @cached_property
    def jobs(self) -> list[Job]:
        return image_jobs(numbered(self.captions[:IMAGES]), seed=0)

    @cached_property
    def plain(self) -> Measurement:
        """The first rows of the images by plain decoding."""
        return measure(self.first_rows.open_engine(BASELINE), self.jobs)

    @cached_property
    def generated(self) -> dict[str, Measurement]:
        """The same by every other method that the checkpoint has parts for."""
        measured = {}
        for name, entry in METHODS.items():
            if not entry.speculative or (entry.drafted and self.session.drafter is None):
                continue
            engine = self.first_rows.open_engine(MethodSettings(name))
            measured[name] = measure(engine, self.jobs)
        return measured

    @cached_property
    def _codec(self) -> Codec:
        options = target_options(self.settings, DTYPES[self.settings.dtype], self.target.device)
        return load_codec(self.settings.model, self.settings.model_path, options)

    def _picture(self, index: int) -> Tensor:
        scene = Image.fromarray(sample_pictures("test", [index])[0])
        width, height = self._codec.size
        # `fit` crops and shrinks but does not enlarge, and some models make larger images.
        scale = max(1.0, width / scene.width, height / scene.height)
        enlarged = math.ceil(scene.width * scale), math.ceil(scene.height * scale)
        scene = scene.resize(enlarged, Image.Resampling.BICUBIC)
        return torch.from_numpy(np.array(self._codec.fit(scene, self._codec.size)))

    def _score(self, text: str, codes: Tensor) -> tuple[Tensor, Tensor]:
        guided, log_p = self.distributions(text, codes)
        return _total_variation(guided, log_p.exp()), order_rates(log_p, codes.to(log_p.device))

    def distributions(self, text: str, codes: Tensor) -> tuple[Tensor, Tensor]:
        """Return guided p and conditional log p (tokens - 1, codes) after a picture's codes.

        A FloatingPointError if a logit is not finite.
        """
        prompt = self.target.prompt(text, self.settings.sampling.guidance)
        rows = target_rows(self.target, prompt, codes[None])
        levels = DraftLevels.of(self.target.grid, 1, rows.ids.device)
        logits = self.target.score(levels.target_features(rows)).float()
        if not logits.isfinite().all():
            raise FloatingPointError("NaN or infinity in the logits of a known picture")
        guided = sampling_distribution(self.settings.sampling).guide(logits)[0].softmax(-1)
        return guided, logits[0].log_softmax(-1)


def _total_variation(p: Tensor, q: Tensor) -> Tensor:
    return (p - q).abs().sum(-1) / 2


def run_checks(settings: EngineSettings) -> Iterator[Finding]:
    """Load a checkpoint whose files are right, run all checks and yield a row for each."""
    checkpoint = Checkpoint(settings)
    loaded = _run("load", tell_loaded, checkpoint)
    yield loaded
    if loaded.fits:
        yield from (_run(name, check, checkpoint) for name, check in CHECKS.items())
    if loaded.fits and settings.quantize is not None:
        yield _run("quantize", tell_distance, checkpoint)


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
        row = judged(False, f"out of memory: {str(error).splitlines()[0]}", OUT_OF_MEMORY)
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
    known = list(zip(checkpoint.captions, checkpoint.codes, strict=True))
    quantised, exact = (
        torch.cat([one.distributions(*picture)[0] for picture in known])
        for one in (checkpoint, whole)
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
    pictures = checkpoint.pictures.double()
    decoded = checkpoint.target.to_image(checkpoint.codes).double()
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
    if checkpoint.session.drafter is None:
        source = TARGETS[checkpoint.settings.model].sources["drafter_path"]
        return skipped(f"no folder `drafter` in --model_path, no --drafter_path; {source}")
    log_p, log_q = _drafted(checkpoint)
    # Half an image away predictions are as sharp and of as likely codes, but not of this position.
    shuffled = log_q.roll(log_q.shape[1] // 2, 1)
    apart, chance = (_total_variation(log_p.exp(), q.exp()).flatten() for q in (log_q, shuffled))
    gain = chance - apart
    error = (gain.std() / len(gain) ** 0.5).item()
    return judged(
        gain.mean().item() > max(LEAST_DRAFT_GAIN, 3 * error),
        f"total variation from the target {apart.mean():.2f}, of shuffled positions "
        f"{chance.mean():.2f}",
        "a drafter of another target, or another layout of its weights; check --drafter_path. If "
        "`codes` has failed too, the target is to blame",
    )


def _drafted(checkpoint: Checkpoint) -> tuple[Tensor, Tensor]:
    """Return log p and log q (images, tokens - 1, codes) after the tokens of plain decoding."""
    target, head = checkpoint.first_rows.target, checkpoint.session.drafter
    assert head is not None, "`check_drafter` looks"
    distribution = sampling_distribution(checkpoint.settings.sampling)
    images = checkpoint.plain.images
    prompts = [target.prompt(image.job.prompt, distribution.guidance) for image in images]
    codes = torch.stack([image.codes for image in images])
    rows = target_rows(target, join_prompts(prompts), codes, head.spec.target_layers)
    log_p = target_distribution(target, rows, distribution)
    (log_q,) = draft_distributions(target, head, rows, distribution, depths=1)
    return log_p, log_q


def check_tokens(checkpoint: Checkpoint) -> Finding:
    """Check that every method's tokens are plain decoding's, up to what rounding decides."""
    dtype, plain = checkpoint.settings.dtype, checkpoint.plain.images
    compared = checkpoint.first_rows.target, sampling_distribution(checkpoint.settings.sampling)
    near_tie = BF16_TIE if dtype == "bf16" else NEAR_TIE
    results = {
        name: compare(*compared, plain, measured.images, near_tie)
        for name, measured in checkpoint.generated.items()
    }
    identical = sum(result.identical for result in results.values())
    ties = sum(result.near_ties for result in results.values())
    wrong = sorted(name for name, result in results.items() if result.wrong)
    text = (
        f"{len(results)} methods, the first {len(plain[0].codes)} tokens of {len(plain)} images "
        f"each: {identical} of {len(results) * len(plain)} as by plain decoding"
        f"{f', {ties} until rounding in {dtype} decides' if ties else ''}"
        f"{'; wrong: ' * bool(wrong)}{', '.join(wrong)}"
    )
    unclear = {
        name: why
        for name, measured in checkpoint.generated.items()
        if not results[name].wrong and (why := measured.inconclusive)
    }
    for name, why in unclear.items():
        text += f"; {name}: {why}, so equal tokens say nothing"
    cause = (
        "not the files, since drafts only propose. A device or library computes wrongly: try "
        "--device cpu --dtype fp64, other versions of torch, and report it"
    )
    found = judged(not wrong, text, cause)
    return replace(found, state=INCONCLUSIVE) if unclear and not wrong else found


CHECKS: dict[str, Callable[[Checkpoint], Finding]] = {
    "guidance": check_guidance,
    "codec": check_codec,
    "codes": check_codes,
    "drafter": check_drafter,
    "tokens": check_tokens,
}
