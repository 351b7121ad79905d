"""Where a batch's features come from: the frozen target at every step, or a folder filled once.

about.json                  what the features are of: tokens, checkpoint, rows per image, dtype
rows-<number>.safetensors   of up to 16 images: per image i the tensors i.ids, i.features, i.starts,
i.origins
"""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Protocol

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from configs.fields import refuse
from drafters.training.rows import Rows, join_prompts, join_rows, row_of, target_rows
from drafters.training.shards import Tokens
from models.base import Layers
from models.files.tensors import open_safetensors
from models.target import TargetModel
from support.durable import replace_file
from support.json_files import read_object
from support.locks import lock
from support.processes import Processes
from support.progress import Progress, plural

_SHARD = 16  # images
_TOGETHER = 4  # images that pass the target at once on a CPU: more of them leave its caches
_NAMES = ("ids", "features", "starts", "origins")
# flags that change what a target makes of a caption
CAPTION_FLAGS = ("negative_prompt", "tokenizer_path", "text_encoder_path")


class Rower(Protocol):
    """Gives the rows of images."""

    def __call__(self, images: Sequence[int], picks: Sequence[int] | None = None) -> Rows:
        """Return the rows of images by their numbers; picks: one of each, None for all."""


@dataclass(frozen=True)
class Computed:
    """Computes rows with the target."""

    target: TargetModel
    tokens: Tokens
    guidance: int
    precision: str = "fp32"  # of the matrix products; or bf16
    layers: Layers = ()  # whose hidden states are also needed

    def __call__(self, images: Sequence[int], picks: Sequence[int] | None = None) -> Rows:
        captions, codes = [self.tokens.captions[n] for n in images], self.tokens.codes(images)
        prompts = [self.target.prompt(caption, self.guidance) for caption in captions]
        if picks is not None:
            pairs = zip(prompts, picks, strict=True)
            prompts = [prompt.part(slice(row, row + 1)) for prompt, row in pairs]
        device, parts = self.target.device.type, []
        size = _TOGETHER if device == "cpu" else len(images)
        with torch.autocast(device, torch.bfloat16, enabled=self.precision == "bf16"):
            for first in range(0, len(images), size):
                some = slice(first, first + size)
                joined = join_prompts(prompts[some])
                parts.append(target_rows(self.target, joined, codes[some], self.layers))
        return join_rows(parts)

    @property
    def stored(self) -> torch.dtype:
        """The dtype of features on disk: one of 16 bits."""
        return torch.bfloat16 if self.target.dtype == torch.bfloat16 else torch.float16

    def bytes_of(self, images: Sequence[int]) -> int:
        """Return the bytes that these images' features take on disk."""
        grid, width = self.target.grid, self.target.spec.hidden * (1 + len(self.layers))
        drafted = grid.slots(grid.tokens - 1)
        slots = sum(self.target.length(self.tokens.captions[i]) + drafted for i in images)
        return slots * self.guidance * width * self.stored.itemsize


@dataclass(frozen=True)
class Cached:
    """Reads rows from a folder, in 16 bits."""

    folder: Path
    device: torch.device

    def __call__(self, images: Sequence[int], picks: Sequence[int] | None = None) -> Rows:
        rows = [self._read(image) for image in images]
        if picks is not None:
            rows = [row_of(row, pick) for row, pick in zip(rows, picks, strict=True)]
        return join_rows(rows).to(self.device, rows[0].features.dtype)

    def _read(self, image: int) -> Rows:
        with _opened(shard_path(self.folder, image // _SHARD)) as shard:
            ids, features, starts, origins = (
                shard.get_tensor(f"{image}.{name}") for name in _NAMES
            )
            return Rows(ids, features, starts, origins, int(shard.metadata()[str(image)]))


@contextmanager
def _opened(path: Path) -> Iterator[safe_open]:
    try:
        with open_safetensors(path) as shard:
            yield shard
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path}: damaged or missing; delete it, and it is made again: {error}"
        ) from error


def shard_path(folder: Path, number: int) -> Path:
    """Return the file of a shard."""
    return folder / f"rows-{number:05d}.safetensors"


