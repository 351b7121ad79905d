"""What `inspect` says about one network: its folder, config.json, weight files and keys."""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from models.base import TransformerSpec
from models.files.folders import checkpoint_folder
from models.files.headers import TensorInfo, read_header
from models.files.network import Network
from models.files.sizes import size_faults
from models.files.weights import listed_files, naming, placed_keys, read_json
from runs.findings import Finding, size


@dataclass(frozen=True)
class Outline:
    """What a config.json stands for; ValueError for an entry that cannot be used."""

    spec: Callable[[dict], TransformerSpec]
    network: Callable[[dict], Network]


@dataclass(frozen=True)
class Place:
    """Where a network's files are looked for.

    part: of the report. flag, path: what names the folder. source: where users get the files.
    outline: None if the config.json has nothing to be compared with.
    """

    part: str
    flag: str
    path: str
    source: str
    outline: Outline | None

    def finding(self, item: str, text: str | ValueError, note: bool = False) -> Finding:
        """Return a line about one of the files; a ValueError is a fault."""
        return Finding(self.part, item, isinstance(text, str), str(text), note=note)

    def missing(self, item: str, fault: ValueError) -> Finding:
        """Return a line about files that users have to get first."""
        return self.finding(item, ValueError(f"{fault}; source: {self.source}"))


@dataclass(frozen=True)
class Looked:
    """What was found out about a network; None what could not be."""

    findings: tuple[Finding, ...]
    folder: Path | None = None
    spec: TransformerSpec | None = None
    network: Network | None = None


@dataclass(frozen=True)
class StoredWeights:
    """The tensors in readable weight files, and the keys that the index places in others."""

    tensors: dict[str, TensorInfo]
    unread: set[str]

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes by key."""
        return {key: info.shape for key, info in self.tensors.items()}


def look_at(place: Place) -> Looked:
    """Look at folder, config.json, weight files and keys of one network."""
    try:
        folder = checkpoint_folder(place.path, place.flag, download=False)
    except ValueError as error:
        return Looked((place.missing("folder", error),))
    stored, files = _look_at_files(place, folder)
    try:
        spec, network = _build(place, folder, stored)
    except ValueError as error:
        return Looked((place.finding("config.json", error), *files), folder)
    if spec is None:
        line = place.finding("config.json", "not compared: the target's cannot be used", note=True)
        return Looked((line, *files), folder)
    findings = [place.finding("config.json", _spec_words(spec)), *files]
    if network is not None:
        findings.append(_compare_keys(place.part, network, stored))
    return Looked(tuple(findings), folder, spec, network)


def _build(
    place: Place, folder: Path, stored: StoredWeights
) -> tuple[TransformerSpec | None, Network | None]:
    """Return the sizes in config.json, and the network if the weights confirm them.

    Raises:
        ValueError: config.json is missing or damaged, or its entries cannot be used.
    """
    config = read_json(folder / "config.json")
    if place.outline is None:
        return None, None
    with naming(folder):
        spec = place.outline.spec(config)
        if not stored.tensors:  # nothing says that these sizes can be built
            return spec, None
        if faults := size_faults(config, stored.shapes, stored.unread):
            raise ValueError(f"config.json: {'; '.join(faults)}")
    return spec, place.outline.network(config)


def _look_at_files(place: Place, folder: Path) -> tuple[StoredWeights, list[Finding]]:
    """Read the headers of the weight files; return them and a line per file."""
    stored = StoredWeights({}, set())
    try:
        files, placed = listed_files(folder), placed_keys(folder)
    except ValueError as error:
        return stored, [place.missing("weights", error)]
    findings = []
    for file in files:
        try:
            found = _look_at_file(place, file, stored)
        except ValueError as error:
            stored.unread.update(key for key, shard in placed.items() if shard == file)
            found = place.finding(file.name, error)
        findings.append(found)
    if stored.tensors:
        findings.append(place.finding("stored", _stored_words(stored.tensors)))
    return stored, findings


def _look_at_file(place: Place, file: Path, stored: StoredWeights) -> Finding:
    """Add a weight file's tensors to those stored; ValueError if it is missing or damaged."""
    if not file.is_file():
        raise ValueError(f"missing; source: {place.source}")
    header = read_header(file)
    stored.tensors.update(header)
    return place.finding(file.name, f"{len(header)} tensors, {size(file.stat().st_size)}")


def _compare_keys(part: str, network: Network, stored: StoredWeights) -> Finding:
    """Compare the keys and shapes of the readable files with those of the network."""
    faults = network.faults(stored.shapes, stored.unread)
    fitting = f"{len(network.keys)} keys and shapes as expected"
    words = f"{len(faults)} differences" if faults else fitting
    if stored.unread:
        words += f"; {len(stored.unread)} keys are in files that cannot be read"
    return Finding(part, "keys", not faults, words, tuple(faults))


def _spec_words(spec: TransformerSpec) -> str:
    sizes = f"{spec.layers} layers, hidden {spec.hidden}, {spec.heads} heads"
    return f"{sizes}, {spec.vocab} ids, {spec.max_positions} positions"


def _stored_words(stored: Mapping[str, TensorInfo]) -> str:
    types = Counter(info.dtype for info in stored.values())
    words = ", ".join(f"{dtype} ({count} tensors)" for dtype, count in types.most_common())
    return f"{sum(info.count for info in stored.values()):,} parameters: {words}"
