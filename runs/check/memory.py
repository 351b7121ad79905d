"""The memory that a model takes: an engine is opened on the meta device, and its tensors counted.

There a tensor has a shape and no memory, so this is what `Engine` and drafters allocate themselves,
in less than a second.
"""

from collections.abc import Iterator, Sequence

import torch

from configs.methods import MethodSettings
from configs.model import EngineSettings
from decoding.cache import attention_dtype
from decoding.images import Job
from drafters.eagle import EagleHead
from models.base import ImageVocab
from models.codecs.peak import META_DEVICE, Peak
from models.files.network import Network
from models.quantize import copies_bytes, weight_bytes
from models.target import TargetModel
from models.targets.family import Together
from runs.check.report import Bytes
from runs.methods import build_engine, sampling_distribution
from runs.session import DTYPES
from support.devices import pick_device


class MetaTarget(TargetModel):
    """A target of shapes alone, whose prompts all have `prompt` tokens."""

    def __init__(self, network: Network, parts: Together, dtype: torch.dtype, prompt: int):
        self.transformer = getattr(network.module, "transformer", network.module).to(dtype)
        self.spec, self.grid, self.codes = network.module.spec, parts.grid, parts.codes
        self.vocab, self.prompt_tokens = ImageVocab(0, parts.codes), prompt
        self.dtype, self.device = dtype, META_DEVICE

    def length(self, text: str) -> int:
        return self.prompt_tokens


def memory_of(
    network: Network,
    drafter: Network | None,  # None: no method here has one
    together: Together,
    settings: EngineSettings,
    methods: Sequence[MethodSettings],  # of which the one that takes most counts
) -> dict[str, Bytes]:
    """Return the bytes that networks and engine take, by part, without activations."""
    dtype, device = DTYPES[settings.dtype], pick_device(settings.device)
    memory: dict[str, Bytes] = {}
    for name, one, kind in (("target", network, settings.quantize), ("drafter", drafter, None)):
        if one is not None:
            memory[f"{name} weights"] = (weight_bytes(one.module, kind, dtype),) * 2
            if device.type == "cpu" and (copies := copies_bytes(one.module, kind, dtype)):
                memory[f"{name} packed copies"] = copies, copies
    head = None if drafter is None else drafter.module.to(dtype)
    longest = network.module.spec.max_positions - together.grid.slots(together.grid.tokens)
    wider = attention_dtype(dtype, device).itemsize / dtype.itemsize  # bf16 caches on CPUs
    most: dict[str, list[int]] = {}
    for prompt in (together.caption, longest):
        target = MetaTarget(network, together, dtype, prompt)
        taken = [_opened(target, head, settings, method) for method in methods]
        for name in taken[0]:
            most.setdefault(name, []).append(max(one[name] for one in taken))
    most["keys and values"] = [round(wider * count) for count in most["keys and values"]]
    return memory | {name: (caption, longest) for name, (caption, longest) in most.items()}


@torch.inference_mode()
def _opened(
    target: MetaTarget,
    head: EagleHead | None,
    settings: EngineSettings,
    method: MethodSettings,
) -> dict[str, int]:
    """Return the bytes that an engine allocates for a batch, by part."""
    distribution, images = sampling_distribution(settings.sampling), settings.batch_size
    # nobody asks the rule, so its table of nearest codes may be empty
    nearest = None if method.lantern is None else torch.zeros(0, 0, dtype=torch.int32)
    with Peak() as peak:
        engine = build_engine(target, head, distribution, method, images, nearest)
        engine._open([Job(str(number), "", number) for number in range(images)])
        taken = sum(peak.alive.values())
    drafter = engine.speculation and engine.speculation.drafter
    kept = engine.images.cache.nbytes + sum(_caches(drafter))
    noise = engine.images.noise.table.nbytes
    return {
        "keys and values": kept,
        "noise": noise,
        "drafts and predictions": taken - kept - noise,
    }


def _caches(drafter: object) -> Iterator[int]:
    """Yield the bytes of the KV caches of a drafter and of those that it is made of."""
    for value in vars(drafter).values() if drafter is not None else ():
        if hasattr(value, "nbytes") and hasattr(value, "memory"):
            yield value.nbytes
        elif hasattr(value, "cache"):
            yield from _caches(value)