def cached(
    computed: Computed,
    images: Sequence[int],
    folder: Path,
    source: Mapping[str, object],
    processes: Processes,
    progress: Progress,
) -> Cached:
    """Add what the folder lacks of these images, each process to its own shards; return its reader.

    source: what tells tokens and target from others, by name.

    Raises:
        SettingsError: the folder holds features of other tokens or of another target, or the disk
            has no room.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _claim(folder, computed, source, processes)
    numbers = {image // _SHARD for image in images}
    held = {image for number in numbers for image in _held(shard_path(folder, number))}
    absent = [image for image in images if image not in held]
    need, free = computed.bytes_of(absent), shutil.disk_usage(folder).free
    if processes.rank == 0 and absent:
        size = f"{need:,} bytes; the disk has {free:,}"
        progress.note(f"features of {plural(len(absent), 'image')} into {folder}: {size}")
    if need > free:
        allowed = f"a folder on a disk with {need:,} bytes free; this one has {free:,}"
        refuse("cache_features", str(folder), allowed)
    # none may write before all have listed what is missing, since they share out that list
    processes.agree("cache_features", str(folder), absent)
    shards = groupby(sorted(absent), lambda image: image // _SHARD)
    own = processes.share([(number, [*new]) for number, new in shards])
    with ExitStack() as stack:
        if processes.rank == 0 and absent:  # files are read and written again with more images
            try:
                stack.enter_context(lock(folder / ".lock"))
            except BlockingIOError:
                refuse("cache_features", str(folder), "a folder that no other training fills")
        for count, (number, new) in enumerate(own):
            progress.say(f"features: {count} of {plural(len(own), 'file')}")
            path = shard_path(folder, number)
            replace_file(path, _shard(computed, new, path))
        # a reader also needs the other processes' shards
        processes.wait()
    return Cached(folder, computed.target.device)


def _held(path: Path) -> list[int]:
    """Return the images in a shard, none if it is missing."""
    if not path.is_file():
        return []
    with _opened(path) as shard:
        return list(map(int, shard.metadata()))


def _shard(computed: Computed, images: Sequence[int], path: Path) -> bytes:
    """Return a shard of these images and of those that are in its file."""
    tensors: dict[str, Tensor] = {}
    prompts: dict[str, str] = {}
    for image in images:
        rows = computed([image]).to(torch.device("cpu"), computed.stored)
        tensors |= {f"{image}.{name}": getattr(rows, name).contiguous() for name in _NAMES}
        prompts[str(image)] = str(rows.prompt)
    if path.is_file():
        with _opened(path) as shard:
            tensors |= {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118
            prompts |= shard.metadata()
    return save(tensors, prompts)


def _claim(
    folder: Path, computed: Computed, source: Mapping[str, object], processes: Processes
) -> None:
    """Note what the folder's features are of; a SettingsError if they are of something else."""
    about = {
        **source,
        "guidance": computed.guidance,
        "precision": computed.precision,
        "dtype": str(computed.stored).removeprefix("torch."),
        "layers": list(computed.layers) or None,
    }
    path = folder / "about.json"
    if processes.rank == 0 and not path.exists():
        replace_file(path, json.dumps(about).encode())
    processes.wait()  # or others might look for the file before it is written
    processes.agree("cache_features", str(folder), path.exists())
    noted = read_object(path)
    for name, value in about.items():
        if noted.get(name) != value:
            allowed = f"a new folder: this one is of {name} {noted.get(name)!r}, not {value!r}"
            refuse("cache_features", str(folder), allowed)


def fingerprint(tokens: Tokens) -> str:
    """Return a hash of the ids, captions and codes."""
    digest = hashlib.sha256(json.dumps([tokens.ids, tokens.captions]).encode())
    for first in range(0, len(tokens), 1024):
        # in pieces, since the codes of all images may not fit in memory
        digest.update(tokens.codes(range(first, min(first + 1024, len(tokens)))).numpy().tobytes())
    return digest.hexdigest()[:16]
