"""`generate_images`: prompts in; images, records and a trace out. Imports torch when there is work for it."""

import hashlib
import io
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from configs.fields import SettingsError, refuse
from configs.schema import RunSettings
from runs.prompts import PromptItem, prompt_items
from runs.run_folder import Line, RunFolder
from support.processes import Processes, launched
from support.progress import Progress

_TRACE_FIELDS = ("id", "round", "position", "depth", "width", "nodes", "accepted", "top1")
_MEASURES = (
    "target_forwards",
    "tau",
    "mean_depth",
    "mean_nodes",
    "seconds",
    "seconds_prefill",
    "seconds_draft",
    "seconds_verify",
)


@dataclass(frozen=True)
class Backend:
    """What generation needs from the parts that import torch.

    open_session(settings) -> session with `open_engine()`, `target` and `hardware()`; job(id, prompt, seed) -> the
    engine's job; image_seed(base seed, prompt, occurrence, sample) -> the image's own seed.
    """

    open_session: Callable[[RunSettings], Any]
    job: Callable[..., Any]
    image_seed: Callable[[int, str, int, int], int]


def torch_backend() -> Backend:
    """The real one."""
    from decoding.flight import Job
    from decoding.noise import image_seed
    from runs.session import open_session

    return Backend(open_session, Job, image_seed)


def generate_images(
    settings: RunSettings,
    make_backend: Callable[[], Backend] = torch_backend,
    processes: Processes | None = None,
) -> None:
    """Make the images of `settings` that its folder does not hold yet, and say what is there in the end.

    What can be wrong with settings, files or folder is a SettingsError before `make_backend` is called, and
    nothing in the folder changes before the model is loaded. processes: that share the images; by default those of
    the launcher (torchrun), or this one alone.
    """
    items = prompt_items(settings)
    processes = processes or launched()
    refuse_spread(settings, processes)
    with RunFolder(settings, processes=processes) as folder:
        folder.check_prompts(items)
        missing = [item for item in items if item.id not in folder.records]
        seconds = (
            _make(settings, folder, processes.share(missing), make_backend()) if missing else 0.0
        )
        folder.finish()
        if processes.rank == 0:
            print(_summary(folder, items, missing, seconds))


def refuse_spread(settings: RunSettings, processes: Processes) -> None:
    """A SettingsError for several processes that would each take all GPUs."""
    if processes.count > 1 and settings.device_map != "single":
        refuse("device_map", settings.device_map, "single, with several processes")


def _make(
    settings: RunSettings, folder: RunFolder, missing: Sequence[PromptItem], backend: Backend
) -> float:
    """Make these images; returns the seconds it took, without loading the model."""
    try:
        session = backend.open_session(settings)
        engine = session.open_engine()
    except ValueError as error:  # a device, a checkpoint or a table that cannot be used
        raise SettingsError(str(error)) from error
    check_lengths(session.target, missing)
    folder.begin(session.hardware())
    traces: dict[str, list[Line]] = defaultdict(list)
    started = time.perf_counter()
    with Progress(
        len(missing), sys.stderr if folder.processes.rank == 0 else io.StringIO()
    ) as progress:
        for step in engine.generate(_jobs(settings, missing, backend)):
            for stats in step.rounds if settings.trace else ():
                traces[stats.id].append({name: getattr(stats, name) for name in _TRACE_FIELDS})
            for image in step.finished:
                pixels, seconds = _decode(session.target, image.codes)
                folder.save(pixels, _record(settings, image, seconds), traces.pop(image.job.id, ()))
            progress.show(step)
    return time.perf_counter() - started


def check_lengths(target: Any, missing: Sequence[PromptItem]) -> None:
    """A SettingsError, before the first image, if the model cannot take some of the prompts."""
    faults = []
    for prompt, name in {item.prompt: item.id for item in reversed(missing)}.items():
        try:
            target.length(prompt)
        except ValueError as error:
            faults.append(f"image {name}: {error}")
    if faults:
        raise SettingsError(
            f"--prompt: found {len(faults)} that the model cannot take, such as {faults[-1]}; "
            "allowed: shorter prompts; --slice leaves prompts out"
        )


def _jobs(settings: RunSettings, missing: Iterable[PromptItem], backend: Backend) -> Iterator[Any]:
    for item in missing:
        seed = backend.image_seed(settings.seed, item.prompt, item.occurrence, item.sample)
        yield backend.job(item.id, item.prompt, seed)


def _decode(target: Any, codes: Any) -> tuple[np.ndarray, float]:
    """The pixels of one image's codes (tokens,), uint8 (height, width, 3), and the seconds it took."""
    started = time.perf_counter()
    pixels = np.asarray(target.to_image(codes[None])[0])
    return pixels, time.perf_counter() - started


def _record(settings: RunSettings, image: Any, seconds_decode: float) -> Line:
    """A finished image's line in records.jsonl; tokens: how many; the hash is of little-endian int32."""
    codes = np.asarray(image.codes)
    method = settings.method
    return {
        "id": image.job.id,
        "prompt": image.job.prompt,
        "seed": image.job.seed,
        "method": method.method,
        "proposal": method.proposal,
        "verifier": method.verifier,
        "lossless": method.lossless,
        "tokens": len(codes),
        **{name: getattr(image, name) for name in _MEASURES},
        "seconds_decode": seconds_decode,
        "tokens_sha256": hashlib.sha256(codes.astype("<i4").tobytes()).hexdigest(),
    }


def _summary(
    folder: RunFolder, items: Sequence[PromptItem], missing: Sequence[PromptItem], seconds: float
) -> str:
    """One line: how many images are where, their mean tau, and the tokens per second of the new ones."""
    records = [folder.records[item.id] for item in items if item.id in folder.records]
    tau = sum(record["tau"] for record in records) / max(len(records), 1)
    text = f"{len(records)} images in {folder.path}/img ({len(missing)} new): mean tau {tau:.2f}"
    tokens = sum(folder.records[item.id]["tokens"] for item in missing)
    return text + (f", {tokens / seconds:.1f} tokens/s" if seconds else "")
