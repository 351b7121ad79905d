"""What the check is asked for: flags, and the sizes of what it measures.

By argparse, since fire may be missing on the machine that is to be checked.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from configs.fields import refuse
from configs.targets import ROOT
from support.devices import pick_device

PARTS = ("tokens", "large", "tiny", "profile")  # the most important first


@dataclass(frozen=True)
class Sizes:
    """How much is measured.

    Of Anole's sizes, widths are divided by `scale`; an image has side x side tokens. images:
    batches of its passes. tokens: per row and pass. compiled: (images, tokens) of the passes that
    are compiled, which takes minutes for each. rounds_of: methods whose rounds are measured there.
    width: nodes of a draft level. nodes: of a tree. repeats: measurements per figure. rounds:
    measured ones. batches: batch size -> images of the tiny model. compared: its images whose
    tokens are compared.
    """

    scale: int
    layers: int
    side: int
    images: tuple[int, ...]
    tokens: tuple[int, ...]
    compiled: tuple[tuple[int, int], ...]
    rounds_of: tuple[str, ...]
    width: int
    nodes: int
    repeats: int
    rounds: int
    batches: dict[int, int]
    compared: int


FULL = Sizes(
    scale=1,
    layers=32,
    side=32,
    images=(1, 4, 8),
    tokens=(1, 8, 16, 32, 64, 128),
    compiled=(*((1, n) for n in (1, 8, 16, 32, 64, 128)), (4, 1), (4, 64), (8, 1), (8, 64)),
    rounds_of=("ar", "eagle2 topk", "adt", "jacobi", "graft"),
    width=10,
    nodes=58,
    repeats=20,
    rounds=20,
    batches={1: 6, 8: 16, 32: 32},
    compared=4,
)
SMALL = Sizes(
    scale=32,
    layers=2,
    side=8,
    images=(1,),
    tokens=(1, 64),
    compiled=((1, 1),),
    rounds_of=("ar", "adt"),
    width=4,
    nodes=8,
    repeats=3,
    rounds=2,
    batches={1: 1, 2: 2},
    compared=1,
)


@dataclass(frozen=True)
class Options:
    """The check's settings.

    parts: of PARTS, in this order. output: the folder of the figures. small: SMALL sizes, for a
    try on a CPU. model_path: the checkpoint that parts `tokens`, `tiny` and `profile` decode with.
    """

    parts: tuple[str, ...]
    output: Path
    device: torch.device
    small: bool
    model_path: str

    @property
    def sizes(self) -> Sizes:
        return SMALL if self.small else FULL

    def words(self, part: str) -> list[str]:
        """Return the command line of one part."""
        flags = {"parts": part, "output": self.output, "device": self.device}
        words = [f"--{name}={value}" for name, value in flags.items()]
        return [*words, f"--model_path={self.model_path}", *(["--small"] if self.small else [])]


def read_options(words: Sequence[str], about: str) -> Options:
    """Return the settings of a command line; about: what --help says first."""
    parser = argparse.ArgumentParser(prog="scripts/gpu/check.sh", description=about)
    parser.add_argument("--parts", default=",".join(PARTS), help="of tokens, large, tiny, profile")
    parser.add_argument("--output", type=Path, default=Path("outputs/gpu_check"))
    parser.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    parser.add_argument("--small", action="store_true", help="small sizes, for a try on a CPU")
    parser.add_argument("--model_path", default=str(ROOT / "ckpts" / "tiny"))
    given = parser.parse_args(words)
    parts = tuple(given.parts.split(","))
    if not set(parts) <= set(PARTS):
        refuse("parts", given.parts, f"some of {', '.join(PARTS)}")
    return Options(parts, given.output, pick_device(given.device), given.small, given.model_path)
