"""What `inspect` prints: one finding a row."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from configs.model import EngineSettings
from models.targets.family import Together
from support.devices import pick_device
from support.progress import plural

OK, NOTE, SKIPPED, FAULT = "ok", "note", "skipped", "FAULT"
INCONCLUSIVE = "inconclusive"


@dataclass(frozen=True)
class Finding:
    """What `inspect` found of one part of a checkpoint."""

    part: str  # of the checkpoint; of a loaded one the name of a check
    item: str  # file or property of the part; empty for a check
    state: str  # OK; NOTE: not every method needs it; SKIPPED: not checked; INCONCLUSIVE; FAULT
    text: str  # what is there, or was measured
    details: tuple[str, ...] = ()  # every difference, or the likely cause of a fault

    @property
    def fits(self) -> bool:
        return self.state != FAULT

    @property
    def name(self) -> str:
        return f"{self.part} ({self.item})" if self.item else self.part


@dataclass(frozen=True)
class Report:
    """All that `inspect` found."""

    findings: tuple[Finding, ...]  # about its files
    # bytes by name with a caption's and with the longest prompt, without activations
    memory: dict[str, tuple[int, int]] = field(default_factory=dict)
    together: Together | None = None  # its image, if all fits
    checks: tuple[Finding, ...] = ()  # of the loaded model, if it was run

    @property
    def faults(self) -> list[Finding]:
        return [finding for finding in (*self.findings, *self.checks) if not finding.fits]


def judged(good: bool, text: str, cause: str = "") -> Finding:
    """Return the row of a check that was run; the likely cause is told only if it failed."""
    details = () if good else (f"likely cause: {cause}",)
    return Finding("", "", OK if good else FAULT, text, details)


def skipped(text: str) -> Finding:
    """Return the row of a check that was not run; text: why not."""
    return Finding("", "", SKIPPED, text)


def as_table(report: Report, settings: EngineSettings) -> str:
    """Return the report as a terminal shows it."""
    rows = [*_rows(report.findings)]
    rows += _memory_rows(report.memory, settings) if report.memory else ()  # none of no files
    rows += ["", *_rows(report.checks)] if report.checks else ()
    return "\n".join(rows)


def _rows(findings: Sequence[Finding]) -> Iterator[str]:
    names = ("part", "item", "state")
    widths = [max(len(getattr(finding, name)) for finding in findings) for name in names]
    for finding in findings:
        cells = [getattr(finding, name).ljust(n) for name, n in zip(names, widths, strict=True)]
        start = "  ".join((*filter(None, cells), ""))
        for text in (finding.text, *finding.details):
            yield start + " ".join(text.split())
            start = " " * len(start)


def _memory_rows(memory: dict[str, tuple[int, int]], settings: EngineSettings) -> Iterator[str]:
    images = f"{plural(settings.batch_size, 'image')} x "
    images += plural(settings.sampling.guidance, "guidance row")
    types = ", ".join(filter(None, (settings.dtype, settings.quantize)))
    device = pick_device(settings.device).type
    yield f"\nmemory, {device}, {types}, {images}, without activations:"
    yield f"  {'':26} {'caption':>10} {'longest prompt':>16}"
    sums = tuple(map(sum, zip(*memory.values(), strict=True)))
    for name, (caption, longest) in (memory | {"together": sums}).items():
        yield f"  {name:26} {size(caption):>10} {size(longest):>16}"


def size(count: int) -> str:
    """Return bytes in words."""
    if count >= 2**30:
        return f"{count / 2**30:.2f} GiB"
    small = 0 < count < 2**17
    return f"{count / 2**10:.1f} KiB" if small else f"{count / 2**20:.1f} MiB"
