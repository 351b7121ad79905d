"""The target's logits next to those of transformers' class for the family."""

import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor
from transformers import ChameleonConfig, ChameleonModel

from drafters.training.losses import Levels
from eval.verify.lines import Line, judged, skipped
from eval.verify.subject import Subject
from models.base import TargetModel
from models.files.folders import checkpoint_folder
from models.files.tensors import read_tensors
from models.files.weights import weight_files
from runs.findings import size

HEAD = "lm_head.weight"
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
        model, head = load_chameleon(folder, subject.target)
    except ValueError as error:
        return Line("transformers", "failed", str(error), cause)
    ours, theirs = _both(subject, model, head)
    largest = (ours - theirs).abs().max().item()
    mean = ((ours - theirs).abs() / theirs.std()).mean().item()
    bound = BOUNDS[subject.target.dtype]
    return judged(
        "transformers",
        mean <= bound,
        f"ChameleonModel's logits of {ours.shape[0]} tokens differ by at most {largest:.2g}, on "
        f"average by {mean:.1g} standard deviations (at most {bound:g})",
        cause,
        largest=largest,
        mean_in_deviations=mean,
    )


def _why_not(subject: Subject) -> str | None:
    """Return why there is nothing to compare with; None if there is."""
    target = subject.target
    if target.name not in ("chameleon", "lumina_mgpt"):
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


def _both(subject: Subject, model: ChameleonModel, head: Tensor) -> tuple[Tensor, Tensor]:
    """Return logits (tokens, codes) of the first picture after its caption: ours, transformers'."""
    target = subject.target
    rows = subject.rows(target, subject.captions[:1], subject.codes[:1])
    wanted = Levels.of(target.grid, 1, rows.ids.device)
    slots = (rows.prompt + wanted.slots)[:IMAGE_TOKENS]
    ours = target.score(rows.features[:1, slots])[0]
    features = model(input_ids=rows.ids[:1], use_cache=False).last_hidden_state
    return ours.double(), (features[0, slots] @ head.T).double()


def load_chameleon(folder: Path, target: TargetModel) -> tuple[ChameleonModel, Tensor]:
    """Return transformers' model with a folder's weights, and the head's rows of image codes.

    Both are on the target's device, in its dtype. Its image encoder, which nothing here uses, is
    left empty.

    Raises:
        ValueError: transformers misses weights, or does not expect some.
    """
    with torch.device("meta"):
        model = ChameleonModel(ChameleonConfig.from_pretrained(folder))
    model.vqmodel = None
    state = dict(_placed(read_tensors(weight_files(folder)), target))
    first = target.vocab.first_id
    head = state.pop(HEAD)[first : first + target.vocab.size]
    missing, unexpected = model.load_state_dict(state, strict=False, assign=True)
    if missing or unexpected:
        raise ValueError(f"{folder}: transformers misses {missing}, does not expect {unexpected}")
    with target.device:  # its buffers are computed, not read
        model.rotary_emb = type(model.rotary_emb)(model.config)
    if empty := [name for name, value in model.named_buffers() if value.is_meta]:
        raise ValueError(f"this version of transformers computes {empty} elsewhere")
    return model.eval(), head


def _placed(
    tensors: Iterable[tuple[str, Tensor]], target: TargetModel
) -> Iterable[tuple[str, Tensor]]:
    """Yield the transformer's tensors by transformers' names, on the target's device."""
    for key, tensor in tensors:
        if not key.startswith("model.vqmodel."):
            yield key.removeprefix("model."), tensor.to(target.device, target.dtype)


def _free_bytes(device: torch.device) -> int:
    """Return the memory that is free on a device."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
