"""What `inspect` prints: one finding a row, and a table of memory."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from configs.model import EngineSettings
from support.devices import pick_device
from support.progress import plural

OK, NOTE, SKIPPED, FAULT = "ok", "note", "skipped", "FAULT"
INCONCLUSIVE = "inconclusive"
Bytes = tuple[int, int]  # with the prompt of a caption, and with the longest prompt


@dataclass(frozen=True)
class Finding:
    """A row: one part of a checkpoint, or one check of the loaded model."""

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


def table(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the lines of a table of findings, in columns."""
    names = ("part", "item", "state")
    widths = [max(len(getattr(finding, name)) for finding in findings) for name in names]
    for finding in findings:
        cells = [getattr(finding, name).ljust(n) for name, n in zip(names, widths, strict=True)]
        start = "  ".join((*filter(None, cells), ""))
        for text in (finding.text, *finding.details):
            yield start + " ".join(text.split())
            start = " " * len(start)


def memory_table(memory: Mapping[str, Bytes], settings: EngineSettings) -> Iterator[str]:
    """Yield the lines of a table of the bytes that each part takes, without activations."""
    images = f"{plural(settings.batch_size, 'image')} x "
    images += plural(settings.sampling.guidance, "guidance row")
    types = ", ".join(filter(None, (settings.dtype, settings.quantize)))
    device = pick_device(settings.device).type
    yield f"\nmemory, {device}, {types}, {images}, without activations:"
    yield f"  {'':26} {'caption':>10} {'longest prompt':>16}"
    sums = tuple(map(sum, zip(*memory.values(), strict=True)))
    for name, (caption, longest) in {**memory, "together": sums}.items():
        yield f"  {name:26} {size(caption):>10} {size(longest):>16}"


def size(count: int) -> str:
    """Return bytes in words."""
    if count >= 2**30:
        return f"{count / 2**30:.2f} GiB"
    small = 0 < count < 2**17
    return f"{count / 2**10:.1f} KiB" if small else f"{count / 2**20:.1f} MiB"
