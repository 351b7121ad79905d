"""`generate_images`: prompts in; images, records and a trace out.

Imports torch only when an image is missing.
"""

import hashlib
import shlex
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from configs.fields import in_list, refuse, settings_dict
from configs.model import EngineSettings
from configs.schema import RunSettings
from runs.prompts import PromptItem, all_prompts, chosen_items
from runs.records import TOKENS, record_fault, tau
from runs.run_folder import RunFolder
from support.json_lines import Line
from support.output import printed_unless_saved, remark
from support.processes import ALONE, Processes, launched
from support.progress import DecodingProgress, plural
from support.stops import count_stops

if TYPE_CHECKING:  # these import torch
    from runs.drawing import Drawn
    from runs.plan import Plan
    from runs.session import Session

_MEASURES = (
    "target_forwards", "tau", "mean_drafted_depth", "mean_verified_depth", "mean_nodes",
    "seconds", "seconds_prefill", "seconds_draft", "seconds_verify",
)  # fmt: skip


def generate_images(
    settings: RunSettings,
    # instead of `runs.session.open_session`; called only if an image is missing
    open_session: "Callable[[EngineSettings], Session] | None" = None,
    processes: Processes | None = None,  # share the images; by default the launcher's, or this one
) -> None:
    """Make the images that the run's folder does not hold yet, and print how many it holds.

    Nothing in the folder changes before the model is loaded.
    """
    prompts = all_prompts(settings.prompts)
    items = different_images(settings.engine, chosen_items(settings.prompts, prompts))
    processes = processes or launched()
    refuse_spread(settings.engine, processes)
    if processes.rank == 0:
        tell_quotes(settings.output_dir, "evaluate --output_dir")
    with run_folder(settings, processes) as folder:
        if folder.records:
            folder.check_prompts(prompts)
        missing = [item for item in items if item.id not in folder.records]
        if processes.count > 1:  # or an image would be in nobody's share
            share = hashlib.sha256(repr((items, missing)).encode()).hexdigest()
            same = "the same prompts in all processes"
            processes.agree("prompt", settings.prompts.prompt, share, same)
        changed = [item.id for item in missing if item.id in folder.changed]
        if changed and processes.rank == 0:
            which = f"{len(changed)} in {folder.path}/img, such as {changed[0]}.png"
            remark(f"pictures that changed since they were saved, {which}, are made again")
        seconds = 0.0
        if missing:
            own = processes.share(missing)
            with _progress(settings, folder, (len(items), len(missing), len(own))) as progress:
                seconds = _make(settings, folder, items, own, open_session, progress)
        folder.finish()
        seconds = max(processes.gather(seconds))  # shares take different times
        if processes.rank == 0:
            print(_summary(folder, items, missing, seconds))


def run_folder(settings: RunSettings, processes: Processes = ALONE) -> RunFolder:
    """Return the folder of a run, not opened yet."""
    shared = settings.identity()
    if settings.prompts.source == "file":  # the list may move and grow; `check_prompts` compares it
        shared["prompt"] = "a list of prompts"
    return RunFolder(settings.output_dir, settings_dict(settings), shared, processes)


def different_images(settings: EngineSettings, items: Sequence[PromptItem]) -> list[PromptItem]:
    """Return the images without repeats: at temperature 0 a prompt has one, whatever its seed."""
    if not settings.repeats:
        return list(items)
    first = [item for item in items if item.sample == 0]
    if len(first) < len(items):
        which = f"{len(first)} instead of {plural(len(items), 'image')}"
        remark(f"--temperature 0: {which}, since all samples of a prompt are the same image")
    return first


def tell_quotes(folder: str, flag: str) -> None:
    """Say how a flag that takes a list names a folder whose name holds a comma."""
    if in_list(folder) != folder:
        remark(f"--output_dir {folder}: `{flag} {shlex.quote(in_list(folder))}` names it")


def refuse_spread(settings: EngineSettings, processes: Processes) -> None:
    """Raise a SettingsError for several processes that would each take all GPUs."""
    if processes.count > 1 and settings.device_map != "single":
        refuse("device_map", settings.device_map, "single with several processes")


