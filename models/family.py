"""What the commands that look at files without loading a model need to know of a family of targets."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from models.base import TransformerSpec
from models.weights import Network


@dataclass(frozen=True)
class Checked:
    """What a check has found: words, and the bytes that the part takes in memory."""

    text: str
    bytes: int = 0


Check = Callable[[Path, Path | None], Checked]  # checkpoint folder, --tokenizer_path


@dataclass(frozen=True)
class Family:
    """A target's files.

    network: config.json -> the transformer and its public keys; ValueError names a missing entry.
    drafter: (config.json, the target's transformer) -> that of its drafter; likewise.
    checks: of the other parts, by name; ValueError says all that is wrong.
    codebook: (checkpoint folder, --tokenizer_path) -> latents (codes, width) of the image codes.
    """

    network: Callable[[dict], Network]
    drafter: Callable[[dict, TransformerSpec], TransformerSpec]
    checks: dict[str, Check]
    codebook: Callable[[Path, Path | None], Tensor]
