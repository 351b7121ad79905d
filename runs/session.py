"""From settings to a running engine: the one place where target, drafter, policy, proposal and verifier meet."""

import platform
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import torch
from torch import Tensor

from configs.fields import SettingsError, refuse
from configs.schema import MethodSettings, RunSettings, SamplingSettings
from configs.tools import DistanceSettings, InspectSettings
from decoding.calibration import UNCALIBRATED, Calibration, Calibrations
from decoding.engine import Engine
from decoding.flight import Job
from drafters.eagle import EagleHead
from drafters.loading import check_eagle_head, load_eagle_head
from models.base import TargetModel, TargetOptions
from models.files.folders import checkpoint_folder
from models.files.weights import read_json
from models.guidance import SequentialGuidance
from models.placement import spread
from models.registry import FAMILIES, load_target
from runs.building import Tables, build_engine, build_policy, calibration_of, sampling_distribution
from runs.costs import Costs, machine_costs, measure_costs
from runs.nearest import find_nearest, load_nearest, nearest_columns
from support.devices import pick_device
from support.provenance import revision

DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Session:
    """Loaded weights and the engine of one method; `engine_for` gives those of others on the same weights."""

    settings: RunSettings
    target: TargetModel
    head: EagleHead | None
    calibrations: Calibrations = UNCALIBRATED
    _nearest: dict[int, Tensor] = field(default_factory=dict)  # by columns

    @property
    def engine(self) -> Engine:
        return self.engine_for(self.settings.method)

    def engine_for(
        self,
        method: MethodSettings,
        sampling: SamplingSettings | None = None,
        images: int | None = None,
    ) -> Engine:
        """An engine for a method, under the session's sampling law and batch size or others."""
        distribution = sampling_distribution(sampling or self.settings.sampling)
        images = self.settings.batch_size if images is None else images
        return build_engine(
            self.target, self.head, distribution, method, images, self.tables(method)
        )

    def tables(self, method: MethodSettings) -> Tables:
        """What a method reads besides the weights; a SettingsError if its nearest codes are not there."""
        prices = self._costs(method).prices(method.nodes) if method.size == "priced" else None
        if method.lantern is None:
            return Tables(self.calibrations, prices=prices)
        codes = self.target.vocab.size
        columns = nearest_columns(method.lantern, codes)
        if columns not in self._nearest:
            self._nearest[columns] = load_nearest(self.settings, columns, codes, self.target.device)
        return Tables(self.calibrations, self._nearest[columns], prices)

    def _costs(self, method: MethodSettings) -> Costs:
        """The costs in a method's file, or else those of this machine and code, with this target, dtype and batch."""
        if method.prices is not None:
            try:
                return Costs.read(Path(method.prices))
            except ValueError as error:
                raise SettingsError(f"--prices: {error}") from error
        images, distribution = (
            self.settings.batch_size,
            SamplingSettings(cfg=self.settings.sampling.cfg),
        )  # no codes are cut
        place = (
            platform.node(),
            torch.__version__,
            revision(),
            self.settings.cfg_mode,
            self.hardware(),
        )
        key = repr(
            (
                self.target.spec,
                self.head.spec,
                sampling_distribution(distribution).guidance,
                images,
                place,
            )
        )
        jobs = [Job(str(number), "a circle", number) for number in range(images)]
        return machine_costs(
            sha256(key.encode()).hexdigest()[:16],
            lambda: measure_costs(
                lambda tree: self.engine_for(tree, distribution), jobs, repeats=4
            ),
        )

    def calibration(self, method: MethodSettings) -> Calibration:
        """What a method calibrates its path scores with under the session's law."""
        return calibration_of(
            method, sampling_distribution(self.settings.sampling), self.calibrations
        )

    def hardware(self) -> dict[str, object]:
        """The machine, in words and numbers, for run.json."""
        device = self.target.device
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        return {
            "device": str(device),
            "gpu": gpu,
            "cpu": platform.processor() or platform.machine(),
            "threads": torch.get_num_threads(),
            "dtype": self.settings.dtype,
        }


def open_session(settings: RunSettings, drafted: bool | None = None) -> Session:
    """Load what the settings ask for; `drafted` asks for the drafter whatever the method.

    Raises:
        ValueError: the device is not there, or a checkpoint is missing, damaged or does not fit; names flag or file.
    """
    wanted = settings.method.drafted if drafted is None else drafted
    if settings.method.lantern is not None:
        find_nearest(settings, settings.method.lantern.k)
    if wanted:  # looked at first: the target's weights take minutes to read
        family = FAMILIES[settings.model]
        config = read_json(checkpoint_folder(settings.model_path, "--model_path") / "config.json")
        check_eagle_head(settings.drafter_path, family, family.network(config).module.spec)
    target = open_target(settings)
    if not wanted:
        return Session(settings, target, None)
    head = load_eagle_head(settings.drafter_path, target)
    return Session(
        settings,
        target,
        head,
        Calibrations.read(checkpoint_folder(settings.drafter_path, "--drafter_path")),
    )


def target_options(
    settings: RunSettings | InspectSettings | DistanceSettings,
    dtype: torch.dtype,
    device: torch.device,
) -> TargetOptions:
    """The settings of a command that concern only some targets."""
    names = ("tokenizer_path", "target_size", "text_encoder_path", "vq_path")
    return TargetOptions(dtype, device, **{name: getattr(settings, name, None) for name in names})


def open_target(settings: RunSettings) -> TargetModel:
    """The target of the settings, placed as they say; errors as open_session."""
    device, dtype = pick_device(settings.device), DTYPES[settings.dtype]
    spreads = settings.device_map == "auto"
    if spreads and device.type == "cpu":
        refuse("device_map", "auto", "only where CUDA devices are")
    place = torch.device("cpu") if spreads else device
    target = load_target(
        settings.model, settings.model_path, target_options(settings, dtype, place)
    )
    if spreads:
        rows = settings.batch_size * sampling_distribution(settings.sampling).guidance
        nodes = (
            build_policy(settings.method, target.grid.columns).largest.nodes
            if settings.method.speculative
            else 0
        )
        spread(target, rows, target.spec.max_positions + target.grid.block(nodes))
    if settings.vq_device == "cpu":
        target.images = target.images.to(torch.device("cpu"))
    return SequentialGuidance(target) if settings.cfg_mode == "sequential" else target
