"""Check that every lossless method begins an image as plain decoding does; what decoding costs."""

import resource
from dataclasses import dataclass
from functools import cached_property
from statistics import median

import torch

from configs.method_table import METHODS
from configs.methods import MethodSettings
from decoding.flight import FinishedImage
from eval.bench.exactness import NEAR_TIE
from eval.bench.exactness import gap as tie_gap
from eval.bench.speedup import BUSY
from eval.verify.lines import Line, judged, skipped
from eval.verify.subject import Subject
from runs.findings import size
from runs.measure import Measurement, measure
from runs.methods import sampling_distribution

# The largest gap between two tokens' perturbed scores that rounding may decide.
TIES = {"fp64": 0.0, "fp32": NEAR_TIE, "bf16": 1.0}


@dataclass(frozen=True)
class Decoded:
    """The first rows of the same images by every method that the checkpoint has parts for."""

    subject: Subject

    @cached_property
    def by_method(self) -> dict[str, Measurement]:
        """Measurements by the names of the methods, plain decoding's first.

        Trees have their greatest size: prices would be measured first, for some seconds.
        """
        subject, found = self.subject, {"ar": self.subject.plain}
        for name, entry in METHODS.items():
            if not entry.speculative or entry.drafted and subject.session.drafter is None:
                continue
            fixed = {"size": "fixed"} if "size" in entry.defaults else {}
            engine = subject.first.open_engine(MethodSettings(name, **fixed))
            found[name] = measure(engine, subject.jobs)
        return found

    def seconds_per_token(self, name: str) -> float:
        """Return the median over images, without prompts."""
        images = self.by_method[name].images
        return median((i.seconds - i.seconds_prefill) / (len(i.codes) - 1) for i in images)

    @cached_property
    def doubt(self) -> str | None:
        """Why the seconds may be wrong: on a CPU, other work that had the processor; else None."""
        if self.subject.target.device.type != "cpu":
            return None
        share = min(
            sum(measured.cpu_seconds) / sum(image.seconds for image in measured.images)
            for measured in self.by_method.values()
        )
        if share >= BUSY:
            return None
        return (
            f"other work had the processor, this process ran for only {share:.0%} of the time: "
            "measure again on an idle machine"
        )


def check_tokens(decoded: Decoded) -> Line:
    """Check that every method's tokens are plain decoding's, up to what rounding decides."""
    dtype, plain = decoded.subject.settings.dtype, decoded.by_method["ar"].images
    gaps = {
        name: [
            _gap(decoded.subject, mine, theirs)
            for mine, theirs in zip(plain, measured.images, strict=True)
        ]
        for name, measured in decoded.by_method.items()
        if name != "ar"
    }
    found = [gap for own in gaps.values() for gap in own]  # None: the same tokens
    differing = [gap for gap in found if gap is not None]
    ties = sum(gap <= TIES[dtype] for gap in differing)
    wrong = {name for name, own in gaps.items() if any(gap and gap > TIES[dtype] for gap in own)}
    text = (
        f"{len(gaps)} methods, the first {len(plain[0].codes)} tokens of {len(plain)} images each: "
        f"{len(found) - len(differing)} of {len(found)} as by plain decoding"
        f"{f', {ties} until rounding in {dtype} decides' if ties else ''}"
        f"{'; wrong: ' * bool(wrong)}{', '.join(sorted(wrong))}"
    )
    cause = (
        "not the files, since drafts only propose. A device or library computes wrongly: try "
        "--device cpu --dtype fp64, other versions of torch, and report it"
    )
    tau = {name: measured.tau for name, measured in decoded.by_method.items()}
    return judged("tokens", not wrong, text, cause, gaps=gaps, near_ties=ties, tau=tau)


def _gap(subject: Subject, plain: FinishedImage, other: FinishedImage) -> float | None:
    """Return how much rounding it takes to emit the first token that differs; None if none does."""
    differs = (plain.codes != other.codes).nonzero()
    if not len(differs):
        return None
    distribution = sampling_distribution(subject.settings.sampling)
    return tie_gap(subject.first.target, distribution, plain, other.codes[: int(differs[0]) + 1])


def tell_cost(decoded: Decoded) -> Line:
    """Return the line of seconds and memory per token."""
    subject = decoded.subject
    seconds = {name: decoded.seconds_per_token(name) for name in decoded.by_method}
    fastest = min(seconds, key=seconds.get)
    drafted = (
        "no method is faster"
        if fastest == "ar"
        else f"{1000 * seconds[fastest]:.1f} by {fastest} (accepted length "
        f"{decoded.by_method[fastest].tau:.2f})"
    )
    spec, guidance = subject.target.spec, subject.settings.sampling.guidance
    kept = 2 * spec.layers * spec.kv_heads * spec.head_dim * guidance
    kept *= subject.target.dtype.itemsize
    peak, where = _peak(subject.target.device)
    text = (
        f"{1000 * seconds['ar']:.1f} ms per token by plain decoding, {drafted}; {kept / 1024:.1f} "
        f"KiB of KV cache per token, at most {size(peak)} {where}"
        f"{f' (doubtful: {decoded.doubt})' if decoded.doubt else ''}"
    )
    figures = {"doubt": decoded.doubt, "seconds_per_token": seconds}
    figures |= {"cache_bytes_per_token": kept, "peak_bytes": peak}
    return Line("speed", "ok", text, figures=figures)


def _peak(device: torch.device) -> tuple[int, str]:
    """Return the greatest number of bytes in use so far, and where."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device), "on the GPU"
    # kilobytes on Linux
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "in this process"


def tell_estimate(decoded: Decoded) -> Line:
    """Return the line of the hours that the user's set takes; nothing is told of doubtful ones."""
    if decoded.doubt:
        return skipped("estimate", decoded.doubt)
    subject = decoded.subject
    images, tokens = subject.settings.num_images, subject.target.grid.tokens
    hours = {
        name: images * tokens * decoded.seconds_per_token(name) / 3600 for name in decoded.by_method
    }
    fastest = min(hours, key=hours.get)
    drafted = "" if fastest == "ar" else f", {hours[fastest]:.1f} by {fastest}"
    text = (
        f"{images} images of {tokens} tokens, one at a time: about {hours['ar']:.1f} hours by "
        f"plain decoding{drafted} (measured once, on the first tokens; later ones are a little "
        "slower)"
    )
    return Line("estimate", "ok", text, figures={"images": images, "hours": hours})
