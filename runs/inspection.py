"""`inspect`: what the files of a checkpoint are, what is missing or wrong, and the memory they take.

It checks what `generate_images` checks before the first image, but goes on after a fault, so that one
report names them all. Of weight files it reads the headers only.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from configs.methods import METHODS, MethodSettings
from configs.targets import SOURCES
from configs.tools import InspectSettings
from decoding.cache import CacheShape, KVCache
from drafters.calibrations import FILE, Calibrations
from drafters.loading import eagle_network
from models.base import TargetOptions, TransformerSpec
from models.codecs.codebook import load_table, table_path, table_widths
from models.files.folders import checkpoint_folder
from models.files.headers import TensorInfo, read_header
from models.files.network import Network
from models.files.sizes import size_faults
from models.files.weights import listed_files, placed_keys, read_json
from models.linear import packed_bytes
from models.registry import FAMILIES
from models.targets.family import Check, Family
from runs.findings import Finding, Report, as_json, as_table, size
from runs.session import DTYPES, target_options
from support.border import Failure


@dataclass(frozen=True)
class Place:
    """Where a network's files are looked for, and what their config.json stands for.

    part: of the report. flag, path: what names the folder. source: where users get the files.
    spec, network: config.json -> sizes, network; ValueError for a fault.
    """

    part: str
    flag: str
    path: str
    source: str
    spec: Callable[[dict], TransformerSpec]
    network: Callable[[dict], Network]

    def finding(self, item: str, fault: ValueError | None, text: str = "") -> Finding:
        """Return a line about one of the files; with a fault, that is its text."""
        return Finding(self.part, item, fault is None, text if fault is None else str(fault))


@dataclass(frozen=True)
class Looked:
    """What was found out about a network; the others are None where it could not be."""

    findings: tuple[Finding, ...]
    folder: Path | None = None
    spec: TransformerSpec | None = None
    network: Network | None = None


@dataclass(frozen=True)
class StoredWeights:
    """The tensors in weight files that can be read, and the keys that the index places in others."""

    tensors: dict[str, TensorInfo]
    unread: set[str]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes by key."""
        return {key: info.shape for key, info in self.tensors.items()}


def inspect_checkpoint(settings: InspectSettings) -> None:
    """Print the report; a Failure, after it, if `generate_images` would refuse the files."""
    report = examine(settings)
    print(as_json(report) if settings.json else as_table(report, settings))
    if report.faults:
        lines = "1 fault" if report.faults == 1 else f"{report.faults} faults"
        raise Failure(
            f"--model_path {settings.model_path}: {lines} in the report; generate_images would "
            "refuse these files"
        )


def examine(settings: InspectSettings) -> Report:
    """Look at target, its other parts, the drafter and the tables, and return all that was found."""
    family, sources = FAMILIES[settings.model], SOURCES[settings.model]
    options = target_options(settings, DTYPES[settings.dtype], torch.device("cpu"))
    flag, path = "--model_path", settings.model_path
    place = Place("target", flag, path, sources["model_path"], family.spec, family.network)
    target = look_at(place)
    folder = target.folder or Path(path)
    largest = MethodSettings("eagle2")  # of the default trees: caches have room for its nodes
    memory = _network_memory("target", target.network, settings, largest.nodes + 1)
    findings = list(target.findings)
    for finding, count in _parts(family, folder, options, sources):
        findings.append(finding)
        memory |= {finding.part: count} if count else {}
    if target.spec is not None and all(finding.fits for finding in findings):
        findings.append(_check("parts", "together", family.compatible, folder, options)[0])
    drafter = _look_at_drafter(settings, family, target.spec)
    room = largest.depth * largest.width + largest.nodes
    memory |= _network_memory("drafter", drafter.network, settings, room)
    return Report((*findings, *drafter.findings, *_tables(family, folder, options)), memory)


def look_at(place: Place) -> Looked:
    """Look at folder, config.json, weight files and keys of one network."""
    try:
        folder = checkpoint_folder(place.path, place.flag, download=False)
    except ValueError as error:
        fault = ValueError(f"{error}; source: {place.source}")
        return Looked((place.finding("folder", fault),))
    stored, files = _look_at_files(place, folder)
    spec = network = None
    findings = []
    try:
        config = read_json(folder / "config.json")
        spec = place.spec(config)
        if faults := stored.tensors and size_faults(config, stored.shapes, stored.unread):
            raise ValueError(f"{folder / 'config.json'}: {'; '.join(faults)}")
        if stored.tensors:  # else nothing says that these sizes can be built
            network = place.network(config)
        findings.append(place.finding("config.json", None, _spec_words(spec)))
    except ValueError as error:
        findings.append(place.finding("config.json", error))
    findings += files
    if network is not None:
        findings.append(_compare_keys(place.part, network, stored))
    return Looked(tuple(findings), folder, spec, network)


