"""`--dry_run`: check all that can be checked without loading weights, and say what would be done.

A command describes its work as a `Plan`, from its settings and from the folder it writes to; `show`
looks at the model's files, the memory and the disk, and prints it.
"""

import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from configs.fields import Flag, SettingsError, mismatch, refusing, settings_dict
from configs.methods import MethodSettings
from configs.model import EngineSettings
from models.codecs.codebook import find_table
from models.files.folders import checkpoint_folder
from runs.check.files import Examination
from runs.check.report import size
from support.progress import plural
from support.wording import first_of

TOKEN_BYTES = 16 * 16 * 3  # of the pixels that a token stands for: no picture file is larger


@dataclass(frozen=True)
class Plan:
    """What a command would do."""

    what: str  # with the place of its result
    folders: dict[str, Path]  # that it writes to, by flag
    done: int = 0  # images or steps that are there
    total: int | None = None  # None: as many as the time allows
    unit: str = "image"
    run: EngineSettings | None = None  # whose files are read
    methods: Sequence[MethodSettings] = field(default=())  # that share the model
    pictures: bool = False  # whether image files are written
    notes: Sequence[str] = field(default=())


def show(plan: Plan) -> None:
    """Print a plan; a SettingsError where the command could not be carried out."""
    free = {flag: _free_bytes(flag, folder) for flag, folder in plan.folders.items()}
    to_do = (plan.total or plan.done) - plan.done
    lines = [f"would be {plan.what}"]
    if plan.total is not None:
        lines += [f"{plural(plan.total, plan.unit)}: {plan.done:,} done, {to_do:,} to do"]
    lines += plan.notes
    if plan.run is not None:
        needed, line = _files_of(plan.run, plan.methods)
        lines.append(line)
        for flag, space in free.items() if plan.pictures else ():
            if space < (bytes_needed := to_do * needed):
                what = f"{size(space)} free for {size(bytes_needed)} of images"
                raise mismatch(Flag(flag, plan.folders[flag]), what, "a disk with more space")
    lines += [f"disk: {size(space)} free in {plan.folders[flag]}" for flag, space in free.items()]
    print("\n".join([*lines, "dry run: nothing was loaded, generated or written"]))


def _free_bytes(flag: str, folder: Path) -> int:
    """Return the free bytes where a folder is or would be made; a SettingsError if none may be."""
    existing = folder.absolute()
    while not existing.exists():
        existing = existing.parent
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        got = "a folder that may not be written" if existing.is_dir() else f"the file {existing}"
        raise mismatch(Flag(flag, folder), got, "a writable folder")
    return shutil.disk_usage(existing).free


def _files_of(run: EngineSettings, methods: Sequence[MethodSettings]) -> tuple[int, str]:
    """Return the bytes of a picture at most, and a line about memory; refuse faulty files.

    The files of hub ids are looked at once they are here.
    """
    absent = [
        f"--{name} {path}" for name, path in settings_dict(run).items() if _is_absent(name, path)
    ]
    if absent:
        return 0, f"not looked at, since the hub delivers it at the start: {', '.join(absent)}"
    files = Examination(_with_drafter(run), methods)
    if files.faults:
        faults = first_of([f"{finding.name}: {finding.text}" for finding in files.faults])
        advice = "`python main.py inspect` with the same model lists all files."
        raise SettingsError(faults, Flag("model_path", run.model_path), advice=advice)
    parts, folder = files.together, checkpoint_folder(run.model_path, "--model_path")
    assert parts is not None, "nothing is at fault"
    for lantern in {method.lantern for method in methods if method.lantern is not None}:
        with refusing(Flag("verifier", "lantern")):
            find_table(folder, parts.codes, lantern.columns(parts.codes), run.model)
    caption, longest = map(sum, zip(*files.memory.values(), strict=True))
    images = f"{plural(run.batch_size, 'image')} at once, without activations"
    told = f"{size(caption)} with a caption's prompt, {size(longest)} with the longest"
    return parts.grid.tokens * TOKEN_BYTES, f"memory: {told} ({images})"


def _with_drafter(run: EngineSettings) -> EngineSettings:
    """Return the settings with the drafter that is in the model's folder, if there is one."""
    there = (Path(run.model_path) / "drafter").is_dir()
    return run if run.method.drafted or not there else replace(run, method=MethodSettings("adt"))


def _is_absent(name: str, path: object) -> bool:
    """Return whether a flag names files of the hub that are not here yet."""
    if not name.endswith("_path") or not isinstance(path, str) or Path(path).exists():
        return False
    try:
        checkpoint_folder(path, f"--{name}")
    except ValueError:
        return True
    return False
