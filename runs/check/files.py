"""What a checkpoint's files are, what is missing or wrong, and the memory that they take.

It checks what `generate_images` checks before the first image, but goes on after a fault, so that
one report names all faults. Only the headers of weight files are read, unless speeds are timed.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
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
from models.files.folders import checkpoint_folder
from models.files.headers import TensorInfo, read_header
from models.files.network import Network
from models.files.recognition import refuse_other_model
from models.files.sizes import size_faults
from models.files.weights import listed_files, naming, placed_keys
from models.native import NoKernels
from models.probe import measured
from models.registry import FAMILIES
from models.targets.family import Check, Checked, Family, ImageSequence
from runs.check.memory import ImageTokens, cache_bytes, free_memory, memory_of
from runs.check.report import FAULT, NOTE, OK, Finding, Report, size
from runs.session import DTYPES, open_session, target_options
from runs.throughput import BATCHES, Speed, speeds_by_batch
from support.devices import pick_device
from support.extras import install
from support.json_files import read_object

_SHARE = 0.7  # of the free memory: activations are not counted


def examine_files(settings: InspectSettings) -> Report:
    """Look at target, its other parts, drafter and tables, and return all findings."""
    family = FAMILIES[settings.model]
    options = target_options(settings, DTYPES[settings.dtype], torch.device("cpu"))
    source = TARGETS[settings.model].sources["model_path"]
    files = NetworkFiles("target", "--model_path", settings.model_path, source)
    target = read_network(files, family.spec, family.network)
    folder = target.folder or Path(settings.model_path)
    parts = list(_parts(settings, family, folder, options, target.findings))
    drafter = _read_drafter(settings, family, target.spec)
    findings = [*_other_model(settings, target), *target.findings]
    findings += [finding for finding, _ in parts]
    image: ImageTokens | None = None
    if target.spec is not None and all(finding.state == OK for finding, _ in parts):
        finding, together = _check("parts", "together", family.compatible, folder, options)
        codes = family.codes(folder, options)
        findings += [finding, *_distance_tables(codes, folder)]
        if together.sequence is not None:
            image = ImageTokens(together.sequence.grid, codes)
            findings.append(_sequence(settings, target.spec, together.sequence))
    findings += [*_quantize_package(settings), *drafter.findings, *_kernels(settings)]
    memory = memory_of(settings, target.network, drafter.network, image)
    memory |= {finding.part: checked.bytes for finding, checked in parts if checked.bytes}
    report = Report(tuple(findings), memory)
    if settings.speed and not report.faults:
        return replace(report, speeds=_speeds(settings, target.network, drafter.network, image))
    return report


def _other_model(settings: InspectSettings, target: "NetworkReport") -> Iterator[Finding]:
    """Yield a row if the folder holds another model than --model says."""
    try:
        if target.folder is not None:
            refuse_other_model(settings.model, settings.model_path, target.folder)
    except ValueError as error:
        yield Finding("target", "model", FAULT, str(error))


@dataclass(frozen=True)
class NetworkFiles:
    """Where the files of one network are."""

    part: str  # of the report
    flag: str  # that names the folder
    path: str
    source: str  # where users get the files

    def finding(self, item: str, text: str | ValueError, state: str = OK) -> Finding:
        """Return a row about one of the files; a ValueError is a fault."""
        return Finding(self.part, item, FAULT if isinstance(text, ValueError) else state, str(text))

    def missing(self, item: str, fault: ValueError) -> Finding:
        """Return a row about files that users have to get first."""
        return self.finding(item, ValueError(f"{fault}; source: {self.source}"))


@dataclass(frozen=True)
class NetworkReport:
    """What the files of one network tell; None what they do not."""

    findings: tuple[Finding, ...]
    folder: Path | None = None
    spec: TransformerSpec | None = None
    network: Network | None = None


@dataclass(frozen=True)
class StoredWeights:
    """The tensors in readable weight files, and the keys that the index places in others."""

    tensors: dict[str, TensorInfo] = field(default_factory=dict)
    unread: set[str] = field(default_factory=set)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes by key."""
        return {key: info.shape for key, info in self.tensors.items()}


