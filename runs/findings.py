"""What `inspect` has found, line by line, as a table for readers and as JSON for programs."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from configs.tools import InspectSettings
from runs.throughput import TIMED, Speed, best, flags


@dataclass(frozen=True)
class Finding:
    """One line of the report.

    fits: whether `generate_images` would take it. note: it does not matter to all methods.
    details: every single difference, where there are any.
    """

    part: str
    item: str
    fits: bool
    text: str
    details: tuple[str, ...] = ()
    note: bool = False

    @property
    def state(self) -> str:
        """The word for readers."""
        return "FAULT" if not self.fits else "note" if self.note else "ok"


@dataclass(frozen=True)
class Report:
    """findings: line by line. memory: bytes by what takes them, without activations. speeds: of
    rounds, by method and batch size; empty if none were timed.
    """

    findings: tuple[Finding, ...]
    memory: dict[str, int]
    speeds: tuple[Speed, ...] = ()

    @property
    def faults(self) -> int:
        """How many findings `generate_images` would refuse."""
        return sum(not finding.fits for finding in self.findings)


def as_table(report: Report, settings: InspectSettings) -> str:
    """Return the report for readers, with every difference on a line of its own."""
    part, item = (
        max(len(getattr(finding, name)) for finding in report.findings) for name in ("part", "item")
    )
    lines = []
    for finding in report.findings:
        text = " ".join(finding.text.split())
        lines.append(f"{finding.part:{part}}  {finding.item:{item}}  {finding.state:5}  {text}")
        lines += [f"    {detail}" for detail in finding.details]
    rows = f"{settings.batch_size} images x {settings.guidance} guidance rows"
    words = (
        settings.dtype if settings.quantize is None else f"{settings.dtype}, {settings.quantize}"
    )
    lines += ["", f"memory, {words}, {rows}, longest prompts, without activations:"]
    total = "together" if "target weights" in report.memory else "together, without target"
    memory = report.memory | {total: sum(report.memory.values())}
    lines += [f"  {name:26} {size(count):>10}" for name, count in memory.items()]
    return "\n".join([*lines, *(_speeds(report.speeds) if report.speeds else ())])


def _speeds(speeds: Sequence[Speed]) -> list[str]:
    """Return the lines about tokens per second, a column per batch size."""
    batches = list(dict.fromkeys(speed.batch for speed in speeds))
    lines = ["", f"tokens/s of the first {TIMED} rounds of that many images at once:"]
    lines.append(f"  {'':8}" + "".join(f"{batch:8}" for batch in batches))
    for name in dict.fromkeys(speed.method.method for speed in speeds):
        own = (speed for speed in speeds if speed.method.method == name)
        lines.append(f"  {name:8}" + "".join(f"{speed.tokens_per_second:8.0f}" for speed in own))
    return [*lines, f"recommended for many images: {flags(best(speeds))}"]


def as_json(report: Report) -> str:
    """Return the report for programs, on one line; memory in bytes."""
    findings = [asdict(finding) for finding in report.findings]
    document = {"fits": not report.faults, "findings": findings, "memory": report.memory}
    if report.speeds:
        rates = [[flags(speed), speed.tokens_per_second] for speed in report.speeds]
        document |= {"tokens_per_second": rates, "recommended": flags(best(report.speeds))}
    return json.dumps(document)


def size(count: int) -> str:
    """Return bytes in words."""
    if count >= 2**30:
        return f"{count / 2**30:.2f} GiB"
    small = 0 < count < 2**17
    return f"{count / 2**10:.1f} KiB" if small else f"{count / 2**20:.1f} MiB"
