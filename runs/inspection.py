"""`inspect`: say what a checkpoint's files are, what is missing or wrong, and the memory they take.

It checks what `generate_images` checks before the first image, but goes on after a fault, so one
report names them all. Of weight files it reads the headers only, but for --speed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch

from configs.method_table import METHODS
from configs.targets import TARGETS
from configs.tools import InspectSettings
from drafters.calibrations import FILE, Calibrations
from drafters.loading import drafter_network
from models.base import TargetOptions, TransformerSpec
from models.codecs.codebook import load_table, table_path, table_widths
from models.files.network import Network
from models.registry import FAMILIES
from models.targets.family import Check, Checked, Family, ImageSequence
from runs.findings import Finding, Report, as_json, as_table, size
from runs.memory import Drawn, cache_bytes, free_memory, memory_of
from runs.network_report import Looked, Outline, Place, look_at
from runs.session import DTYPES, open_session, target_options
from runs.throughput import BATCHES, Speed, speeds_by_batch
from support.border import Failure
from support.extras import install

_SHARE = 0.7  # of the free memory: activations are not counted


def inspect_checkpoint(settings: InspectSettings) -> None:
    """Print the report; a Failure, after it, if `generate_images` would refuse the files."""
    report = examine(settings)
    print(as_json(report) if settings.json else as_table(report, settings))
    if report.faults:
        count = "1 fault" if report.faults == 1 else f"{report.faults} faults"
        raise Failure(
            f"--model_path {settings.model_path}: {count} in the report; generate_images would "
            "refuse these files"
        )


def examine(settings: InspectSettings) -> Report:
    """Look at target, its other parts, drafter and tables, and return all that was found."""
    family, source = FAMILIES[settings.model], TARGETS[settings.model].sources["model_path"]
    options = target_options(settings, DTYPES[settings.dtype], torch.device("cpu"))
    path = settings.model_path
    target = look_at(
        Place("target", "--model_path", path, source, Outline(family.spec, family.network))
    )
    folder = target.folder or Path(path)
    parts = list(_parts(settings.model, family, folder, options, target.findings))
    drafter = _look_at_drafter(settings, family, target.spec)
    findings, drawn = [*target.findings, *(finding for finding, _ in parts)], None
    if target.spec is not None and all(finding.state == "ok" for finding, _ in parts):
        line, found = _check("parts", "together", family.compatible, folder, options)
        codes = family.codes(folder, options)
        findings += [line, *_tables(codes, folder)]
        if found.sequence is not None:
            drawn = Drawn(found.sequence.grid, codes)
            findings.append(_sequence(settings, target.spec, found.sequence))
    if settings.quantize is not None and find_spec("torchao") is None:
        text = f"--quantize {settings.quantize} needs torchao, not installed here"
        findings.append(
            Finding("target", "quantize", True, f"{text}: {install('quantize')}", note=True)
        )
    memory = memory_of(settings, target.network, drafter.network, drawn)
    memory |= {finding.part: found.bytes for finding, found in parts if found.bytes}
    report = Report((*findings, *drafter.findings), memory)
    if settings.speed and not report.faults:
        parts = target.network, drafter.network, drawn
        return replace(report, speeds=_speeds(settings, *parts))
    return report


def _speeds(
    settings: InspectSettings, target: Network, drafter: Network | None, drawn: Drawn
) -> tuple[Speed, ...]:
    """Load the model, and time rounds of as many images at once as memory allows."""

    def needed(batch: int) -> int:
        memory = memory_of(replace(settings, batch_size=batch), target, drafter, drawn)
        return sum(count for name, count in memory.items() if not name.endswith("weights"))

    session = open_session(settings.engine)
    free = _SHARE * free_memory(session.target.device)
    return speeds_by_batch(session, [n for n in BATCHES if n == 1 or needed(n) < free])


def _parts(
    model: str,
    family: Family,
    folder: Path,
    options: TargetOptions,
    target: Sequence[Finding],
) -> Iterator[tuple[Finding, Checked]]:
    """Yield a line about every part next to the transformer, and what was found.

    A fault that the target's lines tell already is told as a note.
    """
    told = {line.text for line in target if not line.fits}
    for name, part in family.parts.items():
        finding, found = _check(name, "files", part.check, folder, options)
        if finding.text in told:
            finding = replace(finding, fits=True, note=True, text=f"not read: {finding.text}")
        elif part.flag and not finding.fits:
            text = f"{finding.text}; source: {TARGETS[model].sources[part.flag]}"
            finding = replace(finding, text=text)
        yield finding, found


def _check(
    part: str, item: str, check: Check, folder: Path, options: TargetOptions
) -> tuple[Finding, Checked]:
    """Return the line of a check and what it has found."""
    try:
        found, fits = check(folder, options), True
    except ValueError as error:
        found, fits = Checked(str(error)), False
    return Finding(part, item, fits, found.text), found


def _sequence(settings: InspectSettings, spec: TransformerSpec, found: ImageSequence) -> Finding:
    """Return a line about the positions that an image leaves for its prompt."""
    grid, needed = found.grid, found.grid.slots(found.grid.tokens)
    ends = f" and {grid.rows} row ends" if needed > grid.tokens else ""
    room = spec.max_positions - needed
    words = f"{grid.tokens:,} image tokens{ends} of {spec.max_positions:,} positions"
    if fits := found.shortest <= room:
        words += f": prompts of up to {room:,} tokens"
    else:
        words += f" leave {room:,} for prompts, of which the shortest has {found.shortest:,}"
    each = cache_bytes(settings, spec, 1)
    return Finding("target", "sequence", fits, f"{words}; keys and values: {size(each)} a token")


def _look_at_drafter(
    settings: InspectSettings, family: Family, target: TransformerSpec | None
) -> Looked:
    """Look at the drafter's network and its calibration; a missing default drafter is a note."""
    source, path = TARGETS[settings.model].sources["drafter_path"], settings.drafter_path
    if path is None:
        free = [name for name, entry in METHODS.items() if not entry.drafted]
        text = (
            f"none in {Path(settings.model_path) / 'drafter'} and no --drafter_path: only --method "
            f"{' or '.join(free)} works; source: {source}"
        )
        return Looked((Finding("drafter", "folder", True, text, note=True),))

    def network(config: dict) -> Network:
        spec = family.drafter(config, target)
        return drafter_network(config, spec, target, str(Path(path) / "config.json"))

    outline = Outline(lambda config: family.drafter(config, target), network) if target else None
    place = Place("drafter", "--drafter_path", path, source, outline)
    drafter = look_at(place)
    if drafter.folder is None:
        return drafter
    return replace(drafter, findings=(*drafter.findings, _calibration(place, drafter.folder)))


def _calibration(place: Place, folder: Path) -> Finding:
    """Return a line about the drafter's calibration.json."""
    try:
        count = len(Calibrations.read(folder).factors)
    except ValueError as error:
        return place.finding(FILE, error)
    if not count:
        return place.finding(FILE, "none: path scores are taken as they are", note=True)
    return place.finding(FILE, f"for {count} sampling settings")


def _tables(codes: int, folder: Path) -> Iterator[Finding]:
    """Yield a line about every table of nearest codes, or a note that there is none."""
    part, widths = "nearest codes", table_widths(folder)
    if not widths:
        text = f"none, which --lantern needs: `main.py vq_distances --model_path {folder}` makes it"
        yield Finding(part, "vq_distances", True, text, note=True)
    for width in widths:
        path = table_path(folder, codes, width)
        try:
            load_table(path, codes, width)
            yield Finding(part, path.name, True, f"{codes} codes, {width} neighbours each")
        except ValueError as error:
            yield Finding(part, path.name, False, str(error))