def read_network(
    files: NetworkFiles,
    spec_of: Callable[[dict], TransformerSpec] | None,
    network_of: Callable[[dict], Network] | None,
) -> NetworkReport:
    """Look at folder, config.json, weight files and keys of one network.

    Args:
        files: where they are.
        spec_of, network_of: what a config.json stands for; ValueError for an entry that cannot be
            used. None: there is nothing to compare it with.
    """
    try:
        folder = checkpoint_folder(files.path, files.flag, download=False)
    except ValueError as error:
        return NetworkReport((files.missing("folder", error),))
    stored = StoredWeights()
    weights = _read_weights(files, folder, stored)
    spec, network = None, None
    try:
        config = read_object(folder / "config.json")
        if spec_of is None:
            row = files.finding("config.json", "not compared: the target's cannot be used", NOTE)
            return NetworkReport((row, *weights), folder)
        with naming(folder):
            spec = spec_of(config)
            if faults := size_faults(config, stored.shapes, stored.unread):
                raise ValueError(f"config.json: {'; '.join(faults)}")
        if stored.tensors:  # sizes that no weights confirm might be too large to be built
            network = network_of(config)
    except ValueError as error:
        return NetworkReport((files.finding("config.json", error), *weights), folder)
    findings = [files.finding("config.json", _spec_words(spec)), *weights]
    if network is not None:
        findings.append(_compare_keys(files.part, network, stored))
    return NetworkReport(tuple(findings), folder, spec, network)


def _read_weights(files: NetworkFiles, folder: Path, stored: StoredWeights) -> list[Finding]:
    """Read the headers of the weight files into `stored`, and return a row per file."""
    try:
        paths, shards = listed_files(folder), placed_keys(folder)
    except ValueError as error:
        return [files.missing("weights", error)]
    findings = []
    for path in paths:
        try:
            if not path.is_file():
                raise ValueError(f"missing; source: {files.source}")
            header = read_header(path)
        except ValueError as error:
            stored.unread.update(key for key, shard in shards.items() if shard == path)
            findings.append(files.finding(path.name, error))
            continue
        stored.tensors.update(header)
        words = f"{len(header)} tensors, {size(path.stat().st_size)}"
        findings.append(files.finding(path.name, words))
    if stored.tensors:
        types = Counter(info.dtype for info in stored.tensors.values())
        words = ", ".join(f"{dtype} ({count} tensors)" for dtype, count in types.most_common())
        count = sum(info.count for info in stored.tensors.values())
        findings.append(files.finding("stored", f"{count:,} parameters: {words}"))
    return findings


def _compare_keys(part: str, network: Network, stored: StoredWeights) -> Finding:
    """Compare the keys and shapes of the readable files with those of the network."""
    faults = network.faults(stored.shapes, stored.unread)
    fitting = f"{len(network.keys)} keys and shapes as expected"
    words = f"{len(faults)} differences" if faults else fitting
    if stored.unread:
        words += f"; {len(stored.unread)} keys are in files that cannot be read"
    return Finding(part, "keys", FAULT if faults else OK, words, tuple(faults))


def _spec_words(spec: TransformerSpec) -> str:
    sizes = f"{spec.layers} layers, hidden {spec.hidden}, {spec.heads} heads"
    return f"{sizes}, {spec.vocab} ids, {spec.max_positions} positions"


def _parts(
    settings: InspectSettings,
    family: Family,
    folder: Path,
    options: TargetOptions,
    target: Sequence[Finding],
) -> Iterator[tuple[Finding, Checked]]:
    """Yield a row about every part next to the transformer, and what was found.

    A fault that the target's rows tell already is told as a note.
    """
    told = {finding.text for finding in target if not finding.fits}
    for name, component in family.parts.items():
        finding, checked = _check(name, "files", component.check, folder, options)
        if finding.text in told:
            finding = replace(finding, state=NOTE, text=f"not read: {finding.text}")
        elif component.flag and not finding.fits:
            text = f"{finding.text}; source: {TARGETS[settings.model].sources[component.flag]}"
            finding = replace(finding, text=text)
        yield finding, checked


def _check(
    part: str, item: str, check: Check, folder: Path, options: TargetOptions
) -> tuple[Finding, Checked]:
    """Return the row of a check and what it has found."""
    try:
        checked = check(folder, options)
    except ValueError as error:
        return Finding(part, item, FAULT, str(error)), Checked(str(error))
    return Finding(part, item, OK, checked.text), checked


def _sequence(settings: InspectSettings, spec: TransformerSpec, sequence: ImageSequence) -> Finding:
    """Return a row about the positions that an image leaves for its prompt."""
    grid, needed = sequence.grid, sequence.grid.slots(sequence.grid.tokens)
    ends = f" and {grid.rows} row ends" if needed > grid.tokens else ""
    room = spec.max_positions - needed
    words = f"{grid.tokens:,} image tokens{ends} of {spec.max_positions:,} positions"
    if fits := sequence.shortest <= room:
        words += f": prompts of up to {room:,} tokens"
    else:
        words += f" leave {room:,} for prompts, of which the shortest has {sequence.shortest:,}"
    words += f"; keys and values: {size(cache_bytes(settings, spec, 1))} a token"
    return Finding("target", "sequence", OK if fits else FAULT, words)


