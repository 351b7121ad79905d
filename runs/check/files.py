"""`inspect`: what a checkpoint's files are, what is missing or wrong, and the memory they take.

It checks what `generate_images` checks before the first image, but goes on after a fault, so that
one report names all faults. Only the headers of weight files are read, unless --run
loads the model.
"""

import shlex
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch

from configs.fields import one_of, refusing
from configs.methods import METHODS
from configs.targets import TARGETS
from configs.tools import InspectSettings
from drafters.loading import drafter_network
from models.base import ImageGrid, TransformerSpec
from models.codecs.codebook import load_table, table_path, table_widths
from models.codecs.peak import META_DEVICE
from models.files.chameleon_parts import stored_names
from models.files.folders import checkpoint_folder
from models.files.network import Network, size_faults
from models.files.recognition import refuse_other_model
from models.files.weights import TensorInfo, listed_files, placed_keys, read_config, read_header
from models.registry import family_of
from models.targets.family import Check, Checked
from runs.check.memory import cache_bytes, memory_of
from runs.check.report import FAULT, NOTE, OK, Finding, Report, as_table, size
from runs.session import DTYPES, target_options
from support.border import Failure
from support.extras import install


def inspect_checkpoint(settings: InspectSettings) -> None:
    """Print the report about the files and, with --run, about the loaded model.

    A Failure after the report, if a file or the loaded model is at fault.
    """
    report = Examination(settings).report()
    if settings.run and not report.faults:
        from runs.check.loaded import run_checks

        report = replace(report, checks=tuple(run_checks(settings)))
    print(as_table(report, settings))
    if report.faults:
        names = ", ".join(finding.name for finding in report.faults)
        files = any(not finding.fits for finding in report.findings)
        refused = "; generate_images would refuse these files" if files else ""
        raise Failure(f"--model_path {settings.model_path}: at fault: {names}{refused}")


@dataclass
class NetworkFiles:
    """Where the files of one network are, and what they tell; None what they do not."""

    part: str  # of the report
    flag: str  # that names the folder
    path: str
    folder: Path | None = None
    spec: TransformerSpec | None = None
    network: Network | None = None
    tensors: dict[str, TensorInfo] = field(default_factory=dict)  # in readable files, by key
    unread: set[str] = field(default_factory=set)  # keys that the index places in other files

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {key: info.shape for key, info in self.tensors.items()}


