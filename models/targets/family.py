"""What the commands that look at files without loading a model need to know of a family of targets."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from models.base import TargetOptions, TransformerSpec
from models.codecs.codec import Codec
from models.files.weights import Network


@dataclass(frozen=True)
class Checked:
    """What a check has found: words, and the bytes that the part takes in memory."""

    text: str
    bytes: int = 0


Check = Callable[[Path, TargetOptions], Checked]  # of the checkpoint's folder


@dataclass(frozen=True)
class Family:
    """A target's files.

    network: config.json -> the network and its public keys; ValueError names a missing entry.
    drafter: a drafter's config.json, the target's sizes -> the drafter's sizes; ValueError as above.
    checks: of the other parts, by name; ValueError says all that is wrong.
    codec: pictures -> codes, from the checkpoint's folder, without the transformer's weights.
    codebook: latents (codes, width) of the image codes, from the checkpoint's folder.
    agreement: whether parts that are right in themselves belong together, where their checks do not tell.
    """

    network: Callable[[dict], Network]
    drafter: Callable[[dict, TransformerSpec], TransformerSpec]
    checks: dict[str, Check]
    codec: Callable[[Path, TargetOptions], Codec]
    codebook: Callable[[Path, TargetOptions], Tensor]
    agreement: Check | None = None
