"""`inspect`: what the files of a checkpoint are, what they lack, and the memory that a run with them takes.

Only headers of weight files are read. A file that is missing or damaged is a line of the report, not its end.
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from configs.fields import SettingsError
from configs.methods import METHODS
from configs.targets import SOURCES
from configs.tools import InspectSettings
from decoding.cache import CacheShape, KVCache
from drafters.loading import eagle_network
from models.base import TargetOptions, TransformerSpec
from models.files.folders import checkpoint_folder
from models.files.headers import TensorInfo, read_header
from models.files.weights import Network, listed_files, placed_keys, read_json
from models.linear import packed_bytes
from models.registry import FAMILIES
from models.targets.family import Family
from runs.session import DTYPES, target_options

_FLAGS = {"text encoder": "text_encoder_path", "image tokenizer": "vq_path"}  # of LlamaGen's parts
_TREE = METHODS["eagle2"]  # the largest tree of the defaults: caches have room for its nodes


@dataclass(frozen=True)
class Finding:
    """One line of the report; details: every single difference, where there are any."""

    part: str
    item: str
    fits: bool
    text: str
    details: tuple[str, ...] = ()


@dataclass(frozen=True)
class Part:
    """A network's findings; network and folder are None where they could not be found out."""

    findings: tuple[Finding, ...]
    network: Network | None = None
    folder: Path | None = None


@dataclass(frozen=True)
class Report:
    """findings: line by line. memory: bytes by what takes them, without activations."""

    findings: tuple[Finding, ...]
    memory: dict[str, int]

    @property
    def faults(self) -> int:
        return sum(not finding.fits for finding in self.findings)


@dataclass(frozen=True)
class Place:
    """Where a network is looked for: part of the report, flag, its value, and where users get the files."""

    part: str
    flag: str
    path: str
    source: str


def inspect_checkpoint(settings: InspectSettings) -> None:
    """Print the report; a SettingsError, after it, if something is missing, damaged or does not fit."""
    report = examine(settings)
    print(as_json(report) if settings.json else as_table(report, settings))
    if report.faults:
        raise SettingsError(
            f"--model_path {settings.model_path}: found {report.faults} faults, listed above; allowed: none"
        )


def examine(settings: InspectSettings) -> Report:
    """Look at target, tokenizers and drafter."""
    family = FAMILIES[settings.model]
    place = Place(
        "target", "--model_path", settings.model_path, SOURCES[settings.model]["model_path"]
    )
    target = look_at(place, lambda config, name: family.network(config))
    parts, memory = (
        [target],
        _network_memory("target", target.network, settings, _TREE["nodes"] + 1),
    )
    findings = list(target.findings)
    if target.folder is not None:
        options = target_options(settings, DTYPES[settings.dtype], torch.device("cpu"))
        checks, sizes = _checks(family, target.folder, options, SOURCES[settings.model])
        findings += checks
        memory |= sizes
    if settings.drafter_path is not None:
        place = Place(
            "drafter",
            "--drafter_path",
            settings.drafter_path,
            SOURCES[settings.model]["drafter_path"],
        )
        parts.append(
            look_at(place, lambda config, name: _drafter(family, config, _spec_of(target), name))
        )
        findings += parts[-1].findings
        room = _TREE["depth"] * _TREE["width"] + _TREE["nodes"]
        memory |= _network_memory("drafter", parts[-1].network, settings, room)
    else:
        source = SOURCES[settings.model]["drafter_path"]
        words = f"no --drafter_path and none in {settings.model_path}: only --method ar runs; source: {source}"
        findings.append(Finding("drafter", "folder", True, words))
    return Report(tuple(findings), memory)


def _drafter(family: Family, config: dict, target: TransformerSpec, name: str) -> Network:
    return eagle_network(config, family.drafter(config, target), target, name)


def _spec_of(target: Part) -> TransformerSpec:
    if target.network is None:
        raise ValueError("not compared: the target's own configuration cannot be used")
    return target.network.module.spec


def look_at(place: Place, build: Callable[[dict, str], Network]) -> Part:
    """Folder, configuration, weight files and keys of one network; build(config, file's name) may raise ValueError."""
    try:
        folder = checkpoint_folder(place.path, place.flag, download=False)
    except ValueError as error:
        return Part((Finding(place.part, "folder", False, f"{error}; source: {place.source}"),))
    network, name = None, folder / "config.json"
    try:
        network = build(read_json(name), str(name))
        findings = [Finding(place.part, "config.json", True, _spec_words(network.module.spec))]
    except ValueError as error:
        findings = [Finding(place.part, "config.json", False, str(error))]
    stored, unread, files = _look_at_files(place, folder)
    findings += files
    if stored:
        findings.append(Finding(place.part, "stored", True, _stored_words(stored)))
    if network is not None and stored:
        faults = network.faults({key: info.shape for key, info in stored.items()}, unread)
        skipped = f"; {len(unread)} keys are in files that cannot be read" if unread else ""
        words = (
            f"{len(faults)} differences"
            if faults
            else f"{len(network.keys)} keys and shapes as expected"
        )
        findings.append(Finding(place.part, "keys", not faults, words + skipped, tuple(faults)))
    return Part(tuple(findings), network, folder)


