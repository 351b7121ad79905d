"""From settings to engines: loads target and drafter, builds the engine of any method."""

import platform
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

import torch
from torch import Tensor

from configs.fields import Flag, refuse, refusing, settled
from configs.methods import MethodSettings
from configs.model import INDUCTOR, EngineSettings, SamplingSettings
from decoding.engine import Engine
from decoding.images import Sources
from drafters.eagle import EagleHead
from drafters.loading import FoundDrafter, find_drafter
from models.backends import kernels_for, whose_kernels
from models.base import TargetOptions
from models.codecs.codebook import find_table, load_table, refuse_other_codebook
from models.files.folders import checkpoint_folder
from models.files.network import fitting_config
from models.guidance import SequentialGuidance
from models.placement import spread
from models.quantize import quantize, weight_format
from models.registry import family_of, load_target
from models.target import TargetModel
from runs.methods import build_engine, build_policy, sampling_distribution
from support.devices import pick_device
from support.provenance import cpu_name

MOST_CODES = 2**17  # of any model: how many are here is known once the target is loaded
DTYPES = {"fp32": torch.float32, "fp64": torch.float64, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class Session:
    """Loaded weights, and the engines of any method on them."""

    settings: EngineSettings  # the command's, with the method that it asks for
    target: TargetModel
    drafter: EagleHead | None  # None if no method here has one with weights
    _nearest: dict[int, Tensor] = field(default_factory=dict)  # by columns; `replace` shares it

    @refusing()
    def open_engine(
        self,
        method: MethodSettings | None = None,
        sampling: SamplingSettings | None = None,
        images: int | None = None,
    ) -> Engine:
        """Build an engine; what is None is taken from the session's settings."""
        method = method or self.settings.method
        distribution = sampling_distribution(sampling or self.settings.sampling)
        images = self.settings.batch_size if images is None else images
        sources = Sources(
            f"--model_path {self.settings.model_path}",
            f"--drafter_path {self.settings.drafter_path}",
        )
        on_one_gpu = self.target.device.type == "cuda" and self.settings.device_map == "single"
        return build_engine(
            self.target,
            self.drafter,
            distribution,
            method,
            images,
            self.nearest_codes(method),
            sources,
            replay=on_one_gpu and self.settings.compile != "off",
            compiles=self.settings.compile == INDUCTOR,
        )

    @refusing()
    def with_settings(self, settings: EngineSettings) -> "Session":
        """Return a session of other settings on these weights; loads a drafter if it is needed."""
        drafter = self.drafter
        if settings.method.lantern is not None:
            _find_nearest(settings, settings.method.lantern.k)
        if settings.method.drafted and drafter is None:
            drafter = _find_drafter(settings).load(self.target)
            kernels_for(settings)(drafter)
        return replace(self, settings=settings, drafter=drafter)

    def nearest_codes(self, method: MethodSettings) -> Tensor | None:
        """Return the nearest codes of every code that a relaxed rule compares, or None.

        int32 (codes, columns), from the narrowest table in the model's folder that is wide enough;
        a table is read once for all methods.
        """
        lantern, codes = method.lantern, self.target.vocab.size
        if lantern is None:
            return None
        columns = lantern.columns(codes)
        if columns not in self._nearest:
            path = _find_nearest(self.settings, columns, codes)
            with refusing(Flag("verifier", "lantern")):
                table = load_table(path, codes, columns)
                refuse_other_codebook(path, table, codebook_of(self.settings))
            nearest = torch.from_numpy(table.astype("int32"))
            self._nearest[columns] = nearest.to(self.target.device)
        return self._nearest[columns]

    def hardware(self) -> dict[str, object]:
        """Return the machine in words and numbers, for run.json."""
        device, quantized = self.target.device, self.settings.quantize
        gpu = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        return {
            "device": str(device),
            "gpu": gpu,
            "cpu": platform.processor() or platform.machine(),  # on Linux its architecture
            "processor": cpu_name(),
            "threads": torch.get_num_threads(),
            "dtype": self.settings.dtype,
            "kernels": whose_kernels(self.target.transformer),  # --compile auto may lack a compiler
            **({} if quantized is None else {"quantize": quantized}),
        }


@refusing()
def open_session(settings: EngineSettings) -> Session:
    """Load what the settings ask for, the drafter only if their method needs one.

    A SettingsError names flag or file if the device is not there, or a checkpoint is missing,
    damaged or does not fit.
    """
    if settings.method.lantern is not None:
        _find_nearest(settings, settings.method.lantern.k)
    run_by = kernels_for(settings)  # first, since a missing compiler costs no wait for weights
    # first, since reading the target's weights takes minutes
    drafter_files = _find_drafter(settings) if settings.method.drafted else None
    target = open_target(settings)
    drafter = None if drafter_files is None else drafter_files.load(target)
    networks = [target.transformer] if drafter is None else [target.transformer, drafter]
    run_by(*networks)
    return Session(settings, target, drafter)


def _find_nearest(settings: EngineSettings, columns: int, codes: int = MOST_CODES) -> Path:
    """Return the model's narrowest table of nearest codes with so many columns."""
    with refusing(Flag("lantern_k")):
        folder = checkpoint_folder(settings.model_path, "--model_path")
        return find_table(folder, codes, columns, settings.model)


def _find_drafter(settings: EngineSettings) -> FoundDrafter:
    family = family_of(settings.model)
    folder = checkpoint_folder(settings.model_path, "--model_path")
    return find_drafter(
        settled(settings.drafter_path), family, fitting_config(folder, family.spec)[1]
    )


def target_options(
    settings: EngineSettings, dtype: torch.dtype, device: torch.device
) -> TargetOptions:
    """Return how a target is loaded, with the settings that concern only some targets."""
    names = {f.name for f in fields(TargetOptions)} & {f.name for f in fields(settings)}
    shared = {name: getattr(settings, name) for name in names}
    return TargetOptions(**shared | {"dtype": dtype, "device": device})


def codebook_of(settings: EngineSettings) -> Tensor:
    """Return the latents of a model's image codes, (codes, width), fp32; ValueError as loaders."""
    options = target_options(settings, torch.float32, torch.device("cpu"))
    folder = checkpoint_folder(settings.model_path, "--model_path")
    return family_of(settings.model).codebook(folder, options)


def open_target(settings: EngineSettings) -> TargetModel:
    """Load the target of the settings, placed as they say; raises what open_session raises."""
    device, dtype = pick_device(settings.device), DTYPES[settings.dtype]
    spreads = settings.device_map == "auto"
    if spreads and device.type == "cpu":
        refuse("device_map", "auto", "only where CUDA devices are")
    form = None if settings.quantize is None else weight_format(settings.quantize, device)
    # Through the CPU's memory: one GPU may not hold the whole model, or not unquantised.
    loaded_on = torch.device("cpu") if spreads or form else device
    target = load_target(
        settings.model, settings.model_path, target_options(settings, dtype, loaded_on)
    )
    if form is not None:
        quantize(target, form, device)
    if spreads:
        rows = settings.batch_size * settings.sampling.guidance
        nodes = 0
        if settings.method.speculative:
            nodes = build_policy(settings.method, target.grid).largest.nodes
        # A layer's device also holds its keys and values, for a whole image and the largest tree.
        slots = target.spec.max_positions + target.grid.block(nodes)
        pixels = 0 if settings.vq_device == "cpu" else target.images.decoding_bytes(target.grid)
        spread(target, rows, slots, pixels)
    if settings.vq_device == "cpu":
        target.images = target.images.to(torch.device("cpu"))
    return SequentialGuidance(target) if settings.cfg_mode == "sequential" else target
