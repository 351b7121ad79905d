"""Trees, distributions, drafters and rounds made up for tests, and what an engine generates."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from decoding.drafter import TreeDrafter
from decoding.engine import Engine
from decoding.graphs import CudaGraphs
from decoding.images import FinishedImage, Job
from decoding.noise import HostNoise, NoiseShape, gumbel_of
from decoding.proposals import Predictions
from decoding.round import (
    AcceptedTokens,
    ImageInputs,
    Round,
    RoundInputs,
    RoundResult,
    RoundShape,
    TreeShape,
    largest_of,
)
from decoding.tree import DraftTree, GrowingTree
from decoding.verifiers.base import Verdict
from models.base import ImageGrid
from support.kernels import Kernels

Path = tuple[int, ...]


@dataclass(frozen=True)
class Dictated(HostNoise):
    """Numbers that a test dictates: every draft is accepted with the same one."""

    number: float = 0.5

    def accept(self, depth: int, column: int) -> float:
        return self.number


@dataclass(frozen=True)
class DictatedStreams:
    """What a verifier reads: the target's noise (images, 1 + nodes, vocab or 1), accept numbers."""

    noise: Tensor
    number: float = 0.5

    def target(self) -> Tensor:
        return self.noise

    def images(self) -> list[Dictated]:
        images, _, width = self.noise.shape
        shape = NoiseShape(8, width, width == 1, self.noise.dtype, self.noise.device)
        return [Dictated(seed, 0, shape, self.number) for seed in range(images)]


def tree_of(
    tokens: list[int],
    parents: list[int],
    absent: Sequence[int] = (),
    scores: Sequence[float] | None = None,
) -> DraftTree:
    """The tree of one image, the root first; scores are 0 where a test does not need them."""
    depths = [0]
    for parent in parents[1:]:
        depths.append(depths[parent] + 1)
    row = torch.tensor([scores or [0.0] * len(tokens)], dtype=torch.float64)
    row[:, list(absent)] = -torch.inf
    columns = (torch.tensor([values]) for values in (tokens, parents, depths))
    return DraftTree(*columns, row, height=max(depths), width=len(tokens))


def random_tree(
    generator: torch.Generator, images: int, nodes: int, vocab: int, absent: float = 0.0
) -> DraftTree:
    """Trees of random shape in the order of depth, siblings distinct; nodes are absent with this
    probability.
    """
    rows = []
    for _ in range(images):
        parents, used = [0], {}
        for node in range(1, nodes + 1):
            parent = max(parents[-1], int(torch.randint(node, (1,), generator=generator)))
            while len(used.get(parent, ())) == vocab:
                parent += 1
            used.setdefault(parent, []).append(node)
            parents.append(parent)
        tokens = [0] * (nodes + 1)
        for children in used.values():
            distinct = torch.randperm(vocab, generator=generator).tolist()
            for child, token in zip(children, distinct, strict=False):
                tokens[child] = token
        depths, scores = [0], [0.0]
        for node in range(1, nodes + 1):
            gone = torch.rand(1, generator=generator) < absent
            depths.append(depths[parents[node]] + 1)
            step = torch.rand(1, generator=generator, dtype=torch.float64).log()
            scores.append(-torch.inf if gone else scores[parents[node]] + float(step))
        rows.append((tokens, parents, depths, scores))
    tokens, parents, depths, scores = map(torch.tensor, zip(*rows, strict=True))
    height = int(depths.max())
    return DraftTree(tokens, parents, depths, scores.double(), height=height, width=vocab)


def path_to(tree: DraftTree, image: int, node: int) -> Path:
    """The tokens from the root's child down to a node."""
    path: Path = ()
    while node:
        path = (int(tree.tokens[image, node]), *path)
        parent = int(tree.parents[image, node])
        assert parent < node  # else this would not end
        node = parent
    return path


def scored_paths(tree: DraftTree, image: int) -> dict[Path, float]:
    """The present nodes of an image's tree, as paths, with their scores."""
    present = tree.present[image].nonzero().flatten().tolist()
    return {path_to(tree, image, node): float(tree.scores[image, node]) for node in present if node}


def random_distribution(image: int, path: Path, vocab: int = 9, spread: float = 2.0) -> Tensor:
    """A log-distribution (vocab,) that is a function of an image and a path."""
    generator = torch.Generator().manual_seed(hash((image, *path)) % 2**31)
    return (spread * torch.randn(vocab, generator=generator, dtype=torch.float64)).log_softmax(-1)


class Unseeing(TreeDrafter):
    """A drafter without a network that learns nothing of what was verified."""

    reads, dtype = (), torch.float64


