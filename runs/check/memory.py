"""The memory that a model takes: an engine is opened on the meta device, and its tensors counted.

There a tensor has a shape and no memory, so this is what `Engine` and drafters allocate themselves,
in less than a second.
"""

from collections.abc import Iterable

import torch

from configs.methods import METHODS, MethodSettings
from configs.model import EngineSettings, SamplingSettings
from decoding.cache import attention_dtype
from decoding.images import Job
from drafters.loading import find_drafter
from models.base import ImageVocab
from models.codecs.peak import META_DEVICE, Peak
from models.files.folders import open_folder
from models.files.network import Network, fitting_config
from models.quantize import copies_bytes, weight_bytes
from models.registry import family_of
from models.target import TargetModel
from models.targets.family import Together
from runs.methods import build_engine, sampling_distribution
from runs.session import DTYPES, target_options
from support.devices import pick_device

Bytes = tuple[int, int]  # with the prompt of a caption, and with the longest prompt


class MetaTarget(TargetModel):
    """A target of shapes alone, as engines and drafters read it when they are opened."""

    def __init__(self, network: Network, parts: Together, dtype: torch.dtype, prompt: int):
        """prompt: tokens of every prompt."""
        self.transformer = getattr(network.module, "transformer", network.module).to(dtype)
        self.spec, self.grid, self.codes = network.module.spec, parts.grid, parts.codes
        self.vocab, self.prompt_tokens = ImageVocab(0, parts.codes), prompt
        self.dtype, self.device = dtype, META_DEVICE

    def length(self, text: str) -> int:
        return self.prompt_tokens


def memory_of(
    settings: EngineSettings,
    sampling: SamplingSettings,
    batch_size: int,
    methods: Iterable[MethodSettings] | None = None,
) -> dict[str, Bytes]:
    """Return the bytes that a model takes, by part, without activations.

    Args:
        settings: name the model's files and how it is loaded; files are local or in the cache.
        sampling: its guidance scale tells how many rows an image has.
        batch_size: images decoded together.
        methods: of which the one that takes most counts; None: all that the files serve.

    Raises:
        ValueError: a file is missing, damaged or does not fit; it names the file.
    """
    dtype, device = DTYPES[settings.dtype], pick_device(settings.device)
    options = target_options(settings, dtype, torch.device("cpu"), download=False)
    family = family_of(settings.model)
    folder = open_folder("model_path", settings.model_path, settings.model, download=False).path
    config, spec = fitting_config(folder, family.spec)
    parts = family.compatible(folder, options)
    network = family.network(config, ImageVocab(0, parts.codes))
    tried = [MethodSettings(name) for name in METHODS] if methods is None else [*methods]
    path = settings.drafter_path if any(method.drafted for method in tried) else None
    drafter = None if path is None else find_drafter(path, family, spec).network
    memory: dict[str, Bytes] = {}
    for name, one, kind in (("target", network, settings.quantize), ("drafter", drafter, None)):
        if one is not None:
            count = weight_bytes(one.module, kind, dtype)
            memory[f"{name} weights"] = count, count
            copies = copies_bytes(one.module, kind, dtype) if device.type == "cpu" else 0
            if copies:
                memory[f"{name} packed copies"] = copies, copies
    longest = spec.max_positions - parts.grid.slots(parts.grid.tokens)
    columns = []
    for prompt in (parts.caption, longest):
        target = MetaTarget(network, parts, dtype, prompt)
        head = None if drafter is None else drafter.module.to(dtype)
        wider = attention_dtype(dtype, device).itemsize / dtype.itemsize  # bf16 caches on CPUs
        opened = [
            _opened(target, head, sampling, method, batch_size)
            for method in tried
            if head is not None or not method.drafted
        ]
        most = {name: max(one[name] for one in opened) for name in opened[0]}
        most["keys and values"] = round(wider * most["keys and values"])
        columns.append(most)
    memory |= {name: (columns[0][name], columns[1][name]) for name in columns[0]}
    for name, (check, _) in family.parts.items():
        if count := check(folder, options).bytes:
            memory[name] = count, count
    if family.decoded:
        files = family.image_files(folder, options)
        codec = files.open(files.network().module, META_DEVICE)
        count = codec.decoding_bytes(parts.grid)
        memory[f"{family.image_part} at work"] = count, count
    return memory


@torch.inference_mode()
def _opened(
    target: MetaTarget,
    head: torch.nn.Module | None,
    sampling: SamplingSettings,
    method: MethodSettings,
    images: int,
) -> dict[str, int]:
    """Return the bytes that an engine allocates for a batch, by part."""
    distribution = sampling_distribution(sampling)
    # nobody asks the rule, so its table of nearest codes may be empty
    nearest = None if method.lantern is None else torch.zeros(0, 0, dtype=torch.int32)
    with Peak() as peak:
        engine = build_engine(target, head, distribution, method, images, nearest)
        engine._open([Job(str(number), "", number) for number in range(images)])
        taken = sum(peak.alive.values())
    cache, noise = engine.images.cache.nbytes, engine.images.noise.table.nbytes
    drafting = engine.speculation and engine.speculation.drafter
    drafted = [*_caches(drafting)]
    return {
        "keys and values": cache + sum(drafted),
        "noise": noise,
        "drafts and predictions": taken - cache - noise - sum(drafted),
    }


def _caches(drafter: object) -> Iterable[int]:
    """Yield the bytes of the KV caches of a drafter and of those that it is made of."""
    for value in vars(drafter).values() if drafter is not None else ():
        if hasattr(value, "nbytes") and hasattr(value, "memory"):
            yield value.nbytes
        elif hasattr(value, "cache"):
            yield from _caches(value)
