"""`inspect`: what a checkpoint's files are, what is missing or wrong, and the memory they take.

It opens the same files as `generate_images`, by the same functions, and prints what these raise. It
goes on after a fault, so that one report names all. Only the headers of weight files are read,
unless --run loads the model.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

import torch

from configs.methods import METHODS, MethodSettings, undrafted_methods
from configs.model import EngineSettings
from configs.targets import TARGETS
from configs.tools import InspectSettings
from drafters.loading import drafter_network
from models.base import ImageVocab, TargetOptions, TransformerSpec
from models.codecs.codebook import how_to_make, load_table, tables
from models.codecs.peak import META_DEVICE
from models.files.folders import LOCAL, open_folder
from models.files.network import Network, fitting_spec
from models.files.tensors import TensorInfo, read_header
from models.files.weights import read_config
from models.registry import family_of
from models.targets.family import Checked, Together
from runs.check.memory import memory_of
from runs.check.report import FAULT, NOTE, OK, Bytes, Finding, memory_table, size, table
from runs.session import DTYPES, target_options
from support.border import Failure
from support.extras import install
from support.progress import plural
from support.scope import during

C = TypeVar("C", Checked, Together)


def inspect_checkpoint(settings: InspectSettings) -> None:
    """Print the report about the files and, with --run, about the loaded model.

    A Failure after the report, if a file or the loaded model is at fault.
    """
    engine = settings.engine
    files = Examination(engine)
    print(*table(files.rows), sep="\n")
    if files.memory:
        print(*memory_table(files.memory, engine), sep="\n")
    faults = [row.name for row in files.rows if not row.fits]
    refused = "; generate_images would refuse these files" if faults else ""
    if settings.run and not faults:
        from runs.check.loaded import run_checks

        checks = [*run_checks(engine)]
        print("", *table(checks), sep="\n")
        faults = [check.name for check in checks if not check.fits]
    if faults:
        raise Failure(f"--model_path {engine.model_path}: at fault: {', '.join(faults)}{refused}")


class Examination:
    """The findings about target, its other parts, drafter and tables, and what memory they take."""

    @during(LOCAL, True)  # files of the hub are looked at if they are here
    def __init__(self, settings: EngineSettings, methods: Sequence[MethodSettings] | None = None):
        """methods: whose memory counts; None: all that the files serve."""
        self.settings, self.rows = settings, list[Finding]()
        self.methods = [MethodSettings(name) for name in METHODS] if methods is None else methods
        self.folder = Path(settings.model_path)  # or its snapshot, once that is found
        self.family, self.sources = family_of(settings.model), TARGETS[settings.model].sources
        self.options = target_options(settings, DTYPES[settings.dtype], torch.device("cpu"))
        self.memory: dict[str, Bytes] = {}  # by part, without activations; none after a fault
        family = self.family
        target = self._network(
            "target", "model_path", family.spec, lambda config, _: family.network(config)
        )
        parts = {
            name: self._checked(name, "files", check, flag)
            for name, (check, flag) in family.parts.items()
        }
        self.together: Together | None = None  # the image that fitting parts make
        if target is not None and None not in parts.values():
            self.together = self._checked("parts", "together", family.compatible)
        if self.together is not None:
            self._look_at_distance_tables(self.together.codes)
        drafter = self._look_at_drafter(target)
        if settings.quantize in ("int8", "int4") and find_spec("torchao") is None:
            kind = f"--quantize {settings.quantize} needs torchao, not installed here"
            self._add("target", "quantize", f"{kind}: {install('quantize')}", NOTE)
        if self.together is not None and not self.faults:
            self.memory = self._memory(self.together, drafter)
            counts = {name: checked.bytes for name, checked in parts.items() if checked}
            if family.decoded:
                files = family.image_files(self.folder, self.options)
                codec = files.open(files.network().module, META_DEVICE)
                work = codec.decoding_bytes(self.together.grid)
                counts[f"{family.image_part} at work"] = work
            self.memory |= {name: (count, count) for name, count in counts.items() if count}

    @property
    def faults(self) -> list[Finding]:
        """The faults that keep these methods from working."""
        drafted = any(method.drafted for method in self.methods)
        return [row for row in self.rows if not row.fits and (drafted or row.part != "drafter")]

    def _memory(self, together: Together, drafter: Network | None) -> dict[str, Bytes]:
        """Return the bytes of networks and engine, by part."""
        if not any(method.drafted for method in self.methods):
            drafter = None
        served = [method for method in self.methods if drafter is not None or not method.drafted]
        # with a head for the codes that there are, of which config.json may say nothing
        network = self.family.network(read_config(self.folder), ImageVocab(0, together.codes))
        return memory_of(network, drafter, together, self.settings, served)

    def _add(
        self, part: str, item: str, text: str, state: str = OK, details: Sequence[str] = ()
    ) -> None:
        self.rows.append(Finding(part, item, state, text, tuple(details)))

    @contextmanager
    def _catching(self, part: str, item: str, flag: str = "") -> Iterator[None]:
        """Turn a ValueError of the block into a fault, told once.

        flag: of files that users have to get, whose source is named.
        """
        try:
            yield
        except ValueError as error:
            source = self.sources.get(flag, "")
            more = f"; source: {source}" if source and source not in str(error) else ""
            if any(str(error) in row.text for row in self.rows if not row.fits):
                self._add(part, item, f"not read: {error}", NOTE)
            else:
                self._add(part, item, f"{error}{more}", FAULT)

    def _checked(
        self,
        part: str,
        item: str,
        check: Callable[[Path, TargetOptions], C],
        flag: str | None = None,
    ) -> C | None:
        """Add the row of a check; returns what it has found, None after a fault."""
        with self._catching(part, item, flag or ""):
            checked = check(self.folder, self.options)
            self._add(part, item, checked.text)
            return checked
        return None

    def _network(
        self,
        part: str,
        flag: str,
        spec_of: Callable[[dict], TransformerSpec],
        network_of: Callable[[dict, TransformerSpec], Network],
    ) -> Network | None:
        """Add the rows of a network's files; returns the network, None after a fault.

        spec_of, network_of: what a config.json stands for; ValueError for an unusable entry.
        """
        headers: dict[str, TensorInfo] = {}
        with self._catching(part, "files", flag):
            folder = open_folder(flag, getattr(self.settings, flag), self.settings.model)
            if flag == "model_path":
                self.folder = folder.path
            for path in folder.weights:
                with self._catching(part, path.name):
                    headers |= read_header(path)
        if not headers:
            return None
        types = Counter(info.dtype for info in headers.values())
        words = ", ".join(f"{dtype} ({count} tensors)" for dtype, count in types.most_common())
        count = sum(info.count for info in headers.values())
        stored = size(sum(path.stat().st_size for path in folder.weights))
        files = plural(len(folder.weights), "file")
        self._add(part, "weights", f"{files}, {stored}, {count:,} parameters: {words}")
        shapes = {key: info.shape for key, info in headers.items()}
        with self._catching(part, "config.json"):
            spec = fitting_spec(folder.path, folder.config, shapes, spec_of)
            network = network_of(folder.config, spec)
            sizes = f"{plural(spec.layers, 'layer')}, hidden {spec.hidden}, "
            sizes += plural(spec.heads, "head")
            text = f"{sizes}, {spec.vocab} ids, {spec.max_positions} positions"
            self._add(part, "config.json", text)
            if all(row.fits for row in self.rows if row.part == part):
                faults = network.faults(shapes)
                fitting = f"{len(network.keys)} keys and shapes as expected"
                text = f"{len(faults)} differences" if faults else fitting
                self._add(part, "keys", text, FAULT if faults else OK, faults)
            return network
        return None

    def _look_at_drafter(self, target: Network | None) -> Network | None:
        """Look at the drafter's network, and return it; a missing default drafter is a note."""
        settings, path = self.settings, self.settings.drafter_path
        if path is None:
            text = (
                f"none in {Path(settings.model_path) / 'drafter'} and no --drafter_path: only "
                f"--method {undrafted_methods()} works; source: {self.sources['drafter_path']}"
            )
            self._add("drafter", "folder", text, NOTE)
            return None
        if target is None:
            self._add("drafter", "files", "not compared: the target's cannot be used", NOTE)
            return None
        reads, name = target.module.spec, str(Path(path) / "config.json")
        drafter = self._network(
            "drafter",
            "drafter_path",
            lambda config: self.family.drafter(config, reads),
            lambda config, spec: drafter_network(config, spec, reads, name),
        )
        if drafter is not None and (theta := drafter.module.spec.rope_theta) != reads.rope_theta:
            # The value is used as the file gives it. A head trained with another one than its
            # config says still loads, and only drafts badly, so this row is the only hint.
            bases = f"{theta:g}, the target's is {reads.rope_theta:g}"
            self._add("drafter", "rope_theta", f"{bases}: right if it was trained so", NOTE)
        return drafter

    def _look_at_distance_tables(self, codes: int) -> None:
        title, folder = "nearest codes", self.folder
        if not (there := tables(folder)):
            how = how_to_make(self.settings.model, folder)
            text = f"none, which --verifier lantern needs: {how}"
            self._add(title, "vq_distances", text, NOTE)
        for width, path in there.items():
            with self._catching(title, path.name):
                load_table(path, codes, width)
                self._add(title, path.name, f"{codes} codes, {width} neighbours each")