def _read_drafter(
    settings: InspectSettings, family: Family, target: TransformerSpec | None
) -> NetworkReport:
    """Look at the drafter's network and its calibration; a missing default drafter is a note."""
    source, path = TARGETS[settings.model].sources["drafter_path"], settings.drafter_path
    if path is None:
        free = " or ".join(name for name, entry in METHODS.items() if not entry.drafted)
        text = (
            f"none in {Path(settings.model_path) / 'drafter'} and no --drafter_path: only --method "
            f"{free} works; source: {source}"
        )
        return NetworkReport((Finding("drafter", "folder", NOTE, text),))

    def spec_of(config: dict) -> TransformerSpec:
        return family.drafter(config, target)

    def network_of(config: dict) -> Network:
        return drafter_network(config, spec_of(config), target, str(Path(path) / "config.json"))

    files = NetworkFiles("drafter", "--drafter_path", path, source)
    report = read_network(files, spec_of if target else None, network_of)
    findings = list(report.findings)
    if report.spec is not None and report.spec.rope_theta != target.rope_theta:
        # The value is used as the file gives it. A head trained with another one than its config
        # says still loads, and only drafts badly, so this row is the only hint.
        text = f"{report.spec.rope_theta:g}, the target's is {target.rope_theta:g}"
        findings.append(files.finding("rope_theta", f"{text}: right if it was trained so", NOTE))
    if report.folder is not None:
        findings.append(_calibration(files, report.folder))
    return replace(report, findings=tuple(findings))


def _calibration(files: NetworkFiles, folder: Path) -> Finding:
    """Return a row about the drafter's calibration.json."""
    try:
        count = len(Calibrations.read(folder).factors)
    except ValueError as error:
        return files.finding(FILE, error)
    if not count:
        return files.finding(FILE, "none: path scores are taken as they are", NOTE)
    return files.finding(FILE, f"for {count} sampling settings")


def _distance_tables(codes: int, folder: Path) -> Iterator[Finding]:
    """Yield a row about every table of nearest codes, or a note that there is none."""
    title, widths = "nearest codes", table_widths(folder)
    if not widths:
        text = f"none, which --lantern needs: `main.py vq_distances --model_path {folder}` makes it"
        yield Finding(title, "vq_distances", NOTE, text)
    for width in widths:
        path = table_path(folder, codes, width)
        try:
            load_table(path, codes, width)
            yield Finding(title, path.name, OK, f"{codes} codes, {width} neighbours each")
        except ValueError as error:
            yield Finding(title, path.name, FAULT, str(error))


def _kernels(settings: InspectSettings) -> Iterator[Finding]:
    """Yield how fast compiled kernels are here, where the model would run on a CPU."""
    if pick_device(settings.device).type != "cpu":
        return
    try:
        timings = measured(DTYPES[settings.dtype])
    except NoKernels as error:
        yield Finding("kernels", settings.dtype, NOTE, f"torch's: {error}")
        return
    if not timings:
        yield Finding("kernels", settings.dtype, OK, "not measured yet; a run does")
    for stored, rows in timings.items():
        times = [
            f"{row.width} wide, {row.tokens} token{'s' * (row.tokens > 1)}: {row.speedup:.1f} times"
            for row in rows
        ]
        text = f"speed against torch's, {'; '.join(times)}"
        if stored != DTYPES[settings.dtype]:
            text = f"weights in {str(stored).removeprefix('torch.')}: {text}"
        yield Finding("kernels", settings.dtype, OK, text)


def _quantize_package(settings: InspectSettings) -> Iterator[Finding]:
    """Yield a note where --quantize needs a package that is not installed."""
    if settings.quantize is not None and find_spec("torchao") is None:
        text = f"--quantize {settings.quantize} needs torchao, not installed here"
        yield Finding("target", "quantize", NOTE, f"{text}: {install('quantize')}")


def _speeds(
    settings: InspectSettings, target: Network, drafter: Network | None, image: ImageTokens
) -> tuple[Speed, ...]:
    """Load the model, and time rounds of as many images at once as memory allows."""

    def needed(batch: int) -> int:
        memory = memory_of(replace(settings, batch_size=batch), target, drafter, image)
        return sum(count for name, count in memory.items() if not name.endswith("weights"))

    session = open_session(settings.engine)
    free = _SHARE * free_memory(session.target.device)
    return speeds_by_batch(session, [n for n in BATCHES if n == 1 or needed(n) < free])