def _look_at_files(
    place: Place, folder: Path
) -> tuple[dict[str, TensorInfo], set[str], list[Finding]]:
    """The tensors in the weight files that can be read, the keys that the index places in others, and a line per
    file."""
    try:
        files, placed = listed_files(folder), placed_keys(folder)
    except ValueError as error:
        return (
            {},
            set(),
            [Finding(place.part, "weights", False, f"{error}; source: {place.source}")],
        )
    stored: dict[str, TensorInfo] = {}
    unread: set[str] = set()
    findings = []
    for file in files:
        try:
            if not file.is_file():
                raise ValueError(f"missing; source: {place.source}")
            header = read_header(file)
            words = f"{len(header)} tensors, {_size(file.stat().st_size)}"
            stored |= header
            findings.append(Finding(place.part, file.name, True, words))
        except ValueError as error:
            unread |= {key for key, shard in placed.items() if shard == file}
            findings.append(Finding(place.part, file.name, False, str(error)))
    return stored, unread, findings


def _checks(
    family: Family, folder: Path, options: TargetOptions, sources: Mapping[str, str]
) -> tuple[list[Finding], dict[str, int]]:
    """A line, and the bytes, of every other part; sources: where users get the parts that have flags, by flag."""
    findings, sizes = [], {}
    for part, check in {**family.checks, "agreement": family.agreement}.items():
        if check is None or part == "agreement" and not all(finding.fits for finding in findings):
            continue  # there is nothing to compare, or it would only repeat a fault
        try:
            found = check(folder, options)
            findings.append(Finding(part, "files", True, found.text))
            sizes |= {part: found.bytes} if found.bytes else {}
        except ValueError as error:
            source = sources.get(_FLAGS.get(part, ""))
            findings.append(
                Finding(
                    part, "files", False, f"{error}; source: {source}" if source else str(error)
                )
            )
    return findings, sizes


def _network_memory(
    name: str, network: Network | None, settings: InspectSettings, room: int
) -> dict[str, int]:
    """Bytes of the weights as they are loaded, of their copies, and of the keys and values of the batch."""
    if network is None:
        return {}
    dtype, spec = DTYPES[settings.dtype], network.module.spec
    shape = CacheShape(settings.batch_size, settings.guidance, spec.max_positions + room)
    cache = KVCache(spec, shape, dtype, torch.device("meta"))
    weights = sum(parameter.numel() for parameter in network.module.parameters()) * dtype.itemsize
    packed = packed_bytes(network.module, dtype)
    copies = {f"{name} copies on x86 CPUs": packed} if packed else {}
    return {f"{name} weights": weights, **copies, f"{name} keys and values": cache.nbytes}


def _spec_words(spec: TransformerSpec) -> str:
    sizes = f"{spec.layers} layers, hidden {spec.hidden}, {spec.heads} heads"
    return f"{sizes}, {spec.vocab} ids, {spec.max_positions} places"


def _stored_words(stored: Mapping[str, TensorInfo]) -> str:
    types = Counter(info.dtype for info in stored.values())
    words = ", ".join(f"{dtype} ({count} tensors)" for dtype, count in types.most_common())
    return f"{sum(info.count for info in stored.values()):,} parameters: {words}"


def _size(count: int) -> str:
    """Bytes in words."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"


def as_table(report: Report, settings: InspectSettings) -> str:
    """The report for readers, with every difference on a line of its own."""
    widths = [
        max(len(getattr(finding, name)) for finding in report.findings) for name in ("part", "item")
    ]
    lines = []
    for finding in report.findings:
        state = "ok   " if finding.fits else "FAULT"
        text = " ".join(finding.text.split())
        lines.append(f"{finding.part:{widths[0]}}  {finding.item:{widths[1]}}  {state}  {text}")
        lines += [f"    {detail}" for detail in finding.details]
    rows = f"{settings.batch_size} images x {settings.guidance} rows"
    lines += [
        "",
        f"memory, {settings.dtype}, {rows}, prompts as long as they may be, without activations:",
    ]
    memory = report.memory | {"together": sum(report.memory.values())}
    return "\n".join(
        [*lines, *(f"  {name:26} {_size(count):>10}" for name, count in memory.items())]
    )


def as_json(report: Report) -> str:
    """The report for programs, on one line; memory in bytes."""
    findings = [asdict(finding) for finding in report.findings]
    return json.dumps({"fits": not report.faults, "findings": findings, "memory": report.memory})
