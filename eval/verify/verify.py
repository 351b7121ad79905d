"""`verify`: run a checkpoint and say whether all is well, a line per check."""

import time
from collections.abc import Callable

import torch

from configs.fields import SettingsError
from configs.tools import VerifySettings
from eval.verify.codec import check_codec
from eval.verify.drafter import check_drafter
from eval.verify.lines import Line, as_json, as_table, failures, skipped
from eval.verify.methods import Decoded, check_tokens, tell_cost, tell_estimate
from eval.verify.network import (
    MIXED,
    Reading,
    check_guidance,
    check_logits,
    check_picture,
    read_pictures,
)
from eval.verify.reference import check_reference
from eval.verify.subject import Subject
from runs.findings import size
from runs.session import Session, open_session
from support.border import Failure

Check = Callable[[], Line]


def verify(settings: VerifySettings) -> None:
    """Print a line per check; a Failure, after them, if one of them failed.

    Raises:
        SettingsError: this machine has no such device, or a path names nothing.
    """
    lines = examine(settings)
    print(as_json(lines) if settings.json else as_table(lines))
    if failed := failures(lines):
        raise Failure(f"--model_path {settings.model_path}: failed: {', '.join(failed)}")


def examine(settings: VerifySettings) -> list[Line]:
    """Load the checkpoint, run all checks and return their lines."""
    started = time.perf_counter()
    try:
        session = open_session(settings.engine)
    except SettingsError:
        raise
    except ValueError as error:
        cause = "files are missing, damaged or of another model; `main.py inspect` lists them all"
        return [Line("files", "failed", str(error), cause)]
    except torch.OutOfMemoryError as error:
        return [_out_of_memory("files", error)]
    loaded = _tell_loaded(session, time.perf_counter() - started)
    subject = Subject(settings, session)
    try:
        readings = read_pictures(subject)
    except torch.OutOfMemoryError as error:
        return [loaded, _out_of_memory("logits", error)]
    logits = check_logits(subject, readings)
    return [loaded, logits, *_after_logits(subject, readings, logits)]


def _tell_loaded(session: Session, seconds: float) -> Line:
    """Return the line of what was loaded."""
    target = session.target
    parameters = list(target.transformer.parameters())
    count, memory = sum(p.numel() for p in parameters), sum(p.nbytes for p in parameters)
    drafter = "no drafter" if session.drafter is None else "and its drafter"
    text = (
        f"{session.settings.model}, {drafter}: {count:,} weights, {size(memory)} "
        f"in {session.settings.dtype} on {target.device}, loaded in {seconds:.0f} s"
    )
    return Line("files", "ok", text, figures={"parameters": count, "seconds": seconds})


def _after_logits(subject: Subject, readings: list[Reading], logits: Line) -> list[Line]:
    """Return the lines of the other checks; without finite logits most of them say nothing."""
    decoded = Decoded(subject)
    numbers = {
        "guidance": lambda: check_guidance(subject, readings),
        "codes": lambda: check_picture(subject, readings),
        "drafter": lambda: check_drafter(subject),
        "tokens": lambda: check_tokens(decoded),
        "speed": lambda: tell_cost(decoded),
        "estimate": lambda: tell_estimate(decoded),
        "transformers": lambda: check_reference(subject),
    }
    if not logits.figures["finite"]:
        rest = [skipped(name, "the logits are not finite") for name in numbers]
    else:
        rest = [_guarded(name, check) for name, check in numbers.items()]
    return [rest[0], _guarded("codec", lambda: check_codec(subject)), *rest[1:]]


def _guarded(name: str, check: Check) -> Line:
    """Return the line of a check, also of one that cannot come to its end."""
    try:
        return check()
    except FloatingPointError as error:
        return Line(name, "failed", str(error), MIXED)
    except torch.OutOfMemoryError as error:
        return _out_of_memory(name, error)


def _out_of_memory(name: str, error: torch.OutOfMemoryError) -> Line:
    """Return the line of a check for which the GPU was too small."""
    cause = "the GPU is too small, or in use: --dtype bf16, --vq_device cpu, --device cpu"
    return Line(name, "failed", f"out of memory: {str(error).splitlines()[0]}", cause)