def _look_at_files(place: Place, folder: Path) -> tuple[StoredWeights, list[Finding]]:
    """Read the headers of the weight files; return them and a line per file."""
    stored = StoredWeights({}, set())
    try:
        files, placed = listed_files(folder), placed_keys(folder)
    except ValueError as error:
        fault = ValueError(f"{error}; source: {place.source}")
        return stored, [place.finding("weights", fault)]
    findings = []
    for file in files:
        try:
            if not file.is_file():
                raise ValueError(f"missing; source: {place.source}")
            header = read_header(file)
            stored.tensors.update(header)
            words = f"{len(header)} tensors, {size(file.stat().st_size)}"
            findings.append(place.finding(file.name, None, words))
        except ValueError as error:
            stored.unread.update(key for key, shard in placed.items() if shard == file)
            findings.append(place.finding(file.name, error))
    if stored.tensors:
        findings.append(place.finding("stored", None, _stored_words(stored.tensors)))
    return stored, findings


def _compare_keys(part: str, network: Network, stored: StoredWeights) -> Finding:
    """Compare the keys and shapes of the readable files with those of the network."""
    faults = network.faults(stored.shapes, stored.unread)
    fitting = f"{len(network.keys)} keys and shapes as expected"
    words = f"{len(faults)} differences" if faults else fitting
    if stored.unread:
        words += f"; {len(stored.unread)} keys are in files that cannot be read"
    return Finding(part, "keys", not faults, words, tuple(faults))


def _parts(
    family: Family, folder: Path, options: TargetOptions, sources: Mapping[str, str]
) -> Iterator[tuple[Finding, int]]:
    """Yield a line about every part next to the transformer, and the bytes that it takes."""
    for name, part in family.parts.items():
        source = sources[part.flag] if part.flag else None
        yield _check(name, "files", part.check, folder, options, source)


def _check(
    name: str,
    item: str,
    check: Check,
    folder: Path,
    options: TargetOptions,
    source: str | None = None,
) -> tuple[Finding, int]:
    try:
        found = check(folder, options)
    except ValueError as error:
        text = f"{error}; source: {source}" if source else str(error)
        return Finding(name, item, False, text), 0
    return Finding(name, item, True, found.text), found.bytes


def _look_at_drafter(
    settings: InspectSettings, family: Family, target: TransformerSpec | None
) -> Looked:
    """Look at the drafter's network and its calibration; a missing default drafter is a note."""
    source, path = SOURCES[settings.model]["drafter_path"], settings.drafter_path
    if path is None:
        free = [name for name in METHODS if not MethodSettings(name).drafted]
        text = (
            f"none in {Path(settings.model_path) / 'drafter'} and no --drafter_path: only --method "
            f"{' or '.join(free)} works; source: {source}"
        )
        return Looked((Finding("drafter", "folder", True, text, note=True),))
    if target is None:
        text = "not looked at: it is compared with the target's config.json"
        return Looked((Finding("drafter", "files", True, text, note=True),))

    def network(config: dict) -> Network:
        name = str(Path(path) / "config.json")
        return eagle_network(config, family.drafter(config, target), target, name)

    place = Place(
        "drafter",
        "--drafter_path",
        path,
        source,
        lambda config: family.drafter(config, target),
        network,
    )
    drafter = look_at(place)
    return drafter if drafter.folder is None else _with_calibration(place, drafter)


def _with_calibration(place: Place, drafter: Looked) -> Looked:
    """Add a line about the drafter's calibration.json."""
    try:
        count = len(Calibrations.read(drafter.folder).factors)
        there = (drafter.folder / FILE).is_file()
        words = f"for {count} sampling settings" if there else "none: path scores stay as they are"
        finding = Finding(place.part, FILE, True, words, note=not there)
    except ValueError as error:
        finding = place.finding(FILE, error)
    findings = (*drafter.findings, finding)
    return Looked(findings, drafter.folder, drafter.spec, drafter.network)


def _tables(family: Family, folder: Path, options: TargetOptions) -> Iterator[Finding]:
    """Yield a line about every table of nearest codes, or a note that there is none."""
    part = "nearest codes"
    try:
        codes = family.codes(folder, options)
    except ValueError:
        return  # the image tokenizer's line says it
    widths = table_widths(folder)
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


def _network_memory(
    name: str, network: Network | None, settings: InspectSettings, room: int
) -> dict[str, int]:
    """Return the bytes of the loaded weights, of their copies, and of the batch's KV cache."""
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
    return f"{sizes}, {spec.vocab} ids, {spec.max_positions} positions"


def _stored_words(stored: Mapping[str, TensorInfo]) -> str:
    types = Counter(info.dtype for info in stored.values())
    words = ", ".join(f"{dtype} ({count} tensors)" for dtype, count in types.most_common())
    return f"{sum(info.count for info in stored.values()):,} parameters: {words}"
