"""What the commands that look at files without loading a model need to know of a target."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from models.base import ImageGrid, TargetOptions, TransformerSpec
from models.codecs.codec import Codec
from models.files.network import Network


@dataclass(frozen=True)
class ImageSequence:
    """What an image takes of a transformer's positions.

    grid: of its tokens. shortest: tokens of the longest row that a prompt without text has.
    """

    grid: ImageGrid
    shortest: int


@dataclass(frozen=True)
class Checked:
    """What a check has found, in words, and the bytes that the part takes in memory.

    sequence: known once all parts fit together.
    """

    text: str
    bytes: int = 0
    sequence: ImageSequence | None = None


Check = Callable[[Path, TargetOptions], Checked]  # of a checkpoint's folder; ValueError for a fault


@dataclass(frozen=True)
class Part:
    """A part of a target next to its transformer. flag: that names its files, if one does."""

    check: Check
    flag: str | None = None


@dataclass(frozen=True)
class Family:
    """A target's files.

    spec: config.json -> the transformer's sizes; ValueError names a missing entry.
    network: config.json -> the network and its public keys; ValueError as above.
    drafter: a drafter's config.json, the target's sizes -> its sizes; ValueError as above.
    entries: config.json -> its entries that a new drafter takes over, in one flat table.
    parts: by name; their checks look at nothing of the transformer, so that no fault is told twice.
    compatible: whether parts and config.json, right in themselves, fit together for an image.
    codes: number of image codes, from the checkpoint's folder.
    codec: pictures -> codes, from the checkpoint's folder, without the transformer's weights.
    codebook: latents (codes, width) of the image codes, from the checkpoint's folder.
    """

    spec: Callable[[dict], TransformerSpec]
    network: Callable[[dict], Network]
    drafter: Callable[[dict, TransformerSpec], TransformerSpec]
    parts: Mapping[str, Part]
    compatible: Check
    codes: Callable[[Path, TargetOptions], int]
    codec: Callable[[Path, TargetOptions], Codec]
    codebook: Callable[[Path, TargetOptions], Tensor]
    entries: Callable[[dict], dict] = dict