class Examination:
    """Looks at one thing after the other; every method adds its rows to the report."""

    def __init__(self, settings: InspectSettings):
        self.settings, self.rows = settings, list[Finding]()
        self.family, self.sources = family_of(settings.model), TARGETS[settings.model].sources
        options = target_options(settings, DTYPES[settings.dtype], torch.device("cpu"))
        self.options = replace(options, download=False)

    def report(self) -> Report:
        """Look at target, its other parts, drafter and tables, and return all findings."""
        settings, family = self.settings, self.family
        target = NetworkFiles("target", "model_path", settings.model_path)
        self._look_at_network(target, family.spec, family.network)
        folder = target.folder or Path(settings.model_path)
        parts = self._look_at_parts(folder)
        image: tuple[ImageGrid, int] | None = None
        if target.spec is not None and None not in parts.values():
            together = self._check("parts", "together", family.compatible, folder)
            codes = family.image_codes(folder, self.options).count
            self._look_at_distance_tables(codes, folder)
            if together is not None:
                image = together.grid, codes
                self._compare_positions(target.spec, together)
        drafter = self._look_at_drafter(target.spec)
        self._look_at_quantization()
        memory = memory_of(settings, target.network, drafter, image)
        memory |= {name: part.bytes for name, part in parts.items() if part and part.bytes}
        if image is not None and family.decoded:
            files = family.image_files(folder, self.options)
            codec = files.open(files.network().module, META_DEVICE)
            memory[f"{family.image_part} at work"] = codec.decoding_bytes(image[0])
        return Report(tuple(self.rows), memory)

    def _add(
        self, part: str, item: str, text: str, state: str = OK, details: Sequence[str] = ()
    ) -> None:
        self.rows.append(Finding(part, item, state, text, tuple(details)))

    @contextmanager
    def _catching(self, part: str, item: str, flag: str | None = None) -> Iterator[None]:
        """Turn a ValueError of the block into a fault; flag: of files that users have to get."""
        try:
            yield
        except ValueError as error:
            source = f"; source: {self.sources[flag]}" if flag else ""
            self._add(part, item, f"{error}{source}", FAULT)

    def _check(
        self, part: str, item: str, check: Check, folder: Path, flag: str | None = None
    ) -> Checked | None:
        """Add the row of a check; returns what it has found, None after a fault."""
        with self._catching(part, item, flag):
            checked = check(folder, self.options)
            self._add(part, item, checked.text)
            return checked
        return None

    def _look_at_network(
        self,
        files: NetworkFiles,
        # what a config.json stands for; ValueError for an entry that cannot be used
        spec_of: Callable[[dict], TransformerSpec] | None,  # None: nothing to compare it with
        network_of: Callable[[dict], Network],
    ) -> None:
        with self._catching(files.part, "folder", files.flag):
            files.folder = checkpoint_folder(files.path, f"--{files.flag}", download=False)
        if files.folder is None:
            return
        # Weights first, because the sizes in config.json are compared with their headers.
        self._read_weights(files)
        with self._catching(files.part, "config.json"):
            config = read_config(files.folder)
            if files.flag == "model_path":
                keys = partial(stored_names, files.folder)
                refuse_other_model(self.settings.model, files.path, config, keys)
            if spec_of is None:
                text = "not compared: the target's cannot be used"
                self._add(files.part, "config.json", text, NOTE)
                return
            with refusing(f"{files.folder}: "):
                spec = spec_of(config)
                if faults := size_faults(config, files.shapes, files.unread):
                    raise ValueError(f"config.json: {'; '.join(faults)}")
            if files.tensors:  # sizes that no weights confirm might be too large to be built
                files.network = network_of(config)
            files.spec = spec
            sizes = f"{spec.layers} layers, hidden {spec.hidden}, {spec.heads} heads"
            text = f"{sizes}, {spec.vocab} ids, {spec.max_positions} positions"
            self._add(files.part, "config.json", text)
        if files.network is not None:
            self._compare_keys(files)

    def _read_weights(self, files: NetworkFiles) -> None:
        paths: list[Path] = []
        with self._catching(files.part, "weights", files.flag):
            paths, shards = listed_files(files.folder), placed_keys(files.folder)
        for path in paths:
            with self._catching(files.part, path.name):
                if not path.is_file():
                    raise ValueError(f"missing; source: {self.sources[files.flag]}")
                header = read_header(path)
                files.tensors |= header
                text = f"{len(header)} tensors, {size(path.stat().st_size)}"
                self._add(files.part, path.name, text)
                continue
            files.unread |= {key for key, shard in shards.items() if shard == path}
        if files.tensors:
            types = Counter(info.dtype for info in files.tensors.values())
            words = ", ".join(f"{dtype} ({count} tensors)" for dtype, count in types.most_common())
            count = sum(info.count for info in files.tensors.values())
            self._add(files.part, "stored", f"{count:,} parameters: {words}")

    def _compare_keys(self, files: NetworkFiles) -> None:
        faults = files.network.faults(files.shapes, files.unread)
        fitting = f"{len(files.network.keys)} keys and shapes as expected"
        text = f"{len(faults)} differences" if faults else fitting
        if files.unread:
            text += f"; {len(files.unread)} keys are in files that cannot be read"
        self._add(files.part, "keys", text, FAULT if faults else OK, faults)

    def _look_at_parts(self, folder: Path) -> dict[str, Checked | None]:
        """Look at every part next to the transformer; None: a fault.

        A fault that the target's rows tell already is told as a note.
        """
        told = {row.text for row in self.rows if not row.fits}
        checked = {}
        for name, (check, flag) in self.family.parts.items():
            checked[name] = self._check(name, "files", check, folder, flag)
            text = self.rows[-1].text.partition("; source: ")[0]
            if text in told:
                self.rows[-1] = Finding(name, "files", NOTE, f"not read: {text}")
        return checked

    def _compare_positions(self, spec: TransformerSpec, together: Checked) -> None:
        grid, needed = together.grid, together.grid.slots(together.grid.tokens)
        ends = f" and {grid.rows} row ends" if needed > grid.tokens else ""
        room = spec.max_positions - needed
        text = f"{grid.tokens:,} image tokens{ends} of {spec.max_positions:,} positions"
        if fits := together.shortest <= room:
            text += f": prompts of up to {room:,} tokens"
        else:
            text += f" leave {room:,} for prompts, of which the shortest has {together.shortest:,}"
        text += f"; keys and values: {size(cache_bytes(self.settings, spec, 1))} a token"
        self._add("target", "sequence", text, OK if fits else FAULT)

    def _look_at_drafter(self, target: TransformerSpec | None) -> Network | None:
        """Look at the drafter's network; a missing default drafter is a note."""
        settings, path = self.settings, self.settings.drafter_path
        if path is None:
            free = one_of(name for name, entry in METHODS.items() if not entry.drafted)
            text = (
                f"none in {Path(settings.model_path) / 'drafter'} and no --drafter_path: only "
                f"--method {free} works; source: {self.sources['drafter_path']}"
            )
            self._add("drafter", "folder", text, NOTE)
            return None

        def spec_of(config: dict) -> TransformerSpec:
            return self.family.drafter(config, target)

        def network_of(config: dict) -> Network:
            return drafter_network(config, spec_of(config), target, str(Path(path) / "config.json"))

        files = NetworkFiles("drafter", "drafter_path", path)
        self._look_at_network(files, spec_of if target else None, network_of)
        if files.spec is not None and files.spec.rope_theta != target.rope_theta:
            # The value is used as the file gives it. A head trained with another one than its
            # config says still loads, and only drafts badly, so this row is the only hint.
            bases = f"{files.spec.rope_theta:g}, the target's is {target.rope_theta:g}"
            self._add("drafter", "rope_theta", f"{bases}: right if it was trained so", NOTE)
        return files.network

    def _look_at_distance_tables(self, codes: int, folder: Path) -> None:
        title, widths = "nearest codes", table_widths(folder)
        if not widths:
            words = f"--model {self.settings.model} --model_path {shlex.quote(str(folder))}"
            text = f"none, which --verifier lantern needs: `main.py vq_distances {words}` makes it"
            self._add(title, "vq_distances", text, NOTE)
        for width in widths:
            path = table_path(folder, codes, width)
            with self._catching(title, path.name):
                load_table(path, codes, width)
                self._add(title, path.name, f"{codes} codes, {width} neighbours each")

    def _look_at_quantization(self) -> None:
        kind = self.settings.quantize
        if kind is not None and find_spec("torchao") is None:
            text = f"--quantize {kind} needs torchao, not installed here: {install('quantize')}"
            self._add("target", "quantize", text, NOTE)
