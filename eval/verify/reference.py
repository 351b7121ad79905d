"""The target's logits next to those of transformers' class for the family."""

import os

import torch
from torch import Tensor

from drafters.training.losses import Levels
from eval.verify.lines import Line, judged, skipped
from eval.verify.oracles import ORACLES, Oracle
from eval.verify.subject import Subject
from models.files.folders import checkpoint_folder
from runs.findings import size

# Mean difference of logits, in standard deviations of the logits, that rounding may make;
# transformers computes parts of fp64 in fp32.
BOUNDS = {torch.float64: 1e-5, torch.float32: 1e-3, torch.bfloat16: 0.1}
IMAGE_TOKENS = 256  # at most so many are compared


@torch.inference_mode()
def check_reference(subject: Subject) -> Line:
    """Check the logits of a known picture against transformers', where it has the family."""
    if reason := _why_not(subject):
        return skipped("transformers", reason)
    cause = (
        "a version of transformers that reads the folder in another way, or a config.json with "
        "entries that one of the two ignores"
    )
    folder = checkpoint_folder(subject.settings.model_path, "--model_path")
    try:
        oracle = ORACLES[subject.target.name](folder, subject.target)
    except ValueError as error:
        return Line("transformers", "failed", str(error), cause)
    ours, theirs = _both(subject, oracle)
    largest = (ours - theirs).abs().max().item()
    mean = ((ours - theirs).abs() / theirs.std()).mean().item()
    bound = BOUNDS[subject.target.dtype]
    return judged(
        "transformers",
        mean <= bound,
        f"{oracle.name}'s logits of {ours.shape[0]} tokens differ by at most {largest:.2g}, on "
        f"average by {mean:.1g} standard deviations (at most {bound:g})",
        cause,
        largest=largest,
        mean_in_deviations=mean,
    )


def _why_not(subject: Subject) -> str | None:
    """Return why there is nothing to compare with; None if there is."""
    target = subject.target
    if target.name not in ORACLES:
        return f"it has no class for --model {subject.settings.model}"
    if subject.settings.device_map == "auto":
        return "only with --device_map single"
    count = sum(parameter.numel() for parameter in target.transformer.parameters())
    count += (
        target.spec.vocab * target.spec.hidden
    )  # the whole head, of which the target has a part
    needed = int(1.2 * count) * target.dtype.itemsize
    if needed > (free := _free_bytes(target.device)):
        return f"needs about {size(needed)}, free are {size(free)}"
    return None


def _both(subject: Subject, oracle: Oracle) -> tuple[Tensor, Tensor]:
    """Return logits (tokens, codes) of the first picture after its caption: ours, transformers'."""
    target = subject.target
    rows = subject.rows(target, subject.captions[:1], subject.codes[:1])
    wanted = Levels.of(target.grid, 1, rows.ids.device)
    slots = (rows.prompt + wanted.slots)[:IMAGE_TOKENS]
    ours = target.score(rows.features[:1, slots])[0]
    start = int(rows.starts[0])  # the slots before it are padding
    features = oracle.features(rows.ids[:1, start:])
    return ours.double(), oracle.score(features[slots - start]).double()


def _free_bytes(device: torch.device) -> int:
    """Return the memory that is free on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
