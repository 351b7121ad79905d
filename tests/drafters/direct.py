"""What a drafter is to compute: the EAGLE head over whole sequences, without cache or mask.

Slot i reads the target's feature i and the embedding of token i + 1, and predicts feature i + 1.
"""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from fakes import with_row_ends
from torch import Tensor

from decoding.round import AcceptedTokens, ImageInputs, Round, RoundInputs, RoundShape, TreeShape
from decoding.row_ends import end_depths
from decoding.sampling import SamplingDistribution
from decoding.stopwatch import Stopwatch
from decoding.tree import GrowingTree
from drafters.block import BlockHead
from drafters.eagle import EagleDrafter
from models.base import Context, ImageGrid, PromptRows
from runs.session import Session


def session_reading(session: Session, layers: tuple[int, ...]) -> Session:
    """A session whose head also reads the target's hidden states after these layers."""
    if not layers:
        return session
    head = deepcopy(session.drafter)
    head.read_layers(layers)
    generator = torch.Generator().manual_seed(5)
    weight = head.states.weight
    weight.data.copy_(torch.randn(weight.shape, generator=generator) * 0.05)
    head.requires_grad_(False)
    return replace(session, drafter=head)


def block_head(session: Session) -> BlockHead:
    """A block head with numbers of its own."""
    head = BlockHead.of(session.drafter)
    head.share.data = head.share.new_tensor((-1.0, 2.0))
    head.sharpness.data = head.sharpness.new_tensor((0.0, 1.0))
    return head


@dataclass
class Known:
    """An image whose features are known: those of the prompt and of its codes."""

    prompt: PromptRows
    hidden: Tensor  # (guidance, prompt and slots, hidden)
    codes: Tensor
    grid: ImageGrid

    def decided(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Features (guidance, n, hidden) from code start - 1 to stop - 2, and what follows (n,)."""
        first, last = self.grid.slots(start - 1), self.grid.slots(stop - 1)
        length, sequence = self.prompt.ids.shape[1], with_row_ends(self.codes, self.grid)
        return self.hidden[:, length + first : length + last], sequence[first + 1 : last + 1]


class Image(Known):
    """An image whose features come from uncached passes over its unpadded rows."""

    @torch.inference_mode()
    def __init__(
        self, session: Session, distribution: SamplingDistribution, text: str, codes: list[int]
    ):
        self.target, self.head = session.target, session.drafter
        self.distribution, self.rows, padded = distribution, [], []
        prompt = self.target.prompt(text, distribution.guidance)
        for row, start in zip(prompt.ids, prompt.starts.tolist(), strict=True):
            self.rows.append(row[start:].tolist())
            ids = torch.tensor([self.rows[-1] + self.sequence(codes)])
            context = Context(torch.arange(ids.shape[1])[None])
            features = self.target.features(ids, context, self.head.spec.target_layers)[0]
            padded.append(F.pad(features, (0, 0, start, 0), value=9.0))
        super().__init__(prompt, torch.stack(padded), torch.tensor(codes), self.target.grid)

    def sequence(self, codes: list[int]) -> list[int]:
        """Ids of the first codes of the image, each row closed where the model closes rows."""
        slots = with_row_ends(torch.tensor(codes, dtype=torch.long), self.target.grid)
        return (slots + self.target.vocab.first_id).tolist()

    def features(self, count: int) -> list[Tensor]:
        """Features (n, hidden) of each row's prompt and first `count` codes, and states read."""
        stop, starts = self.prompt.ids.shape[1] + self.grid.slots(count), self.prompt.starts
        return [row[start:stop] for row, start in zip(self.hidden, starts.tolist(), strict=True)]

    @torch.inference_mode()
    def distribution_after(self, count: int, path: tuple[int, ...] = ()) -> Tensor:
        """log q (vocab,) after `count` decided codes and a path of drafted ones, by definition."""
        last = []
        for row, features in zip(self.rows, self.features(count - 1), strict=True):
            ids = torch.tensor([row + self.sequence([*self.codes[:count].tolist(), *path])])[:, 1:]
            inputs = self.head.fuse(features[None])
            while True:
                n = inputs.shape[1]
                outputs = self.head(ids[:, :n], inputs, Context(torch.arange(n)[None]))
                if n == ids.shape[1]:
                    break
                inputs = torch.cat([inputs, outputs[:, -1:]], 1)
            last.append(outputs[:, -1:])
        return self.distribution(self.target.score(torch.cat(last)))[0, 0]


TREE = TreeShape(8, 4, 40)


class Rounds:
    """The rounds of an EAGLE drafter without an engine, which is told what they decide."""

    @torch.inference_mode()
    def __init__(
        self, session: Session, distribution: SamplingDistribution, images: Sequence[Known]
    ):
        head, target = session.drafter, session.target
        self.drafter = EagleDrafter(head, target, distribution, TREE)
        self.grid, self.images = target.grid, list(images)
        self.done, self.pending = [1] * len(images), [1] * len(images)
        self.lengths = [image.prompt.ids.shape[1] for image in images]
        self.drafter.open(len(images), max(self.lengths) + 40, Stopwatch(torch.device("cpu")))
        for row, (image, length) in enumerate(zip(images, self.lengths, strict=True)):
            self.drafter.prefill(row, image.prompt, image.hidden[:, :length], image.codes[:1])

    @torch.inference_mode()
    def root(self) -> GrowingTree:
        """Start a round: its trees without nodes."""
        numbers = zip(self.images, self.done, self.lengths, self.pending, strict=True)
        inputs = [ImageInputs(int(i.codes[d - 1]), d, n, p, 0, *TREE) for i, d, n, p in numbers]
        ends = () if self.grid.row_end is None else end_depths(inputs, self.grid)
        sizes = max(self.pending), max(self.lengths)
        shape = RoundShape(len(inputs), *TREE, *sizes, TREE.nodes, ends)
        self.round = Round(shape, RoundInputs(torch.tensor(inputs)), None)
        self.drafter.begin(self.round, None)
        return GrowingTree.root(self.round.inputs.code, torch.float64)

    @torch.inference_mode()
    def expand(self, tree: GrowingTree, picked: list[list[int]]) -> Tensor:
        return self.drafter.expand(tree, torch.tensor(picked), self.round).log_q

    @torch.inference_mode()
    def commit(self, counts: list[int]) -> None:
        """Decide the next counts[i] codes of each image, padded with nonsense to equal length."""
        starts = zip(self.images, self.done, counts, strict=True)
        new = [image.decided(start, start + count) for image, start, count in starts]
        self.pending = [len(codes) for _, codes in new]
        most = max(self.pending)
        hidden = [F.pad(f, (0, 0, 0, most - len(c)), value=7.0) for f, c in new]
        codes = torch.stack([F.pad(c, (0, most - len(c))) for _, c in new])
        accepted = AcceptedTokens(codes, codes, torch.tensor(self.pending)[:, None])
        self.drafter.update(SimpleNamespace(accepted=accepted, accepted_hidden=torch.stack(hidden)))
        self.done = [a + b for a, b in zip(self.done, counts, strict=True)]
        self.lengths = [a + b for a, b in zip(self.lengths, self.pending, strict=True)]
