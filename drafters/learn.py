"""Learning while drawing: a drafter is trained on the images that it drafts (OmniDraft, arXiv
2507.02659).

To verify drafts, the target computes features and distributions of every image token that it
decides. Those are what a drafter is trained on. `Notes` keeps them, of the latest images, and
`OnlineLessons` trains on them a copy of the head, which `publish` puts into the drafting one.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from configs.training import TrainSettings
from decoding.drafter import Decided, Drafter
from decoding.sampling import SamplingDistribution
from decoding.timing import Stopwatch
from decoding.tree import DraftTree
from decoding.verifiers.base import Verdict
from drafters.eagle_head import EagleHead
from drafters.loading import LoadedDrafter
from drafters.training.lesson import Lessons
from drafters.training.losses import Levels
from drafters.training.rows import Rows, join_rows, part_of
from models.base import ImageGrid, PromptRows, TargetModel
from models.linear import pack_weights, packed_dtypes

_BYTES = 2**29  # of features of the latest images
WARMUP = 20  # updates in which the learning rate rises
DEEP_EVERY = 4  # updates, of which one scores more than the first level


class Alone:
    """The crew of one process: while drawing, processes never wait for each other."""

    rank, count = 0, 1

    def average(self, tensors: Sequence[Tensor]) -> None:
        pass

    def wait(self) -> None:
        pass


@dataclass
class Page:
    """What is decided of an image in flight: its prompt, codes, and the features before them.

    features: (guidance, n, hidden) each, the prompt's first. codes: (n,) each, row ends included.
    known: how many features the image has.
    """

    prompt: PromptRows
    features: list[Tensor]
    codes: list[Tensor]
    known: int = 0


class Notes:
    """The target's features of the latest finished images, ready to train on.

    Called with the numbers of images, 0 for the oldest, it returns their rows, or the one that is
    picked of each (a `Rower`).
    """

    def __init__(self, grid: ImageGrid, first_id: int):
        """first_id: of the image tokens."""
        self.wanted, self.first_id = grid.slots(grid.tokens - 1), first_id
        self.rows: deque[Rows] = deque()
        self.pages: list[Page | None] = []
        self.finished = 0  # images, also those that are forgotten

    def __call__(self, images: Sequence[int], picks: Sequence[int] | None = None) -> Rows:
        rows = [self.rows[image] for image in images]
        if picks is not None:
            rows = [part_of(row, pick, 1) for row, pick in zip(rows, picks, strict=True)]
        return join_rows(rows)

    def __len__(self) -> int:
        return len(self.rows)

    def open(self, images: int) -> None:
        """Forget the images in flight, and make room for others."""
        self.pages = [None] * images

    def start(self, image: int, prompt: PromptRows, features: Tensor, code: Tensor) -> None:
        """Begin an image, as drafters do."""
        self.pages[image] = Page(prompt, [features], [code])

    def add(self, decided: Decided) -> None:
        """Note what a round has decided; keep the images that are finished by it."""
        for image, (page, count) in enumerate(zip(self.pages, decided.counts, strict=True)):
            if page is None:
                continue
            page.features.append(decided.features[image, :, :count])
            page.codes.append(decided.codes[image, :count])
            page.known += count
            if page.known >= self.wanted:
                self._keep(page)
                self.pages[image] = None

    def select(self, images: list[int]) -> None:
        """Keep these images in flight only."""
        self.pages = [self.pages[image] for image in images]

    @torch.inference_mode(False)
    def _keep(self, page: Page) -> None:
        """Keep a finished image where it was made, in tensors that can be trained on.

        On a GPU they stay there, since to bring them to the CPU and back would be to wait for both.
        """
        prompt, length = page.prompt, page.prompt.ids.shape[1]
        ids = torch.cat(page.codes)[: self.wanted] + self.first_id
        ids = torch.cat([prompt.ids, ids.expand(len(prompt.ids), -1)], 1)
        features = torch.cat(page.features, 1)[:, : length + self.wanted]
        origins = prompt.starts if prompt.origins is None else prompt.origins
        parts = (ids, features, prompt.starts, origins)
        self.rows.append(Rows(*(values.clone() for values in parts), length))
        self.finished += 1
        most = max(1, _BYTES // max(1, features.numel() * features.itemsize))
        if len(self.rows) > most:
            self.rows.popleft()


class Listening:
    """A drafter whose decided tokens are noted. Rounds are not recorded: notes have any length."""

    replays = False

    def __init__(self, drafter: Drafter, notes: Notes):
        self.drafter, self.notes, self.window = drafter, notes, drafter.window
        self.reads = drafter.reads

    @property
    def trust(self) -> Tensor | None:
        return self.drafter.trust

    def open(self, images: int, watch: Stopwatch, fixed: bool = False) -> None:
        self.drafter.open(images, watch, fixed)
        self.notes.open(images)

    def start(self, image: int, prompt: PromptRows, features: Tensor, code: Tensor) -> None:
        self.drafter.start(image, prompt, features, code)
        self.notes.start(image, prompt, features, code)

    def expand(self, tree: DraftTree, nodes: Tensor) -> Tensor:
        return self.drafter.expand(tree, nodes)

    def foresee(self) -> Tensor:
        return self.drafter.foresee()

    def observe(self, tree: DraftTree, log_p: Tensor, verdict: Verdict) -> None:
        self.drafter.observe(tree, log_p, verdict)

    def commit(self, decided: Decided) -> None:
        self.drafter.commit(decided)
        self.notes.add(decided)

    def select(self, images: list[int]) -> None:
        self.drafter.select(images)
        self.notes.select(images)


@dataclass(frozen=True, kw_only=True)
class LearningDrafter(LoadedDrafter):
    """A drafter whose engines note what they decide."""

    notes: Notes

    def open(
        self, target: TargetModel, distribution: SamplingDistribution, room: int, deepest: int
    ) -> Drafter:
        return Listening(super().open(target, distribution, room, deepest), self.notes)


class OnlineLessons(Lessons):
    """Lessons without an end: the learning rate rises and stays.

    Most updates score the first level only, which takes half the time; every fourth scores all that
    the settings say, without which the head soon fails at its own predictions.
    """

    def __init__(self, settings: TrainSettings, target: TargetModel, head: EagleHead, notes: Notes):
        super().__init__(settings, target, head, (notes, []), Alone())
        self.deep = self.loss
        self.shallow = replace(self.deep, levels=Levels.of(target.grid, 1, target.device))

    def update(self) -> Tensor:
        """Make the next update; returns the loss's parts (levels, 3), means over the batch."""
        last = self.step % DEEP_EVERY == DEEP_EVERY - 1
        self.loss = self.deep if last else self.shallow
        return super().update()

    @property
    def rate(self) -> float:
        return self.settings.lr * min(1.0, (self.step + 1) / WARMUP)