def _progress(
    settings: RunSettings, folder: RunFolder, counts: tuple[int, int, int]
) -> DecodingProgress:
    """Return what shows the progress. counts: images in all, missing, of this process."""
    total, missing, share = counts
    done, count = total - missing, folder.processes.count
    words = f"generating {plural(missing, 'image')} with {settings.engine.method.method}"
    words += f" ({settings.engine.model}) into {folder.path}/img"
    words += f"; {done} of {total} already exist" if done else ""
    if count > 1:
        words += f"; the counts below are those of process 1 of {count}"
        done = 0
    return DecodingProgress(words, done + share, done, shown=folder.processes.rank == 0)


def _make(
    settings: RunSettings,
    folder: RunFolder,
    items: Sequence[PromptItem],
    missing: Sequence[PromptItem],
    open_session: "Callable[[EngineSettings], Session] | None",
    progress: DecodingProgress,
) -> float:
    """Make the missing ones of the run's images; returns the seconds, without loading the model."""
    from runs.drawing import draw, image_jobs
    from runs.session import open_session as open_with_weights

    jobs = {job.id: job for job in image_jobs(items, settings.prompts.seed)}
    _ = folder.files  # before they are read
    session = (open_session or open_with_weights)(settings.engine)
    # Before `begin`: if a prompt is too long, the error comes while the folder is untouched.
    steps = draw(session, [jobs[item.id] for item in missing])
    folder.begin(session.hardware())
    count_stops()
    traces: dict[str, list[Line]] = defaultdict(list)
    started = time.perf_counter()
    progress.begin(session.target.grid.tokens)
    for step in steps:
        for stats in step.rounds if settings.trace else ():
            traces[stats.id].append(vars(stats))
        # All of the step's figures, before the first image meets a full disk.
        records = [_record(settings, one) for one in step.finished]
        with printed_unless_saved(*records):
            for drawn, record in zip(step.finished, records, strict=True):
                folder.save(drawn.pixels, record, traces.pop(record["id"], ()))
        progress.show(step)
    return time.perf_counter() - started


def _record(settings: RunSettings, drawn: "Drawn") -> Line:
    """Return a finished image's line of records.jsonl.

    `tokens` is their number; `tokens_sha256` is of the codes as little-endian int32.
    """
    image = drawn.image
    codes = np.asarray(image.codes)
    method = settings.engine.method
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
        "seconds_decode": drawn.seconds_decode,
        "cpu_seconds": drawn.cpu_seconds,
        **({"stopped_seconds": drawn.stopped_seconds} if drawn.stopped_seconds else {}),
        "tokens_sha256": hashlib.sha256(codes.astype("<i4").tobytes()).hexdigest(),
        **({} if drawn.pictured else {"pixels": TOKENS}),
    }


def _summary(
    folder: RunFolder, items: Sequence[PromptItem], missing: Sequence[PromptItem], seconds: float
) -> str:
    """Return a line: the images in the folder, their tau, the new ones' tokens per second."""
    records = [folder.records[item.id] for item in items]
    count, new = len(records), len(missing)
    # records that other programs changed may lack a figure
    whole = [record for record in records if record_fault(record) is None]
    text = f"{plural(count, 'image')} in {folder.path}/img ({new} new): tau {tau(whole):.2f}"
    tokens = sum(folder.records[item.id]["tokens"] for item in missing)
    return text + (f", {tokens / seconds:.1f} tokens/s" if seconds else "")


def plan_images(settings: RunSettings) -> "Plan":
    """Return what `generate_images` would do; a SettingsError as it would raise."""
    from runs.plan import Plan

    engine, folder = settings.engine, run_folder(settings)
    prompts = all_prompts(settings.prompts)
    items = different_images(engine, chosen_items(settings.prompts, prompts))
    if folder.path.is_dir():
        with folder:
            folder.check_prompts(prompts)
    done = sum(item.id in folder.records for item in items)
    what = f"generating with {engine.method.method} ({engine.model}) into {folder.path}/img"
    place, methods = {"output_dir": folder.path}, [engine.method]
    return Plan(what, place, done, len(items), run=engine, methods=methods, pictures=True)