class PathDrafter(Unseeing):
    """log q after a node = distribution(image, path below the root)."""

    def __init__(self, distribution: Callable[[int, Path], Tensor]):
        self.distribution = distribution

    def expand(self, tree: GrowingTree, picked: Tensor, round: Round) -> Predictions:
        whole, first = tree.complete(), tree.newest.first
        rows = [
            [self.distribution(i, path_to(whole, i, first + node)) for node in nodes]
            for i, nodes in enumerate(picked.tolist())
        ]
        return Predictions(torch.stack([torch.stack(row) for row in rows]))


class ScriptedDrafter(Unseeing):
    """log q after a node = distribution(ids of the prompt, image position), whatever the path."""

    def __init__(self, distribution: Callable[[Path, int], Tensor]):
        self.distribution = distribution

    def open(self, images: int, slots: int, watch: object) -> None:
        self.keys: list[Path] = [()] * images

    def prefill(self, image: int, prompt: object, hidden: Tensor, code: Tensor) -> None:
        self.keys[image] = tuple(prompt.ids[0].tolist())

    def expand(self, tree: GrowingTree, picked: Tensor, round: Round) -> Predictions:
        positions = (round.inputs.decided[:, 0] + tree.height).tolist()
        rows = [self.distribution(k, p) for k, p in zip(self.keys, positions, strict=True)]
        return Predictions(torch.stack(rows)[:, None].expand(-1, picked.shape[1], -1))


def no_noise(positions: Tensor) -> Tensor:
    """The target's noise at temperature 0, at positions (images, n)."""
    return torch.zeros(*positions.shape, 1)


def round_of(
    shapes: Sequence[TreeShape],
    decided: Sequence[int] | None = None,
    noise: object = no_noise,
    code: int = 0,
) -> Round:
    """A round of images with these trees; decided: their image tokens, the last one is `code`."""
    largest, decided = largest_of(shapes), decided or [1] * len(shapes)
    inputs = [
        ImageInputs(code, count, count, 1, 0, *shape)
        for count, shape in zip(decided, shapes, strict=True)
    ]
    uniform = all(shape == largest for shape in shapes)
    shape = RoundShape(len(shapes), *largest, 1, max(decided), uniform=uniform)
    return Round(shape, RoundInputs(torch.tensor(inputs)), noise)


def result_of(
    round: Round, tree: DraftTree, log_p: Tensor, verdict: Verdict, hidden: Tensor | None = None
) -> RoundResult:
    """The result that a drafter learns from, without row ends."""
    decided = verdict.accepted[:, None] + 1
    accepted = AcceptedTokens(verdict.path, verdict.emitted, decided)
    return RoundResult(round, tree, hidden, hidden, log_p, verdict, accepted)


def judged(log_p: Tensor, log_q: object, tree: Sequence[Tensor], numbers: Sequence[Tensor], *rest):
    """A kernel that judges nodes by torch: what the stream `accept` chooses is accepted."""
    (tokens, parents, depths, scores), (keys, decided) = tree, numbers
    noise = gumbel_of(keys[:, :1, None], decided + depths, log_p.shape[-1])
    choices = (log_p + noise).argmax(-1)
    return (tokens == choices.gather(1, parents)) & (scores > -torch.inf), choices


class Padded(CudaGraphs):
    """Launches rounds in the shapes that would be captured, and early where a replay would be."""

    def __call__(self, name, shape, program, inputs):
        return program(inputs)

    def captured(self, name, shape):
        return True


JUDGING: Kernels = {"judging": lambda: {"judge": judged}}


def emitted(verdict: Verdict) -> Tensor:
    """The decided tokens (images, 1 + nodes), -1 after them."""
    place = torch.arange(verdict.emitted.shape[1])
    return verdict.emitted.masked_fill(place > verdict.accepted[:, None], -1)


def finished(engine: Engine, jobs: Iterable[Job]) -> dict[str, FinishedImage]:
    """Generate the images of some jobs, by job id."""
    return {image.job.id: image for step in engine.generate(jobs) for image in step.finished}


def codes(engine: Engine, jobs: Iterable[Job]) -> dict[str, list[int]]:
    return {name: image.codes.tolist() for name, image in finished(engine, jobs).items()}


def with_row_ends(codes: Tensor, grid: ImageGrid) -> Tensor:
    """An image's first codes (n,), with row ends after full rows if the grid has them."""
    if grid.row_end is None:
        return codes
    rows = codes.split(grid.columns)
    return torch.cat(
        [F.pad(row, (0, int(len(row) == grid.columns)), value=grid.row_end) for row in rows]
    )