@torch.no_grad()
def pass_on(head: EagleHead) -> None:
    """Give a head the weights with which it predicts that the next feature is as the last one.

    Neighbouring tokens have similar distributions, so this drafts from the first image on, and
    learns from there: a head of random weights takes a hundred updates to get as far.
    """
    hidden = head.spec.hidden
    head.fc.weight.zero_()
    head.fc.weight[:, hidden:].copy_(torch.eye(hidden))
    for block in head.blocks.blocks:
        block.attention.out.weight.zero_()
        block.mlp.down.weight.zero_()


def precision_on(device: torch.device) -> str:
    """Return the precision of matrix products in which a head learns faster on a device."""
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if device.type == "cpu" and torch.bfloat16 in packed_dtypes() else "fp32"


@torch.no_grad()
def publish(lessons: Lessons, network: EagleHead, scale: float) -> None:
    """Copy the averaged weights of a head in training, in place, into the one that drafts.

    scale: how many times larger the trained head's embedding is.
    """
    drafting = dict(network.named_parameters())
    with lessons.averaged() as head:
        for name, weight in head.named_parameters():
            if weight.requires_grad:
                drafting[name].copy_(weight)
    network.fc.weight[:, : network.spec.hidden] *= scale
    pack_weights(network)


@torch.no_grad()
def average_heads(lessons: OnlineLessons, others: Sequence[EagleHead]) -> None:
    """Replace the weights of a head in training by the mean of its own and others'."""
    for name, weight in lessons.trained.items():
        theirs = sum(dict(other.named_parameters())[name] for other in others)
        for own in (weight, lessons.average[name]):
            own.copy_((own + theirs) / (1 + len(others)))
